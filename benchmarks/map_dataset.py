"""`tokenmill.map_dataset` and `tokenize_fn` against `dataset.map` with tiktoken: the same rows, interleaved in one run.

    python benchmarks/map_dataset.py CORPUS [--repeat 10] [--rounds 3] [--num-proc 2]

CORPUS is a directory of Parquet files with a text column. The tiktoken encoder and the drop-in are built before the
clock starts, as in the usual script. `map_dataset` is measured with workers started anew, and with a pool at hand.
Exit code 1 if any row differs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import tiktoken

import tokenmill
from tokenmill.executors.local import LocalExecutor
from tokenmill.pipeline import worker_modules


def load(corpus: Path, repeat: int, scratch: Path) -> Any:
    """The corpus, several times over, as people load it."""
    (scratch / "corpus").mkdir()
    for copy in range(repeat):
        for file in sorted(corpus.glob("*.parquet")):
            (scratch / "corpus" / f"{copy:03d}-{file.name}").symlink_to(file.resolve())
    files = str(scratch / "corpus" / "*.parquet")
    return datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(scratch / "cache"))


def by_tiktoken(tokenizer: str) -> Callable[[dict[str, str]], dict[str, Any]]:
    """The function of the usual recipe."""
    encoding = tiktoken.get_encoding(tokenizer)

    def process(row: dict[str, str]) -> dict[str, Any]:
        ids = encoding.encode_ordinary(row["text"])
        ids.append(encoding.eot_token)
        return {"ids": ids, "len": len(ids)}

    return process


def flat(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """All tokens one after the other, and the number of each row's."""
    table = dataset.data.table
    ids = np.concatenate([chunk.flatten().to_numpy().astype(np.uint32) for chunk in table["ids"].chunks])
    return ids, table["len"].to_numpy()


def main() -> int:
    """Run, compare, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-proc", type=int, default=2)
    parser.add_argument("--tokenizer", default="gpt2")
    options = parser.parse_args()
    datasets.disable_progress_bars()
    scratch = Path(tempfile.mkdtemp())
    try:
        return measure(options, scratch)
    finally:
        shutil.rmtree(scratch)


def measure(options: argparse.Namespace, scratch: Path) -> int:
    """Time each way in turn, several times."""
    dataset = load(options.corpus, options.repeat, scratch)
    text_bytes = sum(chunk.buffers()[2].size for chunk in dataset.data.table["text"].chunks)
    tokenizer, num_proc, cache = options.tokenizer, options.num_proc, str(scratch / "tokens")
    recipe, drop_in = by_tiktoken(tokenizer), tokenmill.tokenize_fn(tokenizer)
    drop_in("The encoder is built.")
    usual = {"remove_columns": ["text"], "num_proc": num_proc, "load_from_cache_file": False}
    with LocalExecutor(worker_modules("auto")) as pool:
        ours = {"num_proc": num_proc, "cache_dir": cache}
        ways: dict[str, Callable[[], Any]] = {
            "dataset.map(tiktoken)": lambda: dataset.map(recipe, **usual),
            "dataset.map(tokenize_fn)": lambda: dataset.map(drop_in, **usual),
            "dataset.map(tokenize_fn, batched=True)": lambda: dataset.map(drop_in, batched=True, **usual),
            "map_dataset": lambda: tokenmill.map_dataset(dataset, tokenizer, **ours),
            "map_dataset, pool at hand": lambda: tokenmill.map_dataset(dataset, tokenizer, executor=pool, **ours),
        }
        shutil.rmtree(cache, ignore_errors=True)
        ways["map_dataset, pool at hand"]()  # the pool has started, as the encoder of the others has
        seconds, results = rounds(ways, options.rounds, cache)
    expected = flat(results["dataset.map(tiktoken)"])
    equal = all(np.array_equal(a, b) for found in results.values() for a, b in zip(flat(found), expected, strict=True))
    base = min(seconds["dataset.map(tiktoken)"])
    print(f"{len(dataset):,} rows, {text_bytes / 1e6:.0f} MB of text, {len(expected[0]):,} tokens, equal: {equal}")
    for name, times in seconds.items():
        best = min(times)
        rate, factor = text_bytes / best / 1e6, base / best
        print(f"{name:<40} {best:7.2f} s  {rate:7.1f} MB/s  {factor:6.1f} x   all {rounded(times)}")
    print(json.dumps({"seconds": seconds, "text_bytes": text_bytes, "equal": equal, "cores": os.cpu_count()}))
    return 0 if equal else 1


def rounds(ways: dict[str, Callable[[], Any]], count: int, cache: str) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """The times of each way, one after the other in every round, and the last result of each."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    results = {}
    for _ in range(count):
        for name, way in ways.items():
            shutil.rmtree(cache, ignore_errors=True)
            started = time.perf_counter()
            results[name] = way()
            seconds[name].append(time.perf_counter() - started)
    return seconds, results


def rounded(times: list[float]) -> str:
    """Times in short."""
    return " ".join(f"{each:.2f}" for each in times)


if __name__ == "__main__":
    sys.exit(main())
