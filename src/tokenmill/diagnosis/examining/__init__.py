"""Tries a function in separate processes before a run. The entry point is `examination.examine`."""
