"""Tokenizers: specs in, exact tokens out."""
