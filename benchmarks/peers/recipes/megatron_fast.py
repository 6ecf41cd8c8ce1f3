"""Megatron-LM: its own tools/preprocess_data_fast.py, from a work tree of its repository, with one JSON Lines file.

The repository wants Python 3.12; of that, the script only needs `typing.override`, which 3.11 gets here.
"""

import os
import runpy
import sys
import typing

import typing_extensions

typing.override = typing_extensions.override
source, out, workers, tokenizer, repository = sys.argv[1:6]
os.environ["RAYON_NUM_THREADS"] = workers
script = os.path.join(repository, "tools", "preprocess_data_fast.py")
sys.argv = [
    script,
    *("--input", os.path.join(source, "corpus.jsonl")),
    *("--output-prefix", os.path.join(out, "train")),
    *("--tokenizer-type", "HuggingFaceTokenizer"),
    *("--tokenizer-model", tokenizer),
    "--tokenizer-hf-no-include-special-tokens",
    "--use-gigatoken",
    "--append-eod",
]
runpy.run_path(script, run_name="__main__")
