"""Tokenizes one unit and times each step, for `bench`. Runs in a worker.

The steps are those of a run. A unit may be stopped after some of its text, so that measuring a slow engine takes little
time.
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

from tokenmill.humanize import Readable
from tokenmill.pipeline.unit.commit import Commit
from tokenmill.pipeline.unit.documents import BATCHES_IN_WORKER, WorkerLimits, loaded_tokenizer, unit_tokens
from tokenmill.pipeline.unit.part_builder import PartBuilder
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.pipeline.unit.position import Position
from tokenmill.pipeline.unit.tokenize import Tokenize
from tokenmill.sources.documents import Documents, SourceFile
from tokenmill.storage import Folder, folder_at, io_threads
from tokenmill.store.job import Job
from tokenmill.tokenizers.engines.protocol import Encoded
from tokenmill.tokenizers.tokenizer import Tokenizer

FAST_ENGINE = "gigatoken"


class Steps(Readable, msgspec.Struct, frozen=True):
    """Seconds per step.

    `read` fetches, decompresses and checks text. `encode` is the engine. `check` adds begin and end tokens, joins
    batches and computes the checksum. `write` writes the part, syncs and renames it.
    """

    read: float = 0.0
    encode: float = 0.0
    check: float = 0.0
    write: float = 0.0

    def plus(self, other: Steps) -> Steps:
        """The sum of both, step by step."""
        mine, others = msgspec.structs.astuple(self), msgspec.structs.astuple(other)
        return Steps(*(a + b for a, b in zip(mine, others, strict=True)))

    def rounded(self) -> Steps:
        """The seconds, rounded to a tenth of a millisecond."""
        return Steps(*(round(seconds, 4) for seconds in msgspec.structs.astuple(self)))

    def fractions(self) -> Steps:
        """Each step as a fraction of the total."""
        total = self.total or 1.0
        return Steps(*(seconds / total for seconds in msgspec.structs.astuple(self))).rounded()

    @property
    def total(self) -> float:
        """The sum of all steps."""
        return float(sum(msgspec.structs.astuple(self)))


class Stop(msgspec.Struct, frozen=True):
    """Where a unit was stopped: the index of its file, and the approximate offset in the decompressed file."""

    file: int
    byte: int


class Timing(msgspec.Struct, frozen=True):
    """What a unit holds, and the wall time and processor time of its steps.

    `rows` counts documents and skipped rows. `stop` is None if the unit was read to its end. `load_seconds` is the time
    to load the engine, 0 if it was loaded before.
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
    """Tokenizes a unit, or `max_bytes` of its text, into a part in `directory`, and times it."""

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    max_bytes: int

    def prefetch(self, task: UnitTask) -> None:
        """Prefetch the sources of a unit, as a run does."""
        Tokenize(self.directory, self.job, self.engine, self.limits).prefetch(task)

    def __call__(self, task: UnitTask) -> Timing | Future[Timing]:
        """Read, encode and publish. Publishing to a remote folder happens in a background thread."""
        Position("begin").mark()
        clock = _StepClock()
        folder = folder_at(self.directory)
        clock.switch("load")
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine)
        clock.switch("read")
        builder, stop = tokenizer.retry_with_reference(lambda: self._encode(task, tokenizer, clock))
        Position("write").mark()
        clock.switch("check")
        if not folder.is_remote:
            return _commit(folder, builder, tokenizer, clock, stop)
        clock.stop()
        return io_threads().submit(_commit, folder, builder, tokenizer, clock, stop)

    def _encode(self, task: UnitTask, tokenizer: Tokenizer, clock: _StepClock) -> tuple[PartBuilder, Stop | None]:
        builder = PartBuilder(self.job, task, self.limits.with_text)
        limits = self.limits if tokenizer.engine == FAST_ENGINE else self._small_batches()
        for file, documents, encoded in unit_tokens(task, self.job, _TimedEncoder(tokenizer, clock), limits):
            builder.skip(file, documents)
            builder.add(file, documents.without_nulls(), encoded)
            if builder.text_bytes >= self.max_bytes:
                builder.task = msgspec.structs.replace(task, rows=None)  # the planned count is that of the whole unit
                return builder, _stop(task, file, documents)
        return builder, None

    def _small_batches(self) -> WorkerLimits:
        """Limits for a slow engine. Small batches do not slow it down, and a unit can only be stopped between them."""
        worker_bytes = min(self.limits.worker_bytes, self.max_bytes * BATCHES_IN_WORKER)
        return msgspec.structs.replace(self.limits, worker_bytes=worker_bytes)


def do_nothing(_: int) -> None:
    """Returns when the worker has imported its modules."""


def _stop(task: UnitTask, file: SourceFile, last: Documents) -> Stop:
    """Where the last documents end, if row numbers are byte offsets. The last one counts as long as the average."""
    first, start, others = int(last.rows[0]), int(last.rows[-1]), len(last.rows) - 1
    length = (start - first) // others if others else last.text_bytes()
    return Stop(file.index - task.files[0].index, start + length)


def _commit(folder: Folder, builder: PartBuilder, tokenizer: Tokenizer, clock: _StepClock, stop: Stop | None) -> Timing:
    clock.switch("check")
    timed = cast("Folder", _TimedFolder(folder, clock))  # only publishing is timed
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
    """Adds up time per step. After `stop`, another thread may continue, because processor time is per thread."""

    def __init__(self) -> None:
        self.wall: defaultdict[str, float] = defaultdict(float)
        self.cpu: defaultdict[str, float] = defaultdict(float)
        self._step: str | None = None
        self._since = (0.0, 0.0)

    def switch(self, step: str | None) -> None:
        """Count time toward this step from now on. None counts it toward no step."""
        now = (time.monotonic(), time.thread_time())
        if self._step is not None:
            self.wall[self._step] += now[0] - self._since[0]
            self.cpu[self._step] += now[1] - self._since[1]
        self._step, self._since = step, now

    def stop(self) -> None:
        """Count time toward no step from now on."""
        self.switch(None)

    @staticmethod
    def steps(seconds: dict[str, float]) -> Steps:
        """The seconds of the steps that are reported."""
        return Steps(*(seconds.get(step, 0.0) for step in Steps.__struct_fields__))


@dataclass(frozen=True, slots=True)
class _TimedEncoder:
    """A tokenizer that switches the clock: text is read before `encode`, and a part is assembled after it."""

    tokenizer: Tokenizer
    clock: _StepClock

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        self.clock.switch("encode")
        encoded = self.tokenizer.encode(text)
        self.clock.switch("check")
        return encoded

    def trim(self, most_bytes: int) -> None:
        self.tokenizer.trim(most_bytes)
        self.clock.switch("read")


@dataclass(frozen=True, slots=True)
class _TimedFolder:
    """A folder that times what it publishes."""

    folder: Folder
    clock: _StepClock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.folder, name)

    @contextmanager
    def publish(self, name: str, *, durable: bool = True, if_absent: bool = False) -> Iterator[BinaryIO]:
        self.clock.switch("write")
        with self.folder.publish(name, durable=durable, if_absent=if_absent) as file:
            yield file
        self.clock.switch("check")

    def publish_if_absent(self, name: str, data: pa.Buffer) -> bool:
        self.clock.switch("write")
        published = self.folder.publish_if_absent(name, data)
        self.clock.switch("check")
        return published
