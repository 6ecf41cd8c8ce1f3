"""How fast training batches are read: one process, random sequences of 2,048 tokens, in rounds that take turns.

A store of random tokens is made (a billion by default, once: --store DIR keeps it) and exported to one file, as nanoGPT
reads it. Then the contenders read batches, a second at a time, in turn, so that all of them have the same machine:

    memmap             nanoGPT's get_batch in NumPy: windows at random positions of a np.memmap, cast to int64, twice
    tokenmill          `tokenmill.loader`, the batches of consecutive steps
    tokenmill, val     the same with 1 % of the documents held out
    tokenmill, fields  the same with position_ids, document_ids and cu_seqlens
    tokenmill, packed  the same with packing="best-fit"
    torch              `TokenDataLoader` without workers, if torch is installed
    grain              `grain.MapDataset` of a TokenSource, if Grain is installed
    litdata, mds       the readers of litdata and MosaicML Streaming on exports of the store, if they are installed

The table has the median of the rounds and its ratio to memmap. For each, a fresh process is timed to its first batch
(imports apart), with the memory that it holds then, and the bytes of its index and its state.

--parts N makes up a manifest of so many parts instead (1,100,000 of 13.6 million tokens are 15 trillion) with the few
parts that the first batch needs, and times a fresh process to that batch. Ends with exit code 1 if that takes a second
or more, or a gigabyte, or if a file was written to the store; or, without --parts, if tokenmill is slower than 0.85 of
memmap.

--packing with --store DIR counts the documents of a store that fit into a row but are cut, for rows of 2,048 and 8,192
tokens: by concatenation, and by best-fit in windows of some sizes, with the processor time of packing. Neither pads.

    python -m benchmarks.loader --json loader.json
    python -m benchmarks.loader --tokens 20000000 --rounds 3
    python -m benchmarks.loader --parts 1100000
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import tokenmill
import tokenmill.api.loader  # the time of imports is not measured
from benchmarks.synthetic import make_store
from tokenmill.loader.packing import WINDOW_GRAINS, pack
from tokenmill.loader.reader import DEFAULT_GRAIN
from tokenmill.storage import folder_at
from tokenmill.store import layout, tables
from tokenmill.store.part import PartContent, PartSummary, publish_part
from tokenmill.store.run import require_run

SEQUENCE = 2048
MIN_RATIO = 0.85
MAX_FIRST_SECONDS = 1.0
MAX_FIRST_BYTES = 1e9
# A part of FineWeb's size: 15 trillion tokens in 1.1 million parts.
WIDE_PART_TOKENS = 13_636_364
# Windows of packing that are compared, in grains.
WINDOWS = (8, 16, 32, 64, 128)
FIELDS: Any = ["input_ids", "labels", "position_ids", "document_ids", "cu_seqlens"]

# Yields the tokens of one batch after the other, for ever.
Contender = Callable[[str, int], Iterator[int]]


def memmap(store: str, rows: int) -> Iterator[int]:
    """The get_batch of nanoGPT, without torch."""
    data = np.memmap(os.path.join(store, "nanogpt", "train.bin"), np.uint16, "r")
    generator = np.random.default_rng(1)
    while True:
        starts = generator.integers(0, len(data) - SEQUENCE, rows)
        inputs = np.stack([data[start : start + SEQUENCE].astype(np.int64) for start in starts])
        labels = np.stack([data[start + 1 : start + 1 + SEQUENCE].astype(np.int64) for start in starts])
        yield min(inputs.size, labels.size)


def ours(store: str, rows: int, **options: Any) -> Iterator[int]:
    """The loader, step by step."""
    loader = tokenmill.loader(store, sequence_tokens=SEQUENCE, batch_sequences=rows, rank=0, world_size=1, **options)
    while True:
        for batch in loader:
            yield batch["input_ids"].size


def with_torch(store: str, rows: int) -> Iterator[int]:
    """The data loader for PyTorch, in this process."""
    from tokenmill.loader.torch import TokenDataLoader  # noqa: PLC0415 - only if torch is installed

    loader = tokenmill.loader(store, sequence_tokens=SEQUENCE, batch_sequences=rows, rank=0, world_size=1)
    while True:
        for batch in TokenDataLoader(loader):
            yield batch["input_ids"].numel()


def with_grain(store: str, rows: int) -> Iterator[int]:
    """Grain, which reads single sequences and batches them."""
    import grain  # noqa: PLC0415 - only if it is installed

    from tokenmill.loader.grain import TokenSource  # noqa: PLC0415

    loader = tokenmill.loader(store, sequence_tokens=SEQUENCE, rank=0, world_size=1)
    for batch in grain.MapDataset.source(TokenSource(loader)).repeat().batch(rows):
        yield batch["input_ids"].size


def with_litdata(store: str, rows: int) -> Iterator[int]:
    """The streaming dataset of litdata over an export, shuffled, and its data loader."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader  # noqa: PLC0415 - only if it is installed

    items = TokensLoader(block_size=SEQUENCE + 1)
    dataset = StreamingDataset(os.path.join(store, "litdata", "train"), item_loader=items, shuffle=True)
    while True:
        for batch in StreamingDataLoader(dataset, batch_size=rows):
            yield len(batch) * SEQUENCE


