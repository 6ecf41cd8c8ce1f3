"""The contract of executors: what they yield for an item (a value, an error or a death), and how they retry.

Outcomes are small frozen records without live objects, so that they can be sent between machines.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, Self, TypeVar

from tokenmill.errors import TokenmillError, error_class, exit_code_of
from tokenmill.humanize import duration, signal_name, size


def never() -> bool:
    """Return False: the default of `RetryPolicy.should_stop`."""
    return False


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How items are handed out and retried.

    Attributes:
        max_crashes: Worker crashes after which an item is given up.
        max_kills: External kills and lost nodes after which an item is given up. They count apart from crashes,
            because only a crash can be the item's fault.
        workers: Workers used on each machine; None for all.
        prefetch: Items that a worker holds beyond the current one, so that the function can prefetch their data.
        should_stop: Polled while workers are busy. When it returns True, the run ends without an outcome for the
            items in progress.
    """

    max_crashes: int = 3
    max_kills: int = 3
    workers: int | None = None
    prefetch: int = 0
    should_stop: Callable[[], bool] = never


DEFAULT_POLICY = RetryPolicy()


Item = TypeVar("Item")
Value = TypeVar("Value")

# Characters of a worker's last output line that a message shows.
SHOWN_LINE = 200

# Memory that the supervising process needs beside its workers, on each machine.
OWN_BYTES = 300 << 20


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process: its peak memory so far, and its node if that is another machine."""

    pid: int
    peak_bytes: int
    node: str = ""

    def __str__(self) -> str:
        return f"worker {self.pid}" + (f" on {self.node}" if self.node else "")


@dataclass(frozen=True, slots=True)
class Done(Generic[Item, Value]):
    """The function returned."""

    item: Item
    value: Value
    worker: Worker
    seconds: float


ErrorRecord = tuple[str, str, tuple[str, ...], int, bool]


def error_record(error: BaseException) -> ErrorRecord:
    """An error as it crosses the process border: kind, headline, details, exit code, and whether it is ours."""
    if isinstance(error, TokenmillError):
        return type(error).__name__, error.headline, error.details, error.exit_code, True
    return type(error).__name__, str(error), (), exit_code_of(error), False


@dataclass(frozen=True, slots=True)
class Failed(Generic[Item]):
    """The function raised.

    Attributes:
        kind: Name of the error's class.
        headline: First line of a TokenmillError, or the whole text of another error.
        details: Further lines of a TokenmillError.
        exit_code: Exit code of a command that ends with this error.
        explained: Whether it is a TokenmillError, whose message needs no traceback.
        note: Last status that the worker wrote for the item; empty if a background thread failed.
    """

    item: Item
    kind: str
    headline: str
    details: tuple[str, ...]
    exit_code: int
    explained: bool
    worker: Worker
    traceback: str = ""
    note: bytes = b""

    @classmethod
    def of(cls, item: Item, error: BaseException, worker: Worker) -> Failed[Item]:
        """The failure of an item with an error that was raised in this process."""
        return cls(item, *error_record(error), worker)

    @property
    def message(self) -> str:
        """The whole text of the error, with options as the command line names them."""
        return self.error().text if self.explained else self.headline

    @property
    def error_class(self) -> type[TokenmillError] | None:
        """The class of the error; None if it is not a TokenmillError."""
        return error_class(self.kind) if self.explained else None

    def is_a(self, kind: type[TokenmillError]) -> bool:
        """Whether the error is of that class or of a subclass."""
        return self.error_class is not None and issubclass(self.error_class, kind)

    def error(self) -> TokenmillError:
        """The error, to be raised again in this process; of an error that is not ours, only the text remains."""
        kind = self.error_class or TokenmillError
        error = kind.__new__(kind)  # a subclass may have parameters of its own
        TokenmillError.__init__(error, self.headline, *self.details, exit_code=self.exit_code)
        return error


class Cause(enum.Enum):
    """Why a worker ended. The values are in the run log."""

    CRASH = "crash"
    KILLED = "killed"
    NODE_LOST = "lost"
    MEMORY = "memory"
    STALLED = "silence"


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How a worker ended.

    Attributes:
        exit_code: Exit code; negative for a signal.
        cause: Why it ended.
        limit: The limit it exceeded, in bytes or seconds.
        by_kernel: Whether the kernel's OOM killer ended it.
        detail: How the node was lost.
    """

    exit_code: int
    cause: Cause
    limit: float | None = None
    by_kernel: bool = False
    detail: str = ""

    @property
    def by_others(self) -> bool:
        """Whether the cause is external, so that the item cannot be at fault."""
        return self.cause in (Cause.KILLED, Cause.NODE_LOST)

    def __str__(self) -> str:
        if self.cause is Cause.NODE_LOST:
            return f"was lost: {self.detail}"
        if self.cause is Cause.STALLED:
            return f"was stopped: it had not moved on for {duration(self.limit or 0)}"
        if self.cause is Cause.MEMORY and not self.by_kernel:
            return f"was stopped: the workers held more than their {size(int(self.limit or 0))} of memory"
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code}"
        if self.cause is not Cause.MEMORY:
            return f"was killed ({signal_name(-self.exit_code)})"
        limit = f": the limit of its cgroup is {size(int(self.limit))}" if self.limit else ""
        return f"was killed by the kernel, which ran out of memory{limit} ({signal_name(-self.exit_code)})"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An item, and how many earlier attempts ended in a crash of the worker or in an external kill."""

    item: Any
    crashes: int = 0
    kills: int = 0

    @property
    def number(self) -> int:
        """Number of this attempt, from one."""
        return self.crashes + self.kills + 1

    def after(self, end: ExitReport) -> Attempt:
        """The next attempt, after this one ended in a death."""
        if end.by_others:
            return replace(self, kills=self.kills + 1)
        return replace(self, crashes=self.crashes + 1)

    def is_exhausted(self, policy: RetryPolicy) -> bool:
        """Whether the policy allows no further attempt."""
        return self.crashes >= policy.max_crashes or self.kills >= policy.max_kills


@dataclass(frozen=True, slots=True)
class Died(Generic[Item]):
    """The worker ended while it worked on the item.

    Attributes:
        attempt: Number of the attempt, from one.
        final: Whether the item is given up, not retried.
        output_tail: The end of what the worker printed.
        note: Last status that the worker wrote for the item.
        workers: Number of workers that remain.
    """

    item: Item
    end: ExitReport
    worker: Worker
    seconds: float
    attempt: int
    final: bool
    output_tail: str
    note: bytes
    workers: int

    @property
    def last_line(self) -> str:
        """The last line that the worker printed; empty if it printed nothing."""
        return self.output_tail.rpartition("\n")[2][:SHOWN_LINE]


Outcome = Done[Item, Value] | Failed[Item] | Died[Item]


@dataclass(frozen=True, slots=True)
class Capacity:
    """Processors and memory that an executor can use.

    Attributes:
        processors: Processors in total.
        cores_per_machine: Processors of the largest machine.
        bytes_per_core: Memory for each processor.
        machine_bytes: Memory of this machine, to compare a budget with; None for a cluster.
        machines: Number of machines.
    """

    processors: int
    cores_per_machine: int
    bytes_per_core: int
    machine_bytes: int | None = None
    machines: int = 1


class Executor(Protocol):
    """Runs a function over items in other processes, and survives their deaths."""

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], policy: RetryPolicy = DEFAULT_POLICY
    ) -> Iterator[Done[Item, Value] | Failed[Item] | Died[Item]]:
        """Yield outcomes in order of completion. Each item is taken from `items` when a worker is free for it.

        If the policy prefetches and the function has a method `prefetch`, the worker may call that method with the
        next item, on another thread, while the function works on an earlier item. It should return soon; its errors
        are ignored. A function may return a future: its result is the value of the item, and the worker continues
        with its next item meanwhile.
        """


class Pool(Executor, Protocol):
    """An executor that starts its workers on request and ends them when its block ends."""

    @property
    def room(self) -> Capacity:
        """Processors and memory that workers can use."""

    @property
    def workers(self) -> int:
        """Number of workers now."""

    @property
    def waiting(self) -> int:
        """Number of workers whose requests a server has just refused because there are too many."""

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes that have workers; empty if all workers are on this machine."""

    def start(
        self,
        workers: int,
        worker_bytes: int | None = None,
        memory_bytes: int | None = None,
        most_workers: int | None = None,
    ) -> Self:
        """Start workers.

        Args:
            workers: Number of workers in total.
            worker_bytes: A worker that holds more is replaced between items.
            memory_bytes: Budget of all workers. On a machine whose workers exceed their part of it, the largest is
                stopped.
            most_workers: Maximum number of workers after more machines have joined.
        """

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
