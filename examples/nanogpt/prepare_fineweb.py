"""FineWeb or FineWeb-Edu as nanoGPT's train.bin and val.bin: one call of tokenmill.

    python prepare_fineweb.py --version 10B                     # the Hub's sample of 10 billion tokens
    python prepare_fineweb.py --sample 013_00000.parquet        # files of it that you have

Run it again after any interruption: only what is missing is done.
"""

from __future__ import annotations

import argparse
import os
import sys

import tokenmill

REVISIONS = {
    "fineweb": "9bb295ddab0e05d785b879661af7260fed5140fc",
    "fineweb-edu": "87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", choices=REVISIONS, default="fineweb-edu", help="[fineweb-edu]")
parser.add_argument("--version", choices=["10B", "100B", "350B"], default="10B", help="which sample of it [10B]")
parser.add_argument("--sample", nargs="+", metavar="FILE", help="local Parquet files instead of the Hub's")
parser.add_argument("--out", metavar="DIR", help="[DATASET-VERSION]")
parser.add_argument("--tokenizer", default="gpt2", help="of at most 65,536 ids [gpt2]")
parser.add_argument("--eot", help="the end token, if the tokenizer does not say")
options = parser.parse_args()

hub = f"hf://datasets/HuggingFaceFW/{options.dataset}@{REVISIONS[options.dataset]}/sample/{options.version}T/*.parquet"
sources, out = options.sample or hub, options.out or f"{options.dataset}-{options.version}"
words = {"tokenizer": options.tokenizer, "eot": options.eot}
try:
    tokenmill.prepare(sources, out=out, to="nanogpt", val=0.0005, shuffle=1337, **words)
except tokenmill.TokenmillError as error:
    hint = "" if options.sample else "\nTo run on Parquet files that you have: --sample FILE..."
    sys.exit(f"error: {error}{hint}")
for name in ("train.bin", "val.bin"):
    path = os.path.join(out, "nanogpt", name)
    there = os.path.exists(path)  # of a few documents, none may be held out
    print(f"{path}  {os.path.getsize(path) // 2:,} tokens" if there else f"{path}  not written: no document is in it")
