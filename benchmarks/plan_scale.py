"""What 200,000 units cost before, beside and after the work: `plan`, `status`, and a resume that has 100 units left.

Two corpora of tiny documents are made, one unit each (--unit-bytes 1 keeps row groups and files apart): Parquet files
of 1,000 row groups of one row, and .txt files, 1,000 to a directory. The run is frozen and all but 100 parts are made
through the library, by several processes and without waiting for the disk; every part holds the true tokens, so the
store is a real one. Then each command is run and timed from start to exit:

    plan              `tokenmill plan`
    status, stopped   `tokenmill status` of the store with 100 parts missing
    resume            `tokenmill prepare`: finds what is missing, does it, reads all summaries, writes the manifest
    status, complete  `tokenmill status` of the complete store

`tree` is the most memory that the command and its workers had together, sampled as memory.py does, `process` the most
that any one of them had resident. Ends with exit code 1 if a command takes more than 30 s or its tree more than 600 MB.

    TOKENMILL_TEST_DATA=DIR python -m benchmarks.plan_scale --json plan_scale.json
    TIKTOKEN_CACHE_DIR=DIR python -m benchmarks.plan_scale --units 2000
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.memory import Measured, measure
from benchmarks.processes import tokenmill_command
from tokenmill.executors.local import LocalExecutor
from tokenmill.options import JobOptions
from tokenmill.pipeline.planning.freeze import FrozenRun, freeze
from tokenmill.pipeline.planning.request import find_sources, make_request
from tokenmill.pipeline.unit.plan import SliceDigests
from tokenmill.sources.documents import Documents
from tokenmill.storage import Folder, folder_at
from tokenmill.store import event_log, layout
from tokenmill.store.job import Run
from tokenmill.store.part import PartContent, PartSummary, TextHash, write_part
from tokenmill.store.tables import log_run

MAX_SECONDS = 30.0
MAX_BYTES = 600e6
GROUPS_IN_FILE = 1000
FILES_IN_DIRECTORY = 1000

# The number of a unit, and the digest of its slice: a resume removes a part that was made from another slice.
PlannedUnit = tuple[int, str]


def text_of(unit: int) -> str:
    """The document of a unit."""
    return f"This is document {unit}, a short one."


def write_parquet(directory: str, units: int) -> None:
    """Files of 1,000 row groups of one row each."""
    schema = pa.schema([("text", pa.string())])
    for first in range(0, units, GROUPS_IN_FILE):
        path = os.path.join(directory, f"{first // GROUPS_IN_FILE:05d}.parquet")
        texts = [text_of(unit) for unit in range(first, min(first + GROUPS_IN_FILE, units))]
        pq.write_table(pa.table([texts], schema=schema), path, row_group_size=1, compression="zstd")


def write_text(directory: str, units: int) -> None:
    """Files of one document each."""
    for unit in range(units):
        below = os.path.join(directory, f"{unit // FILES_IN_DIRECTORY:05d}")
        if unit % FILES_IN_DIRECTORY == 0:
            os.mkdir(below)
        with open(os.path.join(below, f"{unit:07d}.txt"), "w", encoding="ascii") as file:
            file.write(text_of(unit))


@dataclass(frozen=True)
class Kind:
    """A kind of corpus: how it is written, and which source and row a unit's document has."""

    write: Callable[[str, int], None]
    units_in_source: int

    def place(self, unit: int) -> tuple[int, int]:
        """The source and row of a unit's only document."""
        return unit // self.units_in_source, unit % self.units_in_source


KINDS = {"parquet": Kind(write_parquet, GROUPS_IN_FILE), "txt": Kind(write_text, 1)}


def make_store(kind: str, sources: str, directory: str, missing: set[int], options: argparse.Namespace) -> None:
    """Freeze the run and make its parts, those of some units left out, as an interrupted run would have left them."""
    words = JobOptions(tokenizer=options.tokenizer, unit_bytes=1)
    request = make_request(words, find_sources([sources]))
    folder = folder_at(directory)
    folder.create()
    with LocalExecutor() as executor:
        frozen = freeze(folder, request, executor.start(options.workers))
    if frozen.run.units != options.units:
        raise SystemExit(f"the plan has {frozen.run.units} units, not {options.units}")
    chunks = planned_chunks(frozen, missing)
    run = msgspec.json.encode(frozen.run)
    with ProcessPoolExecutor(options.workers, multiprocessing.get_context("spawn"), skip_fsync) as pool:
        futures = [pool.submit(make_parts, kind, directory, run, chunk) for chunk in chunks]
        lines = b"".join(future.result() for future in futures)
    start = event_log.line("start", units=options.units, missing=options.units, workers=options.workers, engine="")
    event_log.append(folder, [start])
    folder.append(layout.LOG, lines)


def planned_chunks(frozen: FrozenRun, missing: set[int]) -> list[list[PlannedUnit]]:
    """All units of a run but the missing ones, 2,000 to a list, each with the digest of its slice."""
    slices = SliceDigests(frozen.plan, frozen.sources)
    units = [(unit, slices[unit]) for unit in range(frozen.run.units) if unit not in missing]
    return [units[start : start + 2000] for start in range(0, len(units), 2000)]


def skip_fsync() -> None:
    """In a process that only makes parts: the disk may take its time."""
    os.fsync = lambda _: None  # type: ignore[assignment]


