"""Datasets of the Hugging Face Hub."""
