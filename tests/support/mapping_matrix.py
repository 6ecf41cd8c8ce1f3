"""Run by test_tokenize_fn.py as a script of its own, as users' scripts are: `datasets.map` in every way to call it.

    python mapping_matrix.py START_METHOD USED_BEFORE CACHE PROCESSES TOKENIZER...

Prints a JSON object for each case: what was asked, the tokens, and whether a second call was served from the cache.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

TEXTS = ["", "Hello, world!", "<|endoftext|>", "naïve café 日本語 👩‍👩‍👧‍👦", "  1234567\n\n\tx", "the " * 50] * 16


def main(method: str, used_before: str, cache: str, counts: list[int], tokenizers: list[str]) -> None:
    """Map the texts with every tokenizer, batched or not, with every number of processes."""
    import datasets
    import multiprocess

    import tokenmill
    from tokenmill.tokenization import tokenize_fn

    datasets.disable_progress_bars()
    multiprocess.set_start_method(method)
    if method == "forkserver":
        multiprocess.set_forkserver_preload(["datasets", "tokenmill.tokenization.tokenize_fn"])
    functions = {tokenizer: tokenmill.tokenize_fn(tokenizer) for tokenizer in tokenizers}
    if used_before == "used":
        for function in functions.values():
            function("The parent has encoded something.")
    for processes in counts:
        assert used_before == "used" or processes == 1 or not tokenize_fn._loaded
        # One that has files, and so a cache; of its own, because results of another number of processes would be used.
        datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(f"{cache}-{processes}")
        dataset = datasets.load_from_disk(f"{cache}-{processes}")
        for tokenizer, function in functions.items():
            for batched in (False, True):
                told = {"tokenizer": tokenizer, "batched": batched, "processes": processes}
                sys.stdout.write(json.dumps(told | mapped(dataset, function, batched, processes)) + "\n")


def mapped(dataset: Any, function: Any, batched: bool, processes: int) -> dict[str, Any]:
    """The tokens, and whether a second call is served from the cache."""
    words = {"batched": batched, "num_proc": processes, "remove_columns": ["text"]}
    started = time.monotonic()
    first = dataset.map(function, **words)
    seconds = time.monotonic() - started
    files = {entry["filename"] for entry in first.cache_files}
    times = {name: modified(name) for name in files}
    second = dataset.map(function, **words)
    same = {entry["filename"] for entry in second.cache_files} == files
    return {
        "seconds": seconds,
        "files": len(files),
        "ids": first["ids"][:],
        "len": first["len"][:],
        "from_cache": bool(files) and same and times == {name: modified(name) for name in files},
    }


def modified(path: str) -> int:
    """When a file was last written."""
    return os.stat(path).st_mtime_ns


if __name__ == "__main__":
    method, used_before, cache, counts, *tokenizers = sys.argv[1:]
    main(method, used_before, cache, [int(count) for count in counts.split(",")], tokenizers)
