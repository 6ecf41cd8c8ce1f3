"""What an executor yields for an item: a value, an error, or a death. Small frozen records, no live objects."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

from tokenmill.errors import FAILED
from tokenmill.humanize import duration, signal_name, size

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that did something, the memory it had used at most by then, and its node, if that is not this one."""

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


@dataclass(frozen=True, slots=True)
class Failed(Generic[Item]):
    """The function raised. `explained` tells that the message was made for people and says all there is to say.

    `note` is what the worker had last marked of the item; nothing, if it failed in the background. `exit_code` is the
    one of a command that ends with the error (see errors).
    """

    item: Item
    kind: str
    message: str
    explained: bool
    traceback: str
    worker: Worker
    note: bytes = b""
    exit_code: int = FAILED


class Cause(enum.Enum):
    """Why a worker ended. What somebody else killed, or what was lost with its node, says nothing about its item."""

    CRASH = "crash"
    KILLED = "killed"
    LOST = "lost"
    MEMORY = "memory"
    SILENCE = "silence"


@dataclass(frozen=True, slots=True)
class ExitReport:
    """How a worker ended: exit code (negative: signal), why, and the limit of bytes or seconds that it had passed.

    `detail` tells how one was lost.
    """

    exit_code: int
    cause: Cause
    limit: float | None = None
    by_kernel: bool = False
    detail: str = ""

    @property
    def by_others(self) -> bool:
        """Whether the item it had is surely not to blame."""
        return self.cause in (Cause.KILLED, Cause.LOST)

    def __str__(self) -> str:
        if self.cause is Cause.LOST:
            return f"was lost: {self.detail}"
        if self.cause is Cause.SILENCE:
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
class Died(Generic[Item]):
    """The worker ended in the middle of the item. `final` tells that the item will not be tried again.

    `note` is what the worker had last marked (see marks); `workers` is how many go on.
    """

    item: Item
    end: ExitReport
    worker: Worker
    seconds: float
    attempt: int
    final: bool
    last_words: str
    note: bytes
    workers: int

    @property
    def how(self) -> str:
        """The way it ended, in words."""
        return str(self.end)

    @property
    def said(self) -> str:
        """The last line that it printed, if it printed any."""
        return self.last_words.rpartition("\n")[2][:200]

    @property
    def exit_code(self) -> int:
        """The code it exited with; negative: the signal that killed it."""
        return self.end.exit_code


Outcome = Done[Item, Value] | Failed[Item] | Died[Item]


def never() -> bool:
    """Not yet."""
    return False


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How work is given out: how many deaths an item may cost, and how many workers of a machine are used at most.

    Deaths by somebody else's hand are counted apart: they are no fault of the item. `ahead` is how many more items a
    worker is given beyond the one it is at, so that it can foresee them. Where there are several machines, an error
    whose kind is in `elsewhere` may be the machine's fault, so the item is tried on others. `enough` is asked now and
    then, while workers are busy; when it says yes, what they are at is left, and no outcome comes of it.
    """

    deaths: int = 3
    kills: int = 3
    workers: int | None = None
    ahead: int = 0
    elsewhere: tuple[str, ...] = ("StoreError", "StorageError", "SourceError", "CorruptStore", "LimitReached")
    enough: Callable[[], bool] = never


DEFAULT_POLICY = RetryPolicy()

OWN_BYTES = 300 << 20
"""What whoever supervises workers needs beside them, on each machine."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What there is to work with: processors in all and on the largest machine, and the memory of each processor.

    `machine_bytes` is this machine's memory, to compare a budget with; None if it is a cluster of `machines`.
    """

    processors: int
    of_machine: int
    share_bytes: int
    machine_bytes: int | None = None
    machines: int = 1


class Executor(Protocol):
    """Runs a function over items somewhere else, and survives the death of whoever runs it."""

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], terms: RetryPolicy = DEFAULT_POLICY
    ) -> Iterator[Done[Item, Value] | Failed[Item] | Died[Item]]:
        """Yield outcomes as they come. Items are taken one by one, when a worker is free for them.

        If the terms let workers have items ahead, and the function has a method `foresee`, that may be called with an
        item before the function is, on another thread, while the function is at an earlier item. It should return
        soon; what it raises is ignored. A function may return a future: its result is the value of the item, and the
        worker goes on with its next item until then.
        """
        ...


class Pool(Executor, Protocol):
    """An executor whose workers have to be started, and who are gone when its block ends."""

    @property
    def room(self) -> Capacity:
        """What there is to work with."""
        ...

    @property
    def workers(self) -> int:
        """How many workers there are now."""
        ...

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes they are on; none if they are here."""
        ...

    def start(
        self,
        workers: int,
        worker_bytes: int | None = None,
        memory_bytes: int | None = None,
        most_workers: int | None = None,
    ) -> Self:
        """Have this many workers. One that holds more than `worker_bytes` is replaced between items.

        If those of a machine hold more than their share of `memory_bytes` together, the largest is stopped. Where
        machines may join later, there may be up to `most_workers` then.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...
