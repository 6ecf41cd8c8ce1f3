"""Fuzz everything that reads a file of a store or an export, as somebody else may have written it.

    python -m scripts.fuzz_readers [--minutes 10] [--seed N] [--reader NAME]... [--keep DIR]

Inputs are damaged copies of the files of a small sound store; those that take steps through tokenmill that none took
before are damaged further. A child process reads them, with half a gigabyte of memory more than it starts with and ten
seconds for each: what ends in anything but a result or a TokenmillError is a finding, the child's death included.
Findings are written to DIR as `<reader>/finding-*`, and inputs that cover something of their own as `<reader>/*`; the
ones in tests/support/fuzz were found like that. The seed repeats a run up to the first death of a child. Exit code 1
if there are findings.

    python -m scripts.fuzz_readers --replay FILE...      FILE is <reader>/<name>; its fate is printed
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pyarrow as pa

from tests.support.fuzz.mutations import mutate
from tests.support.fuzz.targets import PACKAGE, TARGETS, fate, make_base

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 10
SPARE_BYTES = 512 << 20
TURN_SECONDS = 3
"""How long a reader is fuzzed before the next has its turn."""


class Coverage:
    """The steps from line to line in tokenmill that reading took."""

    def __init__(self) -> None:
        self.seen: set[tuple[CodeType, int, int]] = set()
        self._new = 0

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Count what is new while this is open."""
        self._new = 0
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    @property
    def grew(self) -> bool:
        """Whether the last reading went where none had gone before."""
        return self._new > 0

    def _enter(self, frame: FrameType, _event: str, _value: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        code, last = frame.f_code, frame.f_lineno

        def step(frame: FrameType, _event: str, _value: Any) -> Any:
            nonlocal last
            edge = (code, last, frame.f_lineno)
            if edge not in self.seen:
                self.seen.add(edge)
                self._new += 1
            last = frame.f_lineno
            return step

        return step


class Child:
    """One process that reads damaged files until its time is over, or it dies."""

    def __init__(self, work: Path, rng: random.Random, readers: list[str]) -> None:
        self.work, self.rng, self.readers = work, rng, readers
        self.coverage = {name: Coverage() for name in readers}
        self.counts = dict.fromkeys(readers, 0)
        self.corpus: dict[str, list[bytes]] = {}

    def run(self, until: float) -> None:
        """Readers in turn, those that still find something new for longer."""
        for name in self.readers:
            self.corpus[name] = [path.read_bytes() for path in sorted((self.work / "corpus" / name).iterdir())]
            for data in self.corpus[name]:
                self.attempt(name, data)
        while time.time() < until:
            for name in self.rng.sample(self.readers, len(self.readers)):
                end = min(time.time() + TURN_SECONDS, until)
                while time.time() < end:
                    corpus = self.corpus[name]
                    data = mutate(self.rng.choice(corpus), TARGETS[name].kind, corpus, self.rng)
                    if self.attempt(name, data):
                        corpus.append(data)
                        (self.work / "corpus" / name / digest(data)).write_bytes(data)
                self.report()

    def attempt(self, name: str, data: bytes) -> bool:
        """Read one input; whether it went somewhere new. The parent finds it in `current` should this process die."""
        (self.work / "current").write_bytes(name.encode() + b"\n" + data)
        coverage = self.coverage[name]
        with limits(), coverage.watching():
            found = fate(self.work / "base", name, data)
        (self.work / "current").unlink()
        self.counts[name] += 1
        if found is not None:
            save_finding(self.work, name, data, found)
        return coverage.grew

    def report(self) -> None:
        """Leave the counts for the parent."""
        lines = {name: len(self.coverage[name].seen) for name in self.readers}
        (self.work / f"counts-{os.getpid()}").write_text(json.dumps({"counts": self.counts, "steps": lines}))


def save_finding(work: Path, name: str, data: bytes, found: str) -> None:
    """Keep the smallest input for each finding."""
    key = digest(":".join(found.split(":")[:2]).encode())
    path = work / "findings" / name / f"finding-{key}"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.stat().st_size > len(data):
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(found + "\n")


def digest(data: bytes) -> str:
    """A name for an input."""
    return hashlib.sha256(data).hexdigest()[:12]


@contextlib.contextmanager
def limits() -> Iterator[None]:
    """Let this process grow by so much, and take so long; the alarm ends it, also in native code."""
    held = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (held + SPARE_BYTES, resource.RLIM_INFINITY))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def supervise(work: Path, arguments: argparse.Namespace) -> int:
    """Start children one after the other until the time is over; take down how each of them died."""
    until = time.time() + arguments.minutes * 60
    deaths = 0
    while time.time() < until:
        command = [sys.executable, "-m", "scripts.fuzz_readers", "--child", str(work), "--until", str(until), "--seed"]
        command += [str(arguments.seed + deaths), *(word for name in arguments.reader for word in ("--reader", name))]
        code = subprocess.run(command, check=False).returncode
        if code == 0:
            break
        deaths += 1
        if not (work / "current").exists():  # it died of making an input, which nobody does but this script
            continue
        name, _, data = (work / "current").read_bytes().partition(b"\n")
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        save_finding(work, name.decode(), data, f"death by {how} in {name.decode()}: {digest(data)}")
    return deaths


