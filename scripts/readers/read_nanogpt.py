"""nanoGPT has no package: its train.py maps train.bin and val.bin as uint16 and draws blocks from them."""

import os

import numpy as np
from expected import Check

BLOCK_SIZE = 1024


def main() -> None:
    """Compare both splits, as numpy maps them."""
    check = Check()
    splits = []
    for name in ("train.bin", "val.bin"):
        if not os.path.exists(path := os.path.join(check.export, name)):
            continue
        tokens = np.memmap(path, dtype=np.uint16, mode="r")
        check.require(len(tokens) > BLOCK_SIZE, f"{name} has no more than a block of {BLOCK_SIZE:,} tokens")
        splits.append(check.split_at_ends(tokens))
    check.same_documents(splits)
    check.report("numpy", "np.memmap of train.bin and val.bin")


main()
