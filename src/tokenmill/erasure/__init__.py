"""How documents leave a complete store: select, find, claim, reconcile, check. `store/chain.py` has the records."""
