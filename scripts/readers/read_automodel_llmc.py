"""NeMo AutoModel: the tokens of llm.c's shards of two bytes, by the loader of its NanogptDataset."""

import os

import numpy as np
from expected import Check
from nemo_automodel.components.datasets.llm.nanogpt_dataset import load_bin_shard


def main() -> None:
    """Compare the stream over all shards, that of val first."""
    check = Check()
    names = check.files(".bin")
    paths = [path for split in ("val", "train") for path in names if f"_{split}_" in os.path.basename(path)]
    shards = [load_bin_shard(path).numpy() for path in paths]
    check.same_documents([check.split_at_ends(np.concatenate(shards))])
    check.report("nemo-automodel", f"the tokens of {len(shards)} shards (load_bin_shard)")


main()
