"""Runs a command, watches its processes and diagnoses deaths. The entry point is `command.watch`."""
