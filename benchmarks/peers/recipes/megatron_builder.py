"""The loop of Megatron-LM's preprocess_data.py, which is in no package, over megatron-core: JSON Lines through
`Pool.imap`, then one process that gives documents to the builder of the indexed dataset.
"""

import glob
import json
import multiprocessing
import os
import sys

import numpy as np
import torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
from tokenizers import Tokenizer

END = 50256
source, out, workers, vocabulary = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]


def load():
    """Each worker has a tokenizer of its own."""
    global tokenizer  # noqa: PLW0603 - as the script does
    tokenizer = Tokenizer.from_file(vocabulary) if os.path.isfile(vocabulary) else Tokenizer.from_pretrained(vocabulary)


def encode(line):
    """The tokens of one line, and the end token."""
    return [*tokenizer.encode(json.loads(line)["text"], add_special_tokens=False).ids, END]


def main():
    """Encode the lines of all files in order."""
    prefix = os.path.join(out, "train_text_document")
    builder = IndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
    with multiprocessing.Pool(workers, initializer=load) as pool:
        for path in sorted(glob.glob(os.path.join(source, "*.jsonl"))):
            with open(path, encoding="utf-8") as lines:
                for ids in pool.imap(encode, lines, 32):
                    builder.add_document(torch.IntTensor(ids), [len(ids)])
    builder.finalize(prefix + ".idx")


if __name__ == "__main__":
    main()