def write_document(folder: Folder, run: Run, planned: PlannedUnit, place: tuple[int, int], text: str) -> bytes:
    """Write the part of a unit that has one document, at this source and row; the line that a run would have logged."""
    import tiktoken  # noqa: PLC0415 - not needed by the process that measures

    job = run.job
    encoding = tiktoken.get_encoding(job.tokenizer.name)
    tokens = [*encoding.encode_ordinary(text), *([job.end] if job.end is not None else [])]
    content = PartContent(
        tokens=np.array(tokens, job.tokenizer.dtype),
        offsets=np.array([0, len(tokens)], np.int64),
        source=np.array([place[0]], np.uint32),
        row=np.array([place[1]], np.uint64),
    )
    text_hash = TextHash()
    text_hash.update(Documents(pa.array([text], pa.large_string()), content.row))
    (unit, slice_digest), size = planned, text_hash.text_bytes
    summary = PartSummary(unit, job.digest(), 1, len(tokens), size, slice=slice_digest, text=text_hash.hexdigest())
    written = write_part(folder, summary, content)
    counts = {"tokens": len(tokens), "text_bytes": size, "seconds": 0.001, "pid": os.getpid(), "peak_bytes": 0}
    part = written.blake3[: event_log.CHECKSUM_DIGITS]
    return event_log.line("unit", unit=unit, part=part, run=log_run(run), **counts)


def make_parts(kind: str, directory: str, encoded_run: bytes, units: list[PlannedUnit]) -> bytes:
    """Write the parts of some units; the lines that a run would have logged of them."""
    run, folder = msgspec.json.decode(encoded_run, type=Run), folder_at(directory)
    return b"".join(
        write_document(folder, run, planned, KINDS[kind].place(planned[0]), text_of(planned[0])) for planned in units
    )


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    corpus: str
    command: str
    measured: Measured

    @property
    def within(self) -> bool:
        """Whether both limits were kept."""
        return self.measured.seconds <= MAX_SECONDS and self.measured.tree_bytes <= MAX_BYTES


def run_kind(kind: str, options: argparse.Namespace, directory: str) -> list[Row]:
    """Make one corpus and its store, and run the commands."""
    sources, store = os.path.join(directory, kind), os.path.join(directory, f"{kind}-store")
    os.mkdir(sources)
    started = time.perf_counter()
    KINDS[kind].write(sources, options.units)
    rows: list[Row] = []

    def run(name: str, *command: str) -> Measured:
        measured = measure([*tokenmill_command(command[0]), *command[1:]])
        rows.append(Row(kind, name, measured))
        print_row(rows[-1])
        return measured

    what = (sources, "--tokenizer", options.tokenizer, "--unit-bytes", "1", "--workers", str(options.workers))
    set_up = time.perf_counter() - started
    planned = run("plan", "plan", *what).answer
    if planned["units"] != options.units:
        raise SystemExit(f"the plan has {planned['units']} units, not {options.units}")
    started = time.perf_counter()
    missing = set(np.linspace(0, options.units - 1, options.missing).astype(int).tolist())
    make_store(kind, sources, store, missing, options)
    print(f"{kind}: set-up took {set_up + time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    run("status, stopped", "status", store)
    resumed = run("resume", "prepare", *what, "--out", store).answer
    if (resumed["units_done_now"], resumed["documents"]) != (len(missing), options.units):
        raise SystemExit(f"the resume did {resumed['units_done_now']} units and ended with {resumed['documents']}")
    run("status, complete", "status", store)
    if options.verify:
        run("verify", "verify", store, "--all")
    return rows


def print_row(row: Row) -> None:
    """One line for people; a command that failed ends the benchmark."""
    measured = row.measured
    measured.answer  # noqa: B018 - raises if the command failed
    print(
        f"{row.corpus:<10}{row.command:<20}{measured.seconds:>9.2f}{measured.tree_bytes / 1e6:>10.0f}"
        f"{measured.process_bytes / 1e6:>12.0f}  {'' if row.within else 'OVER'}",
        flush=True,
    )


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, default=200_000, help="units of each corpus (default 200000)")
    parser.add_argument("--missing", type=int, default=100, help="units left for the resume (default 100)")
    parser.add_argument("--kind", choices=list(KINDS), action="append", help="only this corpus (default: both)")
    parser.add_argument("--workers", type=int, default=2, help="workers (default 2)")
    parser.add_argument("--tokenizer", default="gpt2", help="an encoding of tiktoken's (default gpt2)")
    parser.add_argument("--verify", action="store_true", help="also run `verify --all`, which has no limits here")
    parser.add_argument("--tmp", help="where the temporary directory is made")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    data = os.environ.get("TOKENMILL_TEST_DATA")
    if data and "TIKTOKEN_CACHE_DIR" not in os.environ:
        os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(data, "vocab")
    return options


def main() -> int:
    """Measure and tell."""
    options = read_options()
    rows: list[Row] = []
    print(f"{options.units:,} units\n{'corpus':<10}{'command':<20}{'seconds':>9}{'tree MB':>10}{'process MB':>12}")
    with tempfile.TemporaryDirectory(dir=options.tmp, prefix="tokenmill-plan-") as directory:
        for kind in options.kind or KINDS:
            rows += run_kind(kind, options, directory)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            figures = [asdict(row) | {"measured": row.measured.figures()} for row in rows]
            json.dump({"units": options.units, "rows": figures}, file, indent=2)
    over = [row for row in rows if not row.within and row.command != "verify"]
    for row in over:
        print(f"error: {row.command} of {row.corpus} passes {MAX_SECONDS:.0f} s or {MAX_BYTES / 1e6:.0f} MB")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
