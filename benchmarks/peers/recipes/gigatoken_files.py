"""gigatoken alone: `encode_files` of Parquet with its own threads. The tokens stay in memory; nothing is written.

With a fifth argument the tokens are written after all, with end tokens between documents, to be compared.
"""

import glob
import os
import sys

source, out, workers, vocabulary = sys.argv[1:5]
os.environ["RAYON_NUM_THREADS"] = workers

import awkward  # noqa: E402, F401 - encode_files would import it
import gigatoken  # noqa: E402

tokenizer = gigatoken.Tokenizer.from_tiktoken(vocabulary, pretokenizer="gpt2", special_tokens={})
files = sorted(glob.glob(os.path.join(source, "*.parquet")))
result = tokenizer.encode_files(gigatoken.ParquetFileSource(files), parallel=True)

if len(sys.argv) > 5:
    import numpy as np

    tokens, edges = np.asarray(result.layout.content.data), np.asarray(result.layout.offsets.data)
    np.insert(tokens, edges[1:], 50256).astype(np.uint16).tofile(os.path.join(out, "tokens.bin"))
