"""Measures the speed of a worker: it does units of a run for a while, with a clock around their steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from tokenmill.executors.fan_out import run_all
from tokenmill.executors.messages import describe_death
from tokenmill.executors.outcomes import Executor, RetryPolicy
from tokenmill.humanize import Readable
from tokenmill.pipeline.planning.sample import raise_failure
from tokenmill.pipeline.unit.commit import Commit
from tokenmill.pipeline.unit.documents import (
    MIN_BATCH_BYTES,
    WorkerLimits,
    document_tokens,
    loaded_tokenizer,
    prefetch_files,
    unit_documents,
)
from tokenmill.pipeline.unit.part_builder import PartBuilder
from tokenmill.pipeline.unit.plan import Position, UnitTask
from tokenmill.sources.documents import ReadOptions
from tokenmill.storage import folder_at, io_threads
from tokenmill.store.job import Job
from tokenmill.store.layout import part_name
from tokenmill.tokenization.tokenizer import Tokenizer

FAST_ENGINE = "gigatoken"
# A worker works for this fraction of the time before anything counts, which fills the engine's cache.
WARM_FRACTION = 0.2
# How many units a worker gets. It begins again after the last one.
UNITS = 64


class Steps(Readable, msgspec.Struct, frozen=True):
    """Seconds per step.

    `read` fetches, decompresses and checks text. `encode` is the engine, and adds begin and end tokens. `write` joins
    batches, computes the checksum, and publishes the part.
    """

    read: float = 0.0
    encode: float = 0.0
    write: float = 0.0

    @property
    def total(self) -> float:
        """The sum of all steps."""
        return self.read + self.encode + self.write

    def plus(self, other: Steps) -> Steps:
        """The sum of both, step by step."""
        return Steps(self.read + other.read, self.encode + other.encode, self.write + other.write)


class Speed(msgspec.Struct):
    """What workers did: text, tokens, and the wall time and processor time of each step.

    `bytes_per_second` is the sum of the speeds of the workers.
    """

    text_bytes: int = 0
    tokens: int = 0
    bytes_per_second: float = 0.0
    wall: Steps = Steps()
    cpu: Steps = Steps()
    notices: tuple[str, ...] = ()

    def plus(self, other: Speed) -> Speed:
        """What the workers of both did at the same time."""
        return Speed(
            text_bytes=self.text_bytes + other.text_bytes,
            tokens=self.tokens + other.tokens,
            bytes_per_second=self.bytes_per_second + other.bytes_per_second,
            wall=self.wall.plus(other.wall),
            cpu=self.cpu.plus(other.cpu),
            notices=(*self.notices, *other.notices),
        )


@dataclass(frozen=True, slots=True)
class MeasureSpeed:
    """The function that does units for so many seconds, with real parts in `directory`, which are then removed.

    The last unit is stopped after any batch, because a slow engine may take minutes for a unit.
    """

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    seconds: float

    def __call__(self, tasks: tuple[UnitTask, ...]) -> Speed:
        """Load the engine, warm it up, and measure."""
        Position("begin").mark()
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine)
        units = itertools.cycle(tasks)
        warm_seconds = self.seconds * WARM_FRACTION
        self._work(units, tokenizer, warm_seconds)
        return self._work(units, tokenizer, self.seconds - warm_seconds)

    def _work(self, units: Iterator[UnitTask], tokenizer: Tokenizer, seconds: float) -> Speed:
        """Do units until the time is over, and all of them if they have no text."""
        folder, options = folder_at(self.directory), self._options()
        clock, speed, waiting, following = _StepClock(), Speed(), Future[None](), next(units)
        waiting.set_result(None)
        until = time.monotonic() + seconds
        for number in itertools.count():
            if time.monotonic() >= until and (speed.text_bytes or number >= UNITS):
                break
            task, following = following, next(units)
            prefetch_files(following, 0, options)
            builder = tokenizer.retry_with_reference(lambda: self._encode(task, tokenizer, clock, until))  # noqa: B023
            speed.text_bytes += builder.text_bytes
            speed.tokens += sum(len(tokens) for tokens in builder.tokens)
            waiting.result()
            waiting = _publish(Commit(folder, builder, recheck=False))
        waiting.result()
        clock.switch(None)
        speed.wall, speed.cpu = clock.wall(), clock.cpu()
        speed.bytes_per_second = speed.text_bytes / speed.wall.total
        speed.notices = tokenizer.take_notices()
        return speed

    def _options(self) -> ReadOptions:
        """Small batches for a slow engine, which they do not slow down."""
        options = self.limits.read_options(self.job)
        if self.engine == FAST_ENGINE:
            return options
        return msgspec.structs.replace(options, batch_bytes=MIN_BATCH_BYTES)

    def _encode(self, task: UnitTask, tokenizer: Tokenizer, clock: _StepClock, until: float) -> PartBuilder:
        """What a part gets of a unit. Time counts as writing afterwards."""
        builder = PartBuilder(self.job, task, self.limits.with_text)
        clock.switch("read")
        for file, documents in unit_documents(self.directory, task, self.job, self.limits, options=self._options()):
            clock.switch("encode")
            present = documents.without_nulls()
            encoded = document_tokens(file, present, self.job, tokenizer, self.limits)
            clock.switch("write")
            builder.skip(file, documents)
            builder.add(file, present, encoded)
            tokenizer.trim(self.limits.worker_bytes)
            if time.monotonic() >= until:
                builder.task = msgspec.structs.replace(task, rows=None)  # the planned count is that of the whole unit
                break
            clock.switch("read")
        clock.switch("write")
        return builder


def _publish(commit: Commit) -> Future[None]:
    """Publish a part and remove it: as in a run, a remote one in the background, while the next unit is read."""
    Position("write").mark()

    def publish() -> None:
        commit()
        commit.folder.discard(part_name(commit.builder.task.unit))

    if commit.folder.is_remote:
        return io_threads().submit(publish)
    publish()
    done = Future[None]()
    done.set_result(None)
    return done


def measure_all(
    executor: Executor, measure: MeasureSpeed, units: Sequence[tuple[UnitTask, ...]], report: Callable[[str], None]
) -> Speed:
    """The speed of several workers, each with its units, while all of them work."""
    total, numbers = Speed(), itertools.count()  # parts of two workers need different names
    items = [tuple(msgspec.structs.replace(task, unit=next(numbers)) for task in tasks) for tasks in units]
    again = "{}; the measurement was done again".format
    for done in run_all(
        executor,
        measure,
        items,
        policy=RetryPolicy(workers=len(items)),
        on_death=lambda death: report(again(describe_death(death, f"a measurement of {measure.engine}"))),
        on_failure=raise_failure,
    ):
        total = total.plus(done.value)
    return total


@dataclass(slots=True)
class _StepClock:
    """Adds up wall time and processor time per step."""

    _seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    _step: str | None = None
    _since: tuple[float, float] = (0.0, 0.0)

    def switch(self, step: str | None) -> None:
        """Count time toward this step from now on."""
        now = (time.monotonic(), time.thread_time())
        if self._step is not None:
            wall, cpu = self._seconds.get(self._step, (0.0, 0.0))
            self._seconds[self._step] = (wall + now[0] - self._since[0], cpu + now[1] - self._since[1])
        self._step, self._since = step, now

    def wall(self) -> Steps:
        """The wall time of each step."""
        return Steps(**{step: wall for step, (wall, _) in self._seconds.items()})

    def cpu(self) -> Steps:
        """The processor time of each step."""
        return Steps(**{step: cpu for step, (_, cpu) in self._seconds.items()})
