"""Small models of the protocol by which a store and its exports change: thousands of trials in a few seconds.

A process is a generator that yields one access to a bucket at a time. So a seed decides how processes take turns, where
they are killed and where they pause. Shared by the tests and scripts/chain_model.py.
"""
