"""How fast training batches are read: one process, random sequences of 2,048 tokens, in rounds that take turns.

A store of random tokens is made (a billion by default, once: --store DIR keeps it) and exported for each contender.
Each contender is a process of its own. Those that need packages get an environment of their own, which uv makes in
--environments and which is used again. They read batches, a second at a time, in turn:

    memmap             nanoGPT's get_batch in NumPy, the limit: windows at random positions of a np.memmap that is
                       opened once, cast to int64 and stacked, twice: for inputs and labels
    get_batch          nanoGPT's get_batch as it is written: the np.memmap is opened for each batch, torch.stack of
                       torch.from_numpy of each window
    windows only       one copy of each window as uint16, without a cast, labels or a batch
    tokenmill          `tokenmill.loader`, the batches of consecutive steps
    tokenmill, val     the same with 1 % of the documents held out
    tokenmill, fields  the same with position_ids, document_ids and cu_seqlens
    tokenmill, packed  the same with packing="best-fit"
    tokenmill, torch   `TokenDataLoader` without workers
    tokenmill, grain   `grain.MapDataset` of a TokenSource
    grain              Grain over a memory map, shuffled
    litdata, mds, lance, olmo-core, megatron-core
                       the readers of these projects on exports of the store

--peers names the contenders (default: those that need no other environment; `all` for all). The table has the median
of the rounds, its ratio to memmap, the time of a fresh process to its first batch (imports apart), the memory that it
holds then, and the bytes of its state and its index. A contender that cannot be installed or fails is listed with the
reason. Ends with exit code 1 if tokenmill is slower than 0.85 of memmap.

--parts N makes up a manifest of so many parts instead (1,100,000 of 13.6 million tokens are 15 trillion) with the few
parts that the first batch needs, and times a fresh process to that batch. Ends with exit code 1 if that takes a second
or more, or a gigabyte, or if a file was written to the store.

--remote compares a local store with one in a bucket behind 20 ms of latency, for a training that takes --demand tokens
a second. Ends with exit code 1 if the bucket gives less than 0.9 of the disk.

--packing with --store DIR packs the documents of a store in several ways (see benchmarks/loader_packing.py).

    python -m benchmarks.loader --peers all --json loader.json
    python -m benchmarks.loader --tokens 20000000 --rounds 3
    python -m benchmarks.loader --parts 1100000
    python -m benchmarks.loader --remote --tokens 200000000 --rounds 3 --seconds 10
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import tokenmill
from benchmarks.loader_contenders import FORMATS, PACKAGES, Worker, default_environments, race, start
from benchmarks.loader_packing import measure_packing
from benchmarks.loader_remote import measure_remote
from benchmarks.loader_start import measure_wide
from benchmarks.loader_worker import CONTENDERS, SEQUENCE
from benchmarks.synthetic import make_store
from tokenmill.store import layout

MIN_RATIO = 0.85


def compare(options: argparse.Namespace, store: str) -> tuple[dict[str, Any], list[str]]:
    """Make and export the store, let the contenders read it, and print the table."""
    if not os.path.exists(os.path.join(store, layout.RUN)):
        make_store(store, options.tokens)
    names = [name for name in CONTENDERS if name in options.peers or name == "memmap"]
    for form in dict.fromkeys(FORMATS[name] for name in names if name in FORMATS):
        more: dict[str, Any] = {"sequence_tokens": SEQUENCE} if form == "mds" else {}
        tokenmill.export(store, to=form, val="none", **more)
    if "tokenmill, val" in names:
        tokenmill.loader(store, val=0.01, rank=0, world_size=1)  # the table of the split is made once
    started = {name: start(name, store, options.rows, Path(options.environments), options.uv) for name in names}
    workers = {name: worker for name, worker in started.items() if isinstance(worker, Worker)}
    try:
        speeds = race(workers, options.rounds, options.seconds)
    finally:
        for worker in workers.values():
            worker.close()
    base = statistics.median(speeds["memmap"])
    print("| reader | M tokens/s | of memmap | first batch, s | resident, MB | state, bytes | index, bytes |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    rows: dict[str, Any] = {}
    for name, answer in started.items():
        if not isinstance(answer, Worker):
            rows[name] = {"problem": answer}
            print(f"| {name} | not measured: {answer} | | | | | |")
            continue
        first, speed = answer.first, statistics.median(speeds[name])
        rows[name] = {"tokens_per_second": speeds[name], "ratio": speed / base, "first_batch": first}
        print(
            f"| {name} | {speed / 1e6:.1f} | {speed / base:.2f} | {first['seconds']:.3f} | {first['bytes'] / 1e6:.0f} "
            f"| {first['state_bytes']:,} | {first['index_bytes']:,} |"
        )
    is_slow = "ratio" in rows.get("tokenmill", {}) and rows["tokenmill"]["ratio"] < MIN_RATIO
    return {"readers": rows, "tokens": options.tokens}, [f"tokenmill is below {MIN_RATIO} of memmap"] if is_slow else []


def parse() -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10**9, help="tokens of the store (default a billion)")
    parser.add_argument("--store", help="directory of the store; it is made if it does not exist, and kept")
    parser.add_argument("--rows", type=int, default=32, help="sequences of a batch (default 32)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time of a contender in a round (default 1)")
    parser.add_argument("--peers", nargs="*", metavar="NAME", help="contenders, or all")
    parser.add_argument("--environments", default=default_environments(), help="where uv makes environments")
    parser.add_argument("--uv", action="append", default=[], metavar="OPTION", help="option of `uv pip install`")
    parser.add_argument("--parts", type=int, help="measure the first batch of a store with so many parts instead")
    parser.add_argument("--remote", action="store_true", help="compare a bucket with a disk instead")
    parser.add_argument("--demand", type=float, default=2e6, help="tokens a second, with --remote (default 2e6)")
    parser.add_argument("--cache", default="256MB", help="cache of the loader, with --remote")
    parser.add_argument("--packing", action="store_true", help="count the cut documents of --store instead")
    parser.add_argument("--tmp", help="where the temporary directory is made")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    options.peers = options.peers or [name for name in CONTENDERS if name not in PACKAGES]
    options.peers = list(CONTENDERS) if options.peers == ["all"] else options.peers
    if unknown := [name for name in options.peers if name not in CONTENDERS]:
        parser.error(f"there is no contender {unknown[0]!r}; choose from: {'; '.join(CONTENDERS)}")
    if options.packing and not options.store:
        parser.error("--packing needs --store DIR")
    return options


def main() -> int:
    """Measure, print, and compare with the limits."""
    options = parse()
    chosen = ((options.parts, measure_wide), (options.remote, measure_remote), (options.packing, measure_packing))
    measure = next((function for is_chosen, function in chosen if is_chosen), compare)
    with tempfile.TemporaryDirectory(dir=options.tmp, prefix="tokenmill-loader-") as scratch:
        figures, problems = measure(options, options.store or scratch)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures | {"problems": problems}, file, indent=2)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
