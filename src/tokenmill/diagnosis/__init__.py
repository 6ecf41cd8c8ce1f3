"""Finds out why work over many processes dies: `examining` before a run, `watching` during one."""
