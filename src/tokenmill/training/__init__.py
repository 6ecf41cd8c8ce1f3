"""Stores to training batches: an order computed on the fly, and one integer of state.

The core is NumPy. Only `training/torch.py` imports torch; `training/grain.py` is for Grain.
"""
