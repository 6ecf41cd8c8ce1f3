"""What a million units cost that each do next to nothing: to plan, to give out, to resume, to end and to look at.

For each size, 10,000 to 1,000,000 units, a corpus of Parquet files with 1,000 row groups of one row each is made, a
unit each (--unit-bytes 1 keeps row groups apart), and every step is a process of its own, timed from start to exit:

    plan               `tokenmill plan`
    freeze             what `tokenmill prepare` does before the first unit: look at the sources, cut them, keep the plan
    execute            the plan is read, and every unit given to a worker of the local executor, whose function does
                       nothing; two workers
    execute, ahead     the same with two more units in the hands of each worker, as where a network is in between
    execute, Ray       the same by the Ray executor, on the cluster of `ray start --head`, up to --most-ray
                       units
    run                `tokenmill.prepare` whole, but for what workers do: each writes a part of ten made-up tokens
    run, Ray           the same with on="ray", up to --most-ray units
    status, stopped    `tokenmill status` of a store in which 0.1 % of the parts are missing
    resume             `tokenmill prepare`: find what is missing, do it, read the head of every part, write the manifest
    manifest           `tokenmill finish` of the store, whose manifest was removed
    manifest, ranks    the same with the summaries of 256 ranks, so that no part is read
    status, complete   `tokenmill status` of the complete store

The parts hold the true tokens; they are made through the library, by several processes, without waiting for the disk,
in memory (/dev/shm) if there is room for them. A first round of 100 units tells what starting alone takes.

`tree` is the most memory that all processes of a step had together (see memory.py), `driver` what the first of them
had. `growth` is how many times as long the largest size takes as the one before, starting apart, for each unit: 1 is
linear. Ends with exit code 1 if a step takes more than 120 s or 2 GB, or its growth passes 1.3.

    TOKENMILL_TEST_DATA=DIR python -m benchmarks.million_units --json million_units.json
    TIKTOKEN_CACHE_DIR=DIR python -m benchmarks.million_units --units 1000 --units 10000
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

import tokenmill
from benchmarks.plan_scale import (
    GROUPS_IN_FILE,
    PlannedUnit,
    planned_chunks,
    skip_fsync,
    text_of,
    write_document,
    write_parquet,
)
from benchmarks.process_tree import Watch
from benchmarks.processes import tokenmill_command
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.outcomes import Done, Executor, RetryPolicy
from tokenmill.executors.progress import Silent
from tokenmill.executors.ranks import RankShare
from tokenmill.options import JobOptions
from tokenmill.pipeline.driving import driver
from tokenmill.pipeline.planning.freeze import freeze, load_existing
from tokenmill.pipeline.planning.request import find_sources, make_request
from tokenmill.pipeline.unit import plan as planning
from tokenmill.pipeline.unit.commit import Committed
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.storage import folder_at
from tokenmill.store import event_log, layout
from tokenmill.store.job import Job, Run, require_run
from tokenmill.store.part import PartContent, PartSummary, write_part
from tokenmill.store.rank_summaries import REASONS, publish_summaries
from tokenmill.store.tables import read_manifest

MAX_SECONDS = 120.0
MAX_BYTES = 2e9
MAX_GROWTH = 1.3
MIN_SECONDS = 0.3
"""A step that takes less than this beyond its start is too short for its growth to be told from noise."""

START_UNITS = 100
SIZES = [10_000, 100_000, 1_000_000]
MISSING_SHARE = 0.001
RANKS = 256
PRETENDED_TOKENS = 10
PART_BYTES = 6000
"""What a part of one document takes in memory, with its entry in the directory."""

SAMPLE_SECONDS = 0.2
"""How often memory is looked at: a look at a large process keeps it from working for some milliseconds."""


class Nothing(msgspec.Struct, frozen=True):
    """The function of a worker: a unit's number for the unit."""

    def prefetch(self, task: UnitTask) -> None:
        """There is nothing to be done ahead, either."""

    def __call__(self, task: UnitTask) -> int:
        """Do nothing."""
        return task.unit


