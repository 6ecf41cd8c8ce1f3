"""litdata: `optimize` over the files with tiktoken, for its TokensLoader."""

import glob
import os
import sys

import pyarrow.parquet as pq
import tiktoken
import torch
from litdata import TokensLoader, optimize

source, out, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
encoding = tiktoken.get_encoding("gpt2")


def tokenize(path):
    """The tokens of each row of a file, and the end token."""
    for batch in pq.ParquetFile(path).iter_batches(columns=["text"]):
        for text in batch["text"].to_pylist():
            yield torch.tensor([*encoding.encode_ordinary(text), encoding.eot_token], dtype=torch.uint16)


if __name__ == "__main__":
    optimize(
        fn=tokenize,
        inputs=sorted(glob.glob(os.path.join(source, "*.parquet"))),
        output_dir=out,
        num_workers=workers,
        chunk_bytes="64MB",
        item_loader=TokensLoader(),
    )
