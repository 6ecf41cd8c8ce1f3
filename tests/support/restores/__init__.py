"""Random restores, kills, races and copies of stores with erasures, and what readers and repairs make of them.

Shared by the tests and scripts/restore_fuzz.py. Only the public functions of the package are called.
"""
