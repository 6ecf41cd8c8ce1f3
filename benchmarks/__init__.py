"""Measurements; the first lines of each file say how it is run."""