class Pretend:
    """The function of a worker that reads and encodes nothing: a unit's part has one document of ten zeros.

    The part is written, because a run looks at all parts before it publishes the manifest.
    """

    def __init__(self, directory: str, job: Job, engine: str, *_: object) -> None:
        self.directory = directory
        self.digest = job.digest()
        self.dtype = job.tokenizer.dtype
        self.engine = engine

    def prefetch(self, task: UnitTask) -> None:
        """There is nothing to be done ahead."""

    def __call__(self, task: UnitTask) -> Committed:
        """Write the part of a unit, and report it."""
        content = PartContent(
            tokens=np.zeros(PRETENDED_TOKENS, self.dtype),
            offsets=np.array([0, PRETENDED_TOKENS], np.int64),
            source=np.array([task.files[0].index], np.uint32),
            row=np.array([task.unit % GROUPS_IN_FILE], np.uint64),
        )
        summary = PartSummary(task.unit, self.digest, 1, PRETENDED_TOKENS, task.text_bytes, slice=task.slice)
        return Committed(write_part(folder_at(self.directory), summary, content), self.engine)


def run(sources: str, store: str, workers: str, tokenizer: str, on: str) -> dict[str, Any]:
    """Prepare a store of made-up parts."""
    driver.Tokenize = Pretend  # type: ignore[attr-defined,assignment]
    words: dict[str, Any] = {"tokenizer": tokenizer, "unit_bytes": 1, "workers": int(workers)}
    done = tokenmill.prepare(sources, out=store, on=on, reporter=Silent(), **words)
    return {"units": done.units, "units_done_now": done.units_done_now, "deaths": done.deaths}


def execute(executor: Executor, store: str, terms: RetryPolicy) -> dict[str, Any]:
    """Give out the units of a store's plan, and count what comes back."""
    folder = folder_at(store)
    frozen = load_existing(folder, require_run(folder))
    units = frozen.run.units
    seen = np.zeros(units, np.bool_)
    started = time.perf_counter()
    for outcome in executor.run(Nothing(), planning.tasks(frozen.plan, frozen.sources, range(units)), terms):
        if not isinstance(outcome, Done) or outcome.value != outcome.item.unit or seen[outcome.value]:
            raise SystemExit(f"a unit came to something else: {outcome}")
        seen[outcome.value] = True
    if not seen.all():
        raise SystemExit(f"{units - seen.sum()} units did not come back")
    return {"units": units, "run_seconds": time.perf_counter() - started}


def execute_local(store: str, workers: str, ahead: str) -> dict[str, Any]:
    """Through the processes of this machine."""
    with LocalExecutor() as executor:
        return execute(executor.start(int(workers)), store, RetryPolicy(prefetch=int(ahead)))


def execute_ray(store: str, workers: str) -> dict[str, Any]:
    """Through Ray, on the cluster of this machine."""
    from tokenmill.executors.ray.executor import RayExecutor  # noqa: PLC0415 - an extra

    with RayExecutor() as executor:
        return execute(executor.start(int(workers)), store, RetryPolicy())


def freeze_run(sources: str, store: str, workers: str, tokenizer: str) -> dict[str, Any]:
    """Freeze the run of some sources, a unit for each row group."""
    words = JobOptions(tokenizer=tokenizer, unit_bytes=1)
    folder = folder_at(store)
    folder.create()
    with LocalExecutor() as executor:
        frozen = freeze(folder, make_request(words, find_sources([sources])), executor.start(int(workers)))
    return {"units": frozen.run.units, "plan_bytes": folder.size(layout.PLAN)}


def write_corpus(directory: str, units: int) -> None:
    """Files of 1,000 row groups, all alike."""
    os.mkdir(directory)
    write_parquet(directory, min(units, GROUPS_IN_FILE))
    first = os.path.join(directory, "00000.parquet")
    for number in range(1, units // GROUPS_IN_FILE):
        shutil.copyfile(first, os.path.join(directory, f"{number:05d}.parquet"))


def make_parts(store: str, missing: int, workers: int) -> None:
    """Make the parts of a frozen run, but for some units, and the log, as an interrupted run would have left them."""
    folder = folder_at(store)
    run = require_run(folder)
    left_out = set(np.linspace(0, run.units - 1, missing).astype(int).tolist())
    chunks = planned_chunks(load_existing(folder, run), left_out)
    start = event_log.line("start", units=run.units, missing=run.units, workers=workers, engine="")
    event_log.append(folder, [start])
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), skip_fsync) as pool:
        for lines in pool.map(partial(_make_parts, store, msgspec.json.encode(run)), chunks):
            folder.append(layout.LOG, lines)


def _make_parts(store: str, encoded_run: bytes, units: list[PlannedUnit]) -> bytes:
    """Write the parts of some units; the lines that a run would have logged of them."""
    run, folder = msgspec.json.decode(encoded_run, type=Run), folder_at(store)
    lines = []
    for planned in units:
        source, row = divmod(planned[0], GROUPS_IN_FILE)
        lines.append(write_document(folder, run, planned, (source, row), text_of(row)))
    return b"".join(lines)


