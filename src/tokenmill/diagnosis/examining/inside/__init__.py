"""Runs inside the probe processes: loads the user's script and experiments with its function."""
