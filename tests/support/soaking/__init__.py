"""Faults of the surroundings, made on purpose, and models of what has to come out all the same.

Shared by scripts/soak.py, which lets them meet at random, and by tests/test_surroundings.py.
"""
