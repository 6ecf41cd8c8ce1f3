"""The recipe of build-nanogpt and llm.c: the rows of a dataset through `Pool.imap`, tokens collected in shards."""

import glob
import multiprocessing
import os
import sys

import numpy as np
import tiktoken
from datasets import load_dataset

SHARD_TOKENS = 100_000_000
source, out, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
encoding = tiktoken.get_encoding("gpt2")


def tokenize(row):
    """The end token, then the tokens of one row."""
    return np.array([encoding.eot_token, *encoding.encode_ordinary(row["text"])], dtype=np.uint16)


def save(number, tokens):
    """Write one shard."""
    np.save(os.path.join(out, f"shard_{number:06d}.npy"), tokens)


def main():
    """Fill one shard after the other; a document may continue in the next one."""
    rows = load_dataset("parquet", data_files=sorted(glob.glob(os.path.join(source, "*.parquet"))), split="train")
    shard, filled, number = np.empty(SHARD_TOKENS, np.uint16), 0, 0
    with multiprocessing.Pool(workers) as pool:
        for tokens in pool.imap(tokenize, rows, chunksize=16):
            taken = min(len(tokens), SHARD_TOKENS - filled)
            shard[filled : filled + taken] = tokens[:taken]
            filled += taken
            if filled == SHARD_TOKENS:
                save(number, shard)
                filled, number = len(tokens) - taken, number + 1
                shard[:filled] = tokens[taken:]
    if filled:
        save(number, shard[:filled])


if __name__ == "__main__":
    main()