def with_streaming(store: str, rows: int) -> Iterator[int]:
    """MosaicML Streaming over an export, shuffled."""
    from streaming import StreamingDataset  # noqa: PLC0415 - only if it is installed
    from torch.utils.data import DataLoader  # noqa: PLC0415

    dataset = StreamingDataset(local=os.path.join(store, "mds", "train"), shuffle=True, batch_size=rows)
    while True:
        for batch in DataLoader(dataset, batch_size=rows):
            yield batch["tokens"].numel()


CONTENDERS: dict[str, Contender] = {
    "memmap": memmap,
    "tokenmill": ours,
    "tokenmill, val": functools.partial(ours, val=0.01),
    "tokenmill, fields": functools.partial(ours, fields=FIELDS),
    "tokenmill, packed": functools.partial(ours, packing="best-fit"),
    "torch": with_torch,
    "grain": with_grain,
    "litdata": with_litdata,
    "mds": with_streaming,
}
MODULES = {"torch": "torch", "grain": "grain", "litdata": "litdata", "mds": "streaming"}
EXPORTS = {"memmap": "nanogpt", "litdata": "litdata", "mds": "mds"}


def first_batch(name: str, store: str, rows: int) -> dict[str, float]:
    """Seconds to the first batch, imports apart, and the resident memory after it. Run in a fresh process."""
    pa.chunked_array([[0]]).to_numpy()  # imports pandas if it is installed
    begun, cpu_begun = time.perf_counter(), time.process_time()
    next(CONTENDERS[name](store, rows))
    seconds, cpu_seconds = time.perf_counter() - begun, time.process_time() - cpu_begun
    with open("/proc/self/status", encoding="ascii") as file:
        values = dict(line.split(":", 1) for line in file)
    return {"seconds": seconds, "cpu_seconds": cpu_seconds, "bytes": int(values["VmRSS"].split()[0]) * 1024}


