"""tiktoken alone: all text read into memory, then one call with some threads. Nothing is written.

With a fifth argument the tokens are written after all, with an end token after each document, to be compared.
"""

import glob
import os
import sys

import pyarrow.parquet as pq
import tiktoken

source, out, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
encoding = tiktoken.get_encoding("gpt2")
files = sorted(glob.glob(os.path.join(source, "*.parquet")))
texts = [text for path in files for text in pq.read_table(path, columns=["text"])["text"].to_pylist()]
documents = encoding.encode_ordinary_batch(texts, num_threads=threads)

if len(sys.argv) > 5:
    import numpy as np

    with open(os.path.join(out, "tokens.bin"), "wb") as file:
        for tokens in documents:
            np.array([*tokens, encoding.eot_token], np.uint16).tofile(file)
