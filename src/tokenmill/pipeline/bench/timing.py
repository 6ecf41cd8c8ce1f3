"""Do one unit and tell how long each step of it took, for `bench`. Runs in a worker.

The steps are those of a run, with clocks around them; only, a unit may be broken off after some of its text, so that a
slow engine can be measured in little time.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow as pa

from tokenmill.pipeline.commit import Commit
from tokenmill.pipeline.part_builder import PartBuilder
from tokenmill.pipeline.plan import UnitTask
from tokenmill.pipeline.position import Position
from tokenmill.pipeline.tokenize import Tokenize
from tokenmill.pipeline.units import BATCHES_IN_WORKER, WorkerLimits, loaded_tokenizer, unit_tokens
from tokenmill.sources.documents import Documents, SourceFile
from tokenmill.storage import Folder, folder_at, io_threads
from tokenmill.store.job import Job
from tokenmill.tokenizers.engines.protocol import Encoded
from tokenmill.tokenizers.tokenizer import Tokenizer

FAST = "gigatoken"


class Steps(msgspec.Struct, frozen=True):
    """Seconds by what they were spent on.

    `read` is fetching, decompressing and checking text; `encode` the engine; `check` begin and end tokens, joining and
    the checksum; `write` the part, until it is synced and has its name.
    """

    read: float = 0.0
    encode: float = 0.0
    check: float = 0.0
    write: float = 0.0

    def plus(self, other: Steps) -> Steps:
        """The sum."""
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Steps(*(a + b for a, b in zip(mine, others, strict=True)))

    def rounded(self) -> Steps:
        """To a tenth of a millisecond."""
        return Steps(*(round(seconds, 4) for seconds in msgspec.structs.astuple(self)))

    def shares(self) -> Steps:
        """Each as a share of all."""
        total = self.total or 1.0
        return Steps(*(seconds / total for seconds in msgspec.structs.astuple(self))).rounded()

    @property
    def total(self) -> float:
        """All of them."""
        return float(sum(msgspec.structs.astuple(self)))


class Stop(msgspec.Struct, frozen=True):
    """Where a unit was broken off: in which of its files, and about how many bytes into what that unpacks to."""

    file: int
    byte: int


class Timing(msgspec.Struct, frozen=True):
    """What became of a unit, and how long its steps took by the clock (`wall`) and by the processor (`cpu`).

    `rows` are its documents and those that cannot be any; `stop` is None if it was not broken off; `load_seconds` is
    what the engine took to load, if it was not before.
    """

    text_bytes: int
    documents: int
    tokens: int
    rows: int
    stop: Stop | None
    load_seconds: float
    wall: Steps
    cpu: Steps
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimedTokenize:
    """The function that turns a unit, or `most_bytes` of its text, into a part in `directory`, and times that."""

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    most_bytes: int

    def prefetch(self, task: UnitTask) -> None:
        """As a run does it."""
        Tokenize(self.directory, self.job, self.engine, self.limits).prefetch(task)

    def __call__(self, task: UnitTask) -> Timing | Future[Timing]:
        """Read, encode and publish; in the background, where publishing takes a network."""
        Position("begin").mark()
        clock = _StepClock()
        folder = folder_at(self.directory)
        clock.at("load")
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine)
        clock.at("read")
        builder, stop = tokenizer.retry_with_reference(lambda: self._encode(task, tokenizer, clock))
        Position("write").mark()
        clock.at("check")
        if not folder.is_remote:
            return _committed(folder, builder, tokenizer, clock, stop)
        clock.stop()
        return io_threads().submit(_committed, folder, builder, tokenizer, clock, stop)

    def _encode(self, task: UnitTask, tokenizer: Tokenizer, clock: _StepClock) -> tuple[PartBuilder, Stop | None]:
        builder = PartBuilder(self.job, task, self.limits.with_text)
        limits = self.limits if tokenizer.engine == FAST else self._small_batches()
        for file, documents, encoded in unit_tokens(task, self.job, _TimedEncoder(tokenizer, clock), limits):
            builder.skip(file, documents)
            builder.add(file, documents.without_nulls(), encoded)
            if builder.text_bytes >= self.most_bytes:
                builder.task = msgspec.structs.replace(task, rows=None)  # the plan's count is that of all its text
                return builder, _stop(task, file, documents)
        return builder, None

    def _small_batches(self) -> WorkerLimits:
        """A slow engine is as slow with small batches, and can be broken off between them."""
        least = min(self.limits.worker_bytes, self.most_bytes * BATCHES_IN_WORKER)
        return msgspec.structs.replace(self.limits, worker_bytes=least)


def ready(_: int) -> None:
    """Do nothing: who has the answer knows that the worker has its libraries."""


def _stop(task: UnitTask, file: SourceFile, last: Documents) -> Stop:
    """Where its last documents end, if their rows are bytes: the last one is taken to be as long as the others."""
    first, start, others = int(last.rows[0]), int(last.rows[-1]), len(last.rows) - 1
    length = (start - first) // others if others else last.text_bytes()
    return Stop(file.index - task.files[0].index, start + length)


def _committed(
    folder: Folder, builder: PartBuilder, tokenizer: Tokenizer, clock: _StepClock, stop: Stop | None
) -> Timing:
    clock.at("check")
    timed = cast("Folder", _TimedFolder(folder, clock))  # all but `publish` is the folder's own
    done = Commit(timed, builder, recheck=False, engine=tokenizer.engine, notices=tokenizer.take_notices())()
    clock.stop()
    return Timing(
        text_bytes=done.summary.text_bytes,
        documents=done.summary.documents,
        tokens=done.summary.tokens,
        rows=done.summary.documents + done.summary.skipped_rows,
        stop=stop,
        load_seconds=clock.wall["load"],
        wall=clock.steps(clock.wall),
        cpu=clock.steps(clock.cpu),
        notices=done.notices,
    )


class _StepClock:
    """Adds up time by the step that a thread is at. Another thread may go on with it after `stop`."""

    def __init__(self) -> None:
        self.wall: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self._step: str | None = None
        self._since = (0.0, 0.0)

    def at(self, step: str | None) -> None:
        """From now on, time goes to this step, or nowhere."""
        now = (time.monotonic(), time.thread_time())
        if self._step is not None:
            self.wall[self._step] += now[0] - self._since[0]
            self.cpu[self._step] += now[1] - self._since[1]
        self._step, self._since = step, now

    def stop(self) -> None:
        """From now on, time goes nowhere."""
        self.at(None)

    @staticmethod
    def steps(seconds: dict[str, float]) -> Steps:
        """What counts of it."""
        return Steps(*(seconds.get(step, 0.0) for step in Steps.__struct_fields__))


@dataclass(frozen=True, slots=True)
class _TimedEncoder:
    """A tokenizer with a clock around it: before `encode` text is read, after it a part is put together."""

    tokenizer: Tokenizer
    clock: _StepClock

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        self.clock.at("encode")
        encoded = self.tokenizer.encode(text)
        self.clock.at("check")
        return encoded

    def trim(self, most_bytes: int) -> None:
        self.tokenizer.trim(most_bytes)
        self.clock.at("read")


@dataclass(frozen=True, slots=True)
class _TimedFolder:
    """A folder with a clock around what it publishes."""

    folder: Folder
    clock: _StepClock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.folder, name)

    @contextmanager
    def publish(self, name: str, *, durable: bool = True, first: bool = False) -> Iterator[BinaryIO]:
        self.clock.at("write")
        with self.folder.publish(name, durable=durable, first=first) as file:
            yield file
        self.clock.at("check")

    def publish_if_absent(self, name: str, data: pa.Buffer) -> bool:
        self.clock.at("write")
        published = self.folder.publish_if_absent(name, data)
        self.clock.at("check")
        return published