def show(work: Path, minutes: float) -> int:
    """Say what was done and found; the number of findings."""
    totals: dict[str, list[int]] = {}
    for path in work.glob("counts-*"):
        told = json.loads(path.read_text())
        for name, count in told["counts"].items():
            entry = totals.setdefault(name, [0, 0])
            totals[name] = [entry[0] + count, max(entry[1], told["steps"][name])]
    for name, (count, steps) in sorted(totals.items()):
        kept = len(list((work / "corpus" / name).iterdir()))
        print(f"{name:<22} {count:>9,} executions {steps:>6,} steps {kept:>5,} inputs")
    findings = sorted((work / "findings").glob("*/*.txt"))
    for path in findings:
        print(f"FINDING {path.parent.name}/{path.stem}: {path.read_text().strip()}")
    print(
        f"{sum(count for count, _ in totals.values()):,} executions in {minutes:.0f} minutes: {len(findings)} findings"
    )
    return len(findings)


def keep(work: Path, directory: Path) -> None:
    """Write the findings, and for each reader the smallest inputs that together take every step."""
    for name in TARGETS:
        paths = sorted((work / "corpus" / name).iterdir(), key=lambda path: (path.stat().st_size, path.name))
        coverage = Coverage()
        for path in [work / "base" / TARGETS[name].file, *paths]:
            with coverage.watching():
                fate(work / "base", name, path.read_bytes())
            if coverage.grew and path.parent.name == name:
                copy(path, directory / name / path.name)
    for path in (work / "findings").glob("*/finding-*"):
        if path.suffix != ".txt":
            copy(path, directory / path.parent.name / path.name)


def copy(source: Path, target: Path) -> None:
    """Copy a file into a directory that may not be there yet."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)


def prepare(work: Path, seeds: Path) -> None:
    """The sound store, and as first inputs its files and what earlier runs kept."""
    if not (work / "base").exists():
        make_base(work / "base", ROOT / "tests" / "data")
    (work / "findings").mkdir(exist_ok=True)
    for name, target in TARGETS.items():
        corpus = work / "corpus" / name
        corpus.mkdir(parents=True, exist_ok=True)
        for path in [work / "base" / target.file, *(seeds / name).glob("*")]:
            (corpus / digest(path.read_bytes())).write_bytes(path.read_bytes())


def replay(work: Path, paths: list[str]) -> int:
    """Read single inputs; how many of them end as they must not."""
    found = {path: fate(work / "base", Path(path).parent.name, Path(path).read_bytes()) for path in paths}
    for path, what in found.items():
        print(f"{path}: {what or 'as it should be'}")
    return sum(what is not None for what in found.values())


def main() -> None:
    """Parent, child or replay."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--reader", action="append", choices=sorted(TARGETS), default=[])
    parser.add_argument("--keep", type=Path, help="where inputs and findings go")
    parser.add_argument("--replay", nargs="+", default=[])
    parser.add_argument("--work", type=Path, help="a directory for what a run holds, which a later run goes on with")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        pa.set_cpu_count(1)
        pa.set_io_thread_count(1)  # a thread reserves memory that it does not need
        readers = arguments.reader or list(TARGETS)
        Child(arguments.child, random.Random(arguments.seed), readers).run(arguments.until)
        os._exit(0)
    with contextlib.ExitStack() as stack:
        work = arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        work.mkdir(exist_ok=True)
        prepare(work, ROOT / "tests" / "support" / "fuzz")
        if arguments.replay:
            sys.exit(replay(work, arguments.replay) > 0)
        print(f"seed {arguments.seed}", flush=True)
        supervise(work, arguments)
        findings = show(work, arguments.minutes)
        if arguments.keep:
            keep(work, arguments.keep)
        sys.exit(findings > 0)


if __name__ == "__main__":
    main()
