"""What an executor yields for an item: a value, an error, or a death. Small frozen records, no live objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tokenmill.wording import signal_name

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that did something, and the memory it had used at most by then."""

    pid: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Done(Generic[Item, Value]):
    """The function returned."""

    item: Item
    value: Value
    worker: Worker
    seconds: float


@dataclass(frozen=True, slots=True)
class Failed(Generic[Item]):
    """The function raised. `explained` tells that the message was made for people and says all there is to say."""

    item: Item
    kind: str
    message: str
    explained: bool
    traceback: str
    worker: Worker


@dataclass(frozen=True, slots=True)
class Died(Generic[Item]):
    """The worker ended in the middle of the item. `final` tells that the item will not be tried again."""

    item: Item
    exit_code: int
    worker: Worker
    seconds: float
    attempt: int
    final: bool
    kernel_out_of_memory: bool
    last_words: str

    @property
    def how(self) -> str:
        """The way it ended, in words."""
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code}"
        cause = " by the kernel, which ran out of memory" if self.kernel_out_of_memory else ""
        return f"was killed{cause} ({signal_name(-self.exit_code)})"


Outcome = Done[Item, Value] | Failed[Item] | Died[Item]


class Executor(Protocol):
    """Runs a function over items somewhere else, and survives the death of whoever runs it."""

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item]
    ) -> Iterator[Done[Item, Value] | Failed[Item] | Died[Item]]:
        """Yield outcomes as they come. Items are taken one by one, when a worker is free for them."""
        ...
