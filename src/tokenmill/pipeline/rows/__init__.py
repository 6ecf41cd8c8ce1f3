"""Rows that are in no file: read once, and copied to files of the store."""
