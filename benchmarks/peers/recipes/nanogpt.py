"""The recipe of nanoGPT: `datasets.map` with tiktoken, then a memory map that one process fills in 1,024 batches.

Its split into training and validation data, which shuffles, is left out: that makes the recipe faster.
"""

import glob
import os
import sys

import numpy as np
import tiktoken
from datasets import load_dataset

source, out, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
encoding = tiktoken.get_encoding("gpt2")


def process(example):
    """The tokens of one row, and the end token."""
    ids = encoding.encode_ordinary(example["text"])
    ids.append(encoding.eot_token)
    return {"ids": ids, "len": len(ids)}


if __name__ == "__main__":
    files = sorted(glob.glob(os.path.join(source, "*.parquet")))
    rows = load_dataset("parquet", data_files=files, split="train", num_proc=min(workers, len(files)))
    tokenized = rows.map(process, remove_columns=rows.column_names, num_proc=workers)
    length = int(np.sum(tokenized["len"], dtype=np.uint64))
    tokens = np.memmap(os.path.join(out, "train.bin"), dtype=np.uint16, mode="w+", shape=(length,))
    batches = min(1024, len(tokenized))
    position = 0
    for number in range(batches):
        batch = tokenized.shard(num_shards=batches, index=number, contiguous=True).with_format("numpy")
        ids = np.concatenate(batch["ids"])
        tokens[position : position + len(ids)] = ids
        position += len(ids)
    tokens.flush()
