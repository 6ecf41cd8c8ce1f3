"""Kill runs of `tokenmill prepare` and judge what is left of them. Shared by the tests and scripts/kill_test.py."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.store import tables
from tokenmill.store.tables import MANIFEST_RUN

WAIT_SECONDS = 60.0
"""The longest that anything here waits for a condition."""

GONE_SECONDS = 5.0
"""How long a killed process may take to disappear."""

NOT_COMPARED = {"log.jsonl", ".lock", "drivers"}
"""Files and directories of a run directory that tell of its course, not of its result."""


def wait_until(condition: Callable[[], bool], seconds: float = WAIT_SECONDS, pause: float = 0.002) -> bool:
    """Whether the condition came true in time; `pause` seconds are between two looks."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def _processes() -> Iterator[tuple[int, int, int]]:
    """Pid, parent and process group of everything alive; what is dead but not yet collected is not."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,pgid=,stat="], capture_output=True, text=True, check=True)
    for line in listing.stdout.splitlines():
        pid, parent, group, state = line.split()
        if not state.startswith(("Z", "X")):
            yield int(pid), int(parent), int(group)


def alive(pids: Collection[int]) -> list[int]:
    """Those of the processes that are alive."""
    return [pid for pid, _, _ in _processes() if pid in pids]


def workers(parent: int) -> list[int]:
    """The workers of a command, in the order of their pids: they are started by a process that it has started."""
    processes = list(_processes())
    nurseries = {pid for pid, started_by, _ in processes if started_by == parent}
    return sorted(pid for pid, started_by, _ in processes if started_by in nurseries)


def write_corpus(directory: Path, documents: int, rows_per_group: int, seed: int = 0) -> Path:
    """Two Parquet files of made-up text, in small row groups, so that there can be many units."""
    rng = random.Random(seed)
    words = ["".join(rng.choices("etaoinshrdlucmfwypvbgkqjxz", k=rng.randint(1, 9))) for _ in range(5000)]
    texts = [" ".join(rng.choices(words, k=rng.randint(0, 800))) for _ in range(documents)]
    return _write_files(directory, [texts[0::2], texts[1::2]], rows_per_group)


def regroup_corpus(corpus: Path, directory: Path, rows_per_group: int) -> Path:
    """The documents of a corpus in smaller row groups: a row group cannot be cut, and there should be many units."""
    files = sorted(corpus.rglob("*.parquet"))
    return _write_files(directory, [pq.read_table(file, columns=["text"])["text"] for file in files], rows_per_group)


def _write_files(directory: Path, columns: list[list[str] | pa.ChunkedArray], rows_per_group: int) -> Path:
    directory.mkdir(parents=True)
    for number, texts in enumerate(columns):
        pq.write_table(pa.table({"text": texts}), directory / f"{number:03d}.parquet", row_group_size=rows_per_group)
    return directory


@dataclass(frozen=True)
class Job:
    """What is prepared; the output directory varies."""

    corpus: Path
    tokenizer: tuple[str, ...]
    engine: str = "auto"
    unit_bytes: str = "1"

    def words(self, out: Path) -> list[str]:
        """The words of the command."""
        options = ["--engine", self.engine, "--unit-bytes", self.unit_bytes, "--workers", "2", "--tokenizer"]
        return ["prepare", str(self.corpus), "--out", str(out), *options, *self.tokenizer]

    def start(self, out: Path) -> Run:
        """Start the command as the leader of its own process group."""
        stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by Run.collect
        process = subprocess.Popen(
            [sys.executable, "-m", "tokenmill", *self.words(out)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        return Run(process, stderr, out)

    def finish(self, out: Path, seconds: float = WAIT_SECONDS) -> Ending:
        """Run the command undisturbed to its end."""
        run = self.start(out)
        run.wait(seconds)
        return run.collect()


@dataclass(frozen=True)
class Ending:
    """How a run ended, and which processes it left behind."""

    exit_code: int
    stderr: str
    left_behind: list[int]


@dataclass(frozen=True)
class Run:
    """A command at work."""

    process: subprocess.Popen[bytes]
    stderr: IO[str]
    out: Path

    @property
    def going(self) -> bool:
        """Whether the command is still running."""
        return self.process.poll() is None

    def wait(self, seconds: float = WAIT_SECONDS) -> None:
        """Wait for the command's end; kill it all and raise if it takes too long."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal_group(signal.SIGKILL)
            self.process.wait()
            raise

    def until(self, moment: float) -> bool:
        """Wait until a moment on the monotonic clock; whether the command is still running then."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(max(0.0, moment - time.monotonic()))
        return self.going

    def until_units(self, units: int) -> bool:
        """Wait until that many units are committed; whether the command is still running then."""
        wait_until(lambda: not self.going or len(part_files(self.out)) >= units)
        return self.going

    def signal_group(self, number: int) -> None:
        """Send a signal to the command and its workers at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def group(self) -> list[int]:
        """The processes of the command's group that are alive."""
        return [pid for pid, _, group in _processes() if group == self.process.pid]

    def collect(self) -> Ending:
        """How the command, which has ended, ended. Whatever it left behind is told, and ended."""
        wait_until(lambda: not self.group(), GONE_SECONDS)
        left_behind = self.group()
        self.signal_group(signal.SIGKILL)
        self.stderr.seek(0)
        with self.stderr:
            return Ending(self.process.wait(), self.stderr.read(), left_behind)


