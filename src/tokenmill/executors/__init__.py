"""Executors: run a function over items, somewhere, and tell what came of each."""
