"""build-nanogpt has no package: its train_gpt2.py loads shards with numpy, found by the split in their names."""

import os

import numpy as np
from expected import Check

BATCH_TOKENS = 4 * 1024


def main() -> None:
    """Compare the stream over all shards, that of val first."""
    check = Check()
    names = sorted(os.listdir(check.export))
    shards = []
    for split in ("val", "train"):
        chosen = [name for name in names if split in name]
        check.require(bool(chosen), f"no shard of {split}")
        for name in chosen:
            tokens = np.load(os.path.join(check.export, name))
            check.require(tokens.dtype == check.dtype, f"{name} is {tokens.dtype}")
            check.require(len(tokens) > BATCH_TOKENS, f"{name} has no more than a batch of {BATCH_TOKENS:,} tokens")
            shards.append(tokens)
    check.same_documents([check.split_at_ends(np.concatenate(shards))])
    check.report("numpy", f"np.load of {len(shards)} shards")


main()