def part_files(out: Path) -> list[str]:
    """The names of the parts, without what is being written."""
    try:
        return sorted(name for name in os.listdir(out / "parts") if not name.startswith("."))
    except FileNotFoundError:
        return []


def events(out: Path) -> list[dict[str, Any]]:
    """The run's log."""
    try:
        return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []


def result_files(out: Path) -> dict[str, bytes]:
    """Everything that a run gives, by name, but for the name of the engine that it was started with."""
    files = (path for path in out.rglob("*") if path.is_file() and not NOT_COMPARED & {path.name, path.parent.name})
    result = {str(path.relative_to(out)): path.read_bytes() for path in files}
    if "run.json" in result:
        result["run.json"] = json.dumps({**json.loads(result["run.json"]), "engine": "", "checksum": ""}).encode()
    return result


def without_sources(manifest: bytes) -> bytes:
    """A manifest without the checksum of the sources, which is another one after a source was moved or touched."""
    table = pq.read_table(pa.BufferReader(manifest))
    run = {**json.loads(table.schema.metadata[MANIFEST_RUN]), "sources": ""}
    return tables.table_bytes(table.replace_schema_metadata({MANIFEST_RUN: json.dumps(run)}))


def temporaries(out: Path) -> list[str]:
    """Files that a writer did not get to publish."""
    return sorted(str(path.relative_to(out)) for path in out.rglob("*.tmp"))


@dataclass(frozen=True)
class Snapshot:
    """What was committed at a moment when nothing ran: each part's identity on disk, and how long the log was."""

    parts: dict[int, tuple[int, int]]
    log_length: int

    @staticmethod
    def of(out: Path) -> Snapshot:
        """The state of a directory now."""
        stats = {name: os.stat(out / "parts" / name) for name in part_files(out)}
        parts = {int(name.partition(".")[0]): (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}
        return Snapshot(parts, len(events(out)))


@dataclass
class Round:
    """One output directory: killed, rerun, killed again, at last finished, and judged."""

    job: Job
    out: Path
    snapshots: list[Snapshot] = field(default_factory=list)
    left_behind: list[int] = field(default_factory=list)

    def end(self, run: Run) -> Ending:
        """Take note of how a run ended and of what it leaves, for the judgement."""
        ending = run.collect()
        self.left_behind += ending.left_behind
        self.snapshots.append(Snapshot.of(self.out))
        return ending

    def done_again(self) -> list[int]:
        """Units that were committed when a later run began, and that this run did all the same."""
        log, now = events(self.out), Snapshot.of(self.out).parts
        again: set[int] = set()
        for snapshot in self.snapshots:
            later = {event["unit"] for event in log[snapshot.log_length :] if event["event"] == "unit"}
            again |= {unit for unit, identity in snapshot.parts.items() if unit in later or now.get(unit) != identity}
        counts = Counter(event["unit"] for event in log if event["event"] == "unit")
        return sorted(again | {unit for unit, count in counts.items() if count > 1})

    def violations(self, undisturbed: dict[str, bytes]) -> list[str]:
        """What is not as promised, in sentences: nothing, if all is well."""
        found = []
        result = result_files(self.out)
        names = sorted(result.keys() ^ undisturbed.keys())
        names += [name for name in result.keys() & undisturbed.keys() if result[name] != undisturbed[name]]
        if names:
            found.append(f"not the files or bytes of an undisturbed run: {', '.join(names[:5])}")
        if again := self.done_again():
            found.append(f"committed units were done again: {again[:10]}")
        if left := temporaries(self.out):
            found.append(f"temporary files are left: {', '.join(left[:5])}")
        if self.left_behind:
            found.append(f"processes outlived their run: {self.left_behind}")
        return found
