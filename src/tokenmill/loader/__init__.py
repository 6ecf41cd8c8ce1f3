"""Stores to training batches: an order computed on the fly, and one integer of state.

The core is NumPy. Only `loader/torch.py` imports torch; `loader/grain.py` is for Grain.
"""
