"""Executors run a function over items in supervised processes, on this machine or on a Ray cluster."""
