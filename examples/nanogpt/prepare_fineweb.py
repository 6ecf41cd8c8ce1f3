"""FineWeb or FineWeb-Edu as nanoGPT's train.bin and val.bin: one call of tokenmill.

    python prepare_fineweb.py --version 10B                     # the Hub's sample of 10 billion tokens: 28.5 GB
    python prepare_fineweb.py --sample 013_00000.parquet        # files of it that you have

Run it again after any interruption: only what is missing is done.
"""

from __future__ import annotations

import argparse
import os
import sys

import tokenmill

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--dataset", default="fineweb-edu", help="as `tokenmill datasets` lists them [fineweb-edu]")
parser.add_argument("--version", default="10B", help="a sample of it, or a dump such as CC-MAIN-2024-10 [10B]")
parser.add_argument("--sample", nargs="+", metavar="FILE", help="local Parquet files instead of the Hub's")
parser.add_argument("--out", metavar="DIR", help="[DATASET-VERSION]")
parser.add_argument("--tokenizer", default="gpt2", help="of at most 65,536 ids [gpt2]")
parser.add_argument("--eot", help="the end token, if the tokenizer does not say")
options = parser.parse_args()

sources, out = options.sample or options.dataset, options.out or f"{options.dataset}-{options.version}"
words = {"version": None if options.sample else options.version, "tokenizer": options.tokenizer, "eot": options.eot}
try:
    tokenmill.prepare(sources, out=out, to="nanogpt", val=0.0005, shuffle=1337, **words)
except tokenmill.TokenmillError as error:
    hint = "" if options.sample else "\nTo run on Parquet files that you have: --sample FILE..."
    sys.exit(f"error: {error}{hint}")
for name in ("train.bin", "val.bin"):
    path = os.path.join(out, "nanogpt", name)
    there = os.path.exists(path)  # of a few documents, none may be held out
    print(f"{path}  {os.path.getsize(path) // 2:,} tokens" if there else f"{path}  not written: no document is in it")
