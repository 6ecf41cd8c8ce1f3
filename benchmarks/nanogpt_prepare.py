"""nanoGPT's way to prepare a dataset, and the same script migrated by `tokenize_fn` and by `map_dataset`.

    python benchmarks/nanogpt_prepare.py CORPUS [--rounds 3] [--num-proc 2]

CORPUS is a directory of Parquet files with a text column. Each way splits the rows (shuffled, 0.05 % for validation),
tokenizes them and writes `train.bin` and `val.bin` in up to 1,024 batches, with the same writing loop; the ways that
end in `+arrow` write the Arrow buffers as they are instead. The clock starts after the dataset is loaded.
Each run is a process of its own. Exit code 1 if any file differs from the original's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import datasets
import numpy as np

WAYS = ("tiktoken", "tokenize_fn", "map_dataset", "tokenize_fn+arrow", "map_dataset+arrow")
BATCHES = 1024
ROWS_PER_BATCH = 10_000
SPLIT_SEED = 2357
VAL_FRACTION = 0.0005


def tokenized(way: str, split: Any, num_proc: int, cache: str) -> Any:
    """The splits with `ids` and `len`."""
    if way == "tiktoken":
        import tiktoken  # noqa: PLC0415 - each way pays for its own imports

        encoding = tiktoken.get_encoding("gpt2")

        def process(row: dict[str, str]) -> dict[str, Any]:
            ids = encoding.encode_ordinary(row["text"])
            ids.append(encoding.eot_token)
            return {"ids": ids, "len": len(ids)}

        return split.map(process, remove_columns=["text"], num_proc=num_proc)
    import tokenmill  # noqa: PLC0415

    if way == "tokenize_fn":
        return split.map(tokenmill.tokenize_fn("gpt2"), batched=True, remove_columns=["text"], num_proc=num_proc)
    return tokenmill.map_dataset(split, "gpt2", num_proc, cache_dir=cache)


def write(dataset: Any, path: Path) -> None:
    """Fill a memory map batch by batch."""
    total = int(np.sum(dataset["len"], dtype=np.uint64))
    tokens = np.memmap(path, dtype=np.uint16, mode="w+", shape=(total,))
    batches = min(BATCHES, len(dataset))
    position = 0
    for number in range(batches):
        batch = dataset.shard(num_shards=batches, index=number, contiguous=True).with_format("numpy")
        ids = np.concatenate(batch["ids"])
        tokens[position : position + len(ids)] = ids
        position += len(ids)
    tokens.flush()


def write_arrow(dataset: Any, path: Path) -> None:
    """Append the token buffers of each batch."""
    with path.open("wb") as file:
        for batch in dataset.with_format("arrow", columns=["ids"]).iter(ROWS_PER_BATCH):
            for chunk in batch["ids"].chunks:
                file.write(chunk.flatten().to_numpy().astype(np.uint16, copy=False))


def run_way(way: str, corpus: Path, out: Path, num_proc: int) -> None:
    """One run: prints its seconds and the hashes of its files as JSON."""
    datasets.disable_progress_bars()
    files = [str(path) for path in sorted(corpus.glob("*.parquet"))]
    rows = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=str(out / "cache"))
    rows = rows.select_columns(["text"])
    started = time.perf_counter()
    split = rows.train_test_split(test_size=VAL_FRACTION, seed=SPLIT_SEED, shuffle=True)
    split["val"] = split.pop("test")
    library, _, writer = way.partition("+")
    ready = tokenized(library, split, num_proc, str(out / "tokens"))
    tokenize_seconds = time.perf_counter() - started
    for name, dataset in ready.items():
        (write_arrow if writer else write)(dataset, out / f"{name}.bin")
    seconds = time.perf_counter() - started
    hashes = {name: hashlib.sha256((out / f"{name}.bin").read_bytes()).hexdigest() for name in ready}
    print(json.dumps({"seconds": seconds, "tokenize_seconds": tokenize_seconds, "hashes": hashes}))


def main() -> int:
    """Run each way in turn, several times, and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--num-proc", type=int, default=2)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run_way(options.way, options.corpus, options.out, options.num_proc)
        return 0
    results: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way in WAYS:
            with tempfile.TemporaryDirectory() as scratch:
                command = [sys.executable, __file__, str(options.corpus), "--way", way, "--out", scratch]
                command += ["--num-proc", str(options.num_proc)]
                printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                results[way].append(json.loads(printed.splitlines()[-1]))
    expected = results["tiktoken"][0]["hashes"]
    is_equal = all(run["hashes"] == expected for runs in results.values() for run in runs)
    base = min(run["seconds"] for run in results["tiktoken"])
    print(f"same bytes: {is_equal}")
    for way, runs in results.items():
        best = min(runs, key=lambda run: run["seconds"])
        seconds, tokenizing = best["seconds"], best["tokenize_seconds"]
        parts = f"tokenize {tokenizing:.2f} s, write {seconds - tokenizing:.2f} s"
        print(f"{way:<18} {seconds:7.2f} s  {base / seconds:5.1f} x   ({parts})")
    print(json.dumps(results))
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
