"""MosaicML Streaming: one process that encodes with tiktoken and gives MDSWriter samples of 2,048 tokens."""

import glob
import os
import sys

import numpy as np
import pyarrow.parquet as pq
import tiktoken
from streaming import MDSWriter

SAMPLE_TOKENS = 2048
source, out = sys.argv[1:3]
encoding = tiktoken.get_encoding("gpt2")


def texts():
    """Every document."""
    for path in sorted(glob.glob(os.path.join(source, "*.parquet"))):
        for batch in pq.ParquetFile(path).iter_batches(columns=["text"]):
            yield from batch["text"].to_pylist()


def main():
    """Cut the stream of tokens into samples; a shorter one at the end is kept."""
    held = []
    with MDSWriter(out=out, columns={"tokens": "ndarray:uint16"}) as writer:
        for text in texts():
            held += [*encoding.encode_ordinary(text), encoding.eot_token]
            whole = len(held) // SAMPLE_TOKENS * SAMPLE_TOKENS
            for start in range(0, whole, SAMPLE_TOKENS):
                writer.write({"tokens": np.array(held[start : start + SAMPLE_TOKENS], np.uint16)})
            held = held[whole:]
        if held:
            writer.write({"tokens": np.array(held, np.uint16)})


if __name__ == "__main__":
    main()
