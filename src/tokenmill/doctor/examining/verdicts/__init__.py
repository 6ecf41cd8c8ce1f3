"""Interprets the experiments. Each module covers one topic and returns a table row and its findings."""
