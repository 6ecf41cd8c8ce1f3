"""Runs well: `tokenmill.tokenize_fn` in place of the function that died."""

import sys

import datasets

import tokenmill

tokenize = tokenmill.tokenize_fn(sys.argv[1] if len(sys.argv) > 1 else "gpt2")

if __name__ == "__main__":
    rows = datasets.Dataset.from_dict({"text": ["some text"] * 100})
    print(rows.map(tokenize, num_proc=2))