def in_a_fresh_process(name: str, store: str, rows: int) -> dict[str, float]:
    """The same, in a process of its own."""
    code = (
        "import json, sys, benchmarks.loader as b; print(json.dumps(b.first_batch(*sys.argv[1:3], int(sys.argv[3]))))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code, name, store, str(rows)], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise SystemExit(f"{name}: {ended.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return figures


def race(store: str, rows: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Tokens per second of each contender in each round. The first round is not counted."""
    names = [name for name in CONTENDERS if name not in MODULES or importlib.util.find_spec(MODULES[name])]
    readers = {name: CONTENDERS[name](store, rows) for name in names}
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name, reader in readers.items():
            tokens, begun = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - begun) < seconds:
                tokens += next(reader)
            if number:
                speeds[name].append(tokens / elapsed)
    return speeds


def compare(options: argparse.Namespace, store: str) -> tuple[dict[str, Any], list[str]]:
    """Make and export the store, let the contenders read it, and print the table."""
    if not os.path.exists(os.path.join(store, layout.RUN)):
        make_store(store, options.tokens)
    for name, form in EXPORTS.items():
        if name not in MODULES or importlib.util.find_spec(MODULES[name]):
            more: dict[str, Any] = {"sequence_tokens": SEQUENCE} if form == "mds" else {}
            tokenmill.export(store, to=form, val="none", **more)  # type: ignore[arg-type]
    tokenmill.loader(store, val=0.01, rank=0, world_size=1)  # the table of the split is made once
    speeds = race(store, options.rows, options.rounds, options.seconds)
    base = statistics.median(speeds["memmap"])
    print("| reader | M tokens/s | of memmap | first batch, s | resident, MB |\n| --- | ---: | ---: | ---: | ---: |")
    rows: dict[str, Any] = {}
    for name, found in speeds.items():
        first = in_a_fresh_process(name, store, options.rows)
        ratio = statistics.median(found) / base
        rows[name] = {"tokens_per_second": found, "ratio": ratio, "first_batch": first}
        print(
            f"| {name} | {statistics.median(found) / 1e6:.0f} | {ratio:.2f} | {first['seconds']:.3f} "
            f"| {first['bytes'] / 1e6:.0f} |"
        )
    loader = tokenmill.loader(store, val=0.01, rank=0, world_size=1)
    state = len(json.dumps(loader.state_dict()))
    index = os.path.getsize(os.path.join(store, layout.SPLITS, "val-0.01.parquet"))
    print(f"\nstate {state} bytes; index 0 bytes, {index} with a split")
    problems = [] if rows["tokenmill"]["ratio"] >= MIN_RATIO else [f"tokenmill is below {MIN_RATIO} of memmap"]
    return {"readers": rows, "state_bytes": state, "split_bytes": index}, problems


def make_wide_store(store: str, parts: int, rows: int) -> None:
    """A store whose manifest lists so many parts, of which only those exist that the first batch needs."""
    small = os.path.join(store, "small")
    make_store(small, 1)
    for name in (layout.TOKENIZER, layout.SOURCES):
        (shutil.copytree if name == layout.TOKENIZER else shutil.copyfile)(
            os.path.join(small, name), os.path.join(store, name)
        )
    run = require_run(folder_at(small))
    shutil.rmtree(small)
    folder = folder_at(store)
    folder.create(layout.PARTS)
    columns: dict[str, Any] = {"source": np.zeros(parts, np.uint32), "sources": np.ones(parts, np.uint32)}
    columns |= {"start": np.arange(parts), "stop": np.arange(1, parts + 1)}
    columns |= {"text_bytes": np.full(parts, 64 << 20), "rows": np.full(parts, 20_000)}
    arrays = [
        pa.array(columns[name]) if name in columns else pa.nulls(parts, pa.large_binary())
        for name in tables.PLAN_SCHEMA.names
    ]
    plan = tables.table_bytes(pa.table(arrays, schema=tables.PLAN_SCHEMA))
    with folder.publish(layout.PLAN) as file:
        file.write(plan)
    run = msgspec.structs.replace(run, units=parts, plan_sha256=hashlib.sha256(plan).hexdigest())
    layout.publish_json(folder, layout.RUN, run)
    hashes = [hashlib.sha256(b"%d" % part).hexdigest() for part in range(parts)]
    length = WIDE_PART_TOKENS
    counts: dict[str, Any] = {
        "unit": np.arange(parts),
        "documents": 1,
        "tokens": length,
        "text_bytes": 4 * length,
        "skipped": 0,
    }
    counts |= {"quarantined": 0, "bytes": 2 * length + 4096}
    manifest = {name: np.broadcast_to(value, parts) for name, value in counts.items()}
    texts = {"sha256": hashes, "xxh3": [text[:32] for text in hashes]}
    arrays = [pa.array(texts[name] if name in texts else manifest[name]) for name in tables.MANIFEST_SCHEMA.names]
    tables.publish_manifest(folder, run, pa.table(arrays, schema=tables.MANIFEST_SCHEMA))
    loader = tokenmill.loader(store, sequence_tokens=SEQUENCE, batch_sequences=rows, rank=0, world_size=1)
    needed = {
        some.part for span in loader.reader.spans(0, rows) for some in span.stream.ranges(span.start, span.stop + 1)
    }
    for part in needed:
        content = PartContent(
            np.zeros(length, np.uint16), np.array([0, length]), np.zeros(1, np.uint32), np.full(1, part, np.uint64)
        )
        summary = PartSummary(part, run.job.digest(), 1, length, 4 * length, hashes[part], xxh3=hashes[part][:32])
        publish_part(folder, summary, content)


def measure_wide(options: argparse.Namespace, store: str) -> tuple[dict[str, Any], list[str]]:
    """Time a fresh process to the first batch of a store with many parts."""
    make_wide_store(store, options.parts, options.rows)
    before = sorted(os.listdir(store))
    figures = [in_a_fresh_process("tokenmill", store, options.rows) for _ in range(options.rounds)]
    best = {name: min(each[name] for each in figures) for name in ("seconds", "bytes")}
    print(f"{options.parts:,} parts: first batch after {best['seconds']:.2f} s with {best['bytes'] / 1e6:.0f} MB")
    problems = [] if best["seconds"] < MAX_FIRST_SECONDS else ["the first batch takes a second or more"]
    problems += [] if best["bytes"] < MAX_FIRST_BYTES else ["the first batch takes a gigabyte or more"]
    problems += [] if sorted(os.listdir(store)) == before else ["a file was written to the store"]
    return {"parts": options.parts, "rounds": figures}, problems


def measure_packing(_: argparse.Namespace, store: str) -> tuple[dict[str, Any], list[str]]:
    """Count the cut documents of a store, for some lengths of rows and sizes of windows."""
    lengths = np.concatenate([np.diff(part.offsets) for part in tokenmill.open(store).parts()])
    ends = np.cumsum(lengths)
    starts = ends - lengths
    figures: dict[str, Any] = {}
    print("| row | packing | documents cut, % | ms for a million tokens |\n| ---: | --- | ---: | ---: |")
    for row in (2048, 8192):
        fits = (lengths > 0) & (lengths <= row)
        cut = int((fits & (starts // row != (ends - 1) // row)).sum())
        figures[f"{row} concat"] = {"cut": cut / int(fits.sum())}
        print(f"| {row} | concat | {100 * cut / fits.sum():.1f} | |")
        for grains in WINDOWS:
            cut, seconds = _cut_in_windows(starts[lengths > 0], ends[lengths > 0], grains * DEFAULT_GRAIN, row)
            figures[f"{row} best-fit {grains}"] = {"cut": cut / int(fits.sum()), "seconds": seconds}
            name = f"best-fit, {grains} grains{' (default)' * (grains == WINDOW_GRAINS)}"
            print(f"| {row} | {name} | {100 * cut / fits.sum():.1f} | {1e9 * seconds / ends[-1]:.0f} |")
    return figures, []


def _cut_in_windows(starts: Any, ends: Any, window: int, row: int) -> tuple[int, float]:
    """How many documents that fit into a row are cut, also at the edges of windows, and the seconds of packing."""
    cut, seconds = 0, 0.0
    for low in range(0, (int(ends[-1]) - 1) // DEFAULT_GRAIN * DEFAULT_GRAIN, window):
        high = min(low + window, (int(ends[-1]) - 1) // DEFAULT_GRAIN * DEFAULT_GRAIN)
        inside = slice(np.searchsorted(ends, low, side="right"), np.searchsorted(starts, high))
        begins = np.maximum(starts[inside] - low, 0)
        begun = time.process_time()
        rows = pack(begins, high - low, row, is_last_cut=bool(ends[inside][-1] > high))
        seconds += time.process_time() - begun
        pieces = np.bincount(np.searchsorted(begins, rows.starts, side="right") - 1, minlength=len(begins))
        whole = (pieces == 1) & (starts[inside] >= low) & (ends[inside] <= high)
        cut += int((~whole & (ends[inside] - starts[inside] <= row)).sum())
    return cut, seconds


def main() -> int:
    """Measure, print, and compare with the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=10**9, help="tokens of the store (default a billion)")
    parser.add_argument("--store", help="directory of the store; it is made if it does not exist, and kept")
    parser.add_argument("--rows", type=int, default=32, help="sequences of a batch (default 32)")
    parser.add_argument("--rounds", type=int, default=7, help="rounds (default 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time of a contender in a round (default 1)")
    parser.add_argument("--parts", type=int, help="measure the first batch of a store with so many parts instead")
    parser.add_argument("--packing", action="store_true", help="count the cut documents of --store instead")
    parser.add_argument("--tmp", help="where the temporary directory is made")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    if options.packing and not options.store:
        parser.error("--packing needs --store DIR")
    with tempfile.TemporaryDirectory(dir=options.tmp, prefix="tokenmill-loader-") as scratch:
        store = options.store or scratch
        figures, problems = (measure_wide if options.parts else measure_packing if options.packing else compare)(
            options, store
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(figures | {"problems": problems}, file, indent=2)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