def summarise_ranks(store: str) -> None:
    """Withdraw the manifest, and publish what RANKS ranks would have published of their parts."""
    folder = folder_at(store)
    run = require_run(folder)
    rows = read_manifest(folder, run).drop_columns("bytes").append_column(REASONS, pa.array(["{}"] * run.units))
    for rank in range(RANKS):
        publish_summaries(folder, run, rows.filter(pa.array(RankShare(rank, RANKS).stripes(run.units))))
    os.unlink(os.path.join(store, layout.MANIFEST))


@dataclass(frozen=True)
class Measured:
    """A step at one size: how long it took, the memory of all its processes and of the first, and what it answered."""

    step: str
    units: int
    seconds: float
    tree_bytes: int
    driver_bytes: int
    answer: dict[str, Any]

    @property
    def within(self) -> bool:
        """Whether both limits were kept."""
        return self.seconds <= MAX_SECONDS and self.tree_bytes <= MAX_BYTES


def measure(step: str, units: int, command: list[str]) -> Measured:
    """Run a command and watch its memory; one that fails ends the benchmark with what it said."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        watch = Watch(process.pid, SAMPLE_SECONDS)
        watch.start()
        exit_code = process.wait()
        seconds = time.perf_counter() - started
        watch.stop()
        output.seek(0)
        errors.seek(0)
        if exit_code:
            raise SystemExit(f"{step}, {units:,} units: ended with {exit_code}:\n{errors.read()[-3000:]}")
        answer = json.loads(output.read().splitlines()[-1])
    found = Measured(step, units, seconds, watch.tree_bytes, watch.root_bytes, answer)
    print(
        f"{units:>9,} {step:<18}{seconds:>8.2f} s {watch.tree_bytes / 1e6:>6.0f} MB, driver "
        f"{watch.root_bytes / 1e6:>6.0f} MB  {'' if found.within else 'OVER'}",
        file=sys.stderr,
        flush=True,
    )
    return found


def own_step(function: str, *words: str) -> list[str]:
    """The command that calls a function of this module, by its name, and prints what it returns."""
    code = f"import json, sys, benchmarks.million_units as m; print(json.dumps(m.{function}(*sys.argv[1:])))"
    return [sys.executable, "-c", code, *words]


def run_size(units: int, options: argparse.Namespace, directory: str) -> list[Measured]:
    """Make a corpus, take every step, and remove it all."""
    sources, store, workers = os.path.join(directory, "corpus"), os.path.join(directory, "store"), str(options.workers)
    write_corpus(sources, units)
    what = (sources, "--tokenizer", options.tokenizer, "--unit-bytes", "1", "--workers", workers)
    prepare = [*tokenmill_command("prepare"), *what, "--out", store]
    status = [*tokenmill_command("status"), store]
    steps = [measure("plan", units, [*tokenmill_command("plan"), *what])]
    steps.append(measure("freeze", units, own_step("freeze_run", sources, store, workers, options.tokenizer)))
    steps.append(measure("execute", units, own_step("execute_local", store, workers, "0")))
    steps.append(measure("execute, ahead", units, own_step("execute_local", store, workers, "2")))
    if options.ray and units <= options.most_ray:
        steps.append(measure("execute, Ray", units, own_step("execute_ray", store, workers)))
    for name, on in [("run", "local"), ("run, Ray", "ray")]:
        if on == "local" or (options.ray and units <= options.most_ray):
            hollow = os.path.join(directory, on)
            steps.append(measure(name, units, own_step("run", sources, hollow, workers, options.tokenizer, on)))
            shutil.rmtree(hollow)
    missing = max(2, round(units * MISSING_SHARE))
    started = time.perf_counter()
    make_parts(store, missing, options.workers)
    print(f"{units:>9,} parts made in {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
    steps.append(measure("status, stopped", units, status))
    steps.append(measure("resume", units, prepare))
    os.unlink(os.path.join(store, layout.MANIFEST))
    finish = [*tokenmill_command("finish"), store, "--workers", workers]
    steps.append(measure("manifest", units, finish))
    summarise_ranks(store)
    steps.append(measure("manifest, ranks", units, finish))
    steps.append(measure("status, complete", units, status))
    _check(steps, units, missing)
    shutil.rmtree(sources)
    shutil.rmtree(store)
    return steps


def _check(steps: list[Measured], units: int, missing: int) -> None:
    """See that the steps did what they should have done."""
    answers = {each.step: each.answer for each in steps}
    expected = {
        ("plan", "units"): units,
        ("freeze", "units"): units,
        ("execute", "units"): units,
        ("status, stopped", "units_done"): units - missing,
        ("resume", "units_done_now"): missing,
        ("resume", "documents"): units,
        ("manifest", "documents"): units,
        ("manifest, ranks", "documents"): units,
        ("run", "units_done_now"): units,
        ("status, complete", "state"): "complete",
    }
    for (step, name), value in expected.items():
        if answers[step][name] != value:
            raise SystemExit(f"{step}: {name} is {answers[step][name]}, and should be {value}")


def growth(small: Measured, large: Measured, start_seconds: float) -> float | None:
    """How many times as long a unit takes at the larger size; None where the smaller size is too short to tell."""
    seconds = small.seconds - start_seconds
    if seconds < MIN_SECONDS:
        return None
    return (large.seconds - start_seconds) / seconds / (large.units / small.units)


def judge(found: list[Measured]) -> tuple[list[str], list[str]]:
    """The table, and what is not as it should be."""
    sizes = sorted({each.units for each in found} - {START_UNITS})
    lines = [
        "| step | start, s | "
        + " | ".join(f"{units:,}: s" for units in sizes)
        + " | units/s | growth | tree, MB | driver, MB |",
        "| --- |" + " ---: |" * (len(sizes) + 5),
    ]
    problems = []
    for step in dict.fromkeys(each.step for each in found):
        by_size = {each.units: each for each in found if each.step == step}
        start = min(each.seconds for each in by_size.values())
        known = [by_size[units] for units in sizes if units in by_size]
        if not known:
            continue
        grown = [growth(small, known[-1], start) for small in known[:-1]]
        cells = [f"{by_size[units].seconds:.2f}" if units in by_size else "" for units in sizes]
        largest, last = known[-1], grown[-1] if grown else None
        beyond = largest.seconds - start
        rate = f"{largest.units / beyond:,.0f}" if beyond >= MIN_SECONDS else ""
        lines.append(
            f"| {step} | {start:.2f} | {' | '.join(cells)} | {rate} | {'' if last is None else f'{last:.2f}'} "
            f"| {largest.tree_bytes / 1e6:.0f} | {largest.driver_bytes / 1e6:.0f} |"
        )
        problems += [
            f"{step} of {each.units:,} units passes {MAX_SECONDS:.0f} s or {MAX_BYTES / 1e6:.0f} MB"
            for each in known
            if not each.within
        ]
        problems += [
            f"{step} grows {each:.2f} times as fast as units do" for each in grown if each and each > MAX_GROWTH
        ]
    return lines, problems


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--units", type=int, action="append", help="a size, a multiple of 1000 (default: three sizes)")
    parser.add_argument("--most-ray", type=int, default=100_000, help="most units through Ray (default 100000)")
    parser.add_argument("--no-ray", dest="ray", action="store_false", help="leave Ray out")
    parser.add_argument("--workers", type=int, default=2, help="workers (default 2)")
    parser.add_argument("--tokenizer", default="gpt2", help="an encoding of tiktoken's (default gpt2)")
    parser.add_argument("--tmp", help="where the temporary directory is made (default: in memory, if there is room)")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    options = parser.parse_args()
    options.units = sorted(options.units or SIZES)
    if any(units % GROUPS_IN_FILE for units in options.units):
        parser.error(f"a size is a multiple of {GROUPS_IN_FILE}")
    options.ray = options.ray and importlib.util.find_spec("ray") is not None
    return options


def scratch(options: argparse.Namespace) -> str | None:
    """Where the temporary directory is made."""
    needed = 2 * PART_BYTES * max(options.units)
    in_memory = os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > needed
    return options.tmp or ("/dev/shm" if in_memory else None)


def main() -> int:
    """Measure and tell."""
    options = read_options()
    data = os.environ.get("TOKENMILL_TEST_DATA")
    if data:
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", os.path.join(data, "vocab"))
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # workers import this file as a module
    os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
    found: list[Measured] = []
    for units in (START_UNITS, *options.units):
        with tempfile.TemporaryDirectory(dir=scratch(options), prefix="tokenmill-million-") as directory:
            found += run_size(units, options, directory)
    lines, problems = judge(found)
    print("\n".join(lines))
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"steps": [asdict(each) for each in found], "problems": problems}, file, indent=2)
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
