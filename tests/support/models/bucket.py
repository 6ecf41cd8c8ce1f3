"""A bucket of a model, and processes that take turns in it."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

Value = TypeVar("Value")


class Bucket(dict[str, bytes]):
    """Objects by their names. Each method is one request, and atomic."""

    def names(self, prefix: str) -> list[str]:
        """The names that begin so."""
        return sorted(name for name in self if name.startswith(prefix))

    def create(self, name: str, data: bytes) -> bool:
        """Write an object unless there is one of this name."""
        if name in self:
            return False
        self[name] = data
        return True

    def discard(self, name: str) -> None:
        """Remove an object if there is one."""
        self.pop(name, None)

    def copy(self) -> Bucket:
        """A backup."""
        return Bucket(self)


Access = Callable[[Bucket], Any]
Steps = Generator[Access, Any, Value]
"""A process: it yields accesses, and receives their results."""


def names(prefix: str) -> Steps[list[str]]:
    """List the names that begin so."""
    result: list[str] = yield lambda bucket: bucket.names(prefix)
    return result


def get(name: str) -> Steps[bytes | None]:
    """Read an object; None if there is none."""
    result: bytes | None = yield lambda bucket: bucket.get(name)
    return result


def create(name: str, data: bytes) -> Steps[bool]:
    """Write an object unless there is one."""
    result: bool = yield lambda bucket: bucket.create(name, data)
    return result


def replace(name: str, data: bytes) -> Steps[None]:
    """Write an object."""
    yield lambda bucket: bucket.__setitem__(name, data)


def discard(name: str) -> Steps[None]:
    """Remove an object if there is one."""
    yield lambda bucket: bucket.discard(name)


def encode(value: Any) -> bytes:
    """A record as bytes."""
    return json.dumps(value, sort_keys=True).encode()


def digest(data: bytes) -> str:
    """The hash of bytes."""
    return hashlib.blake2b(data, digest_size=6).hexdigest()


@dataclass(eq=False)
class Process:
    """A process of a race: what it does, after how many steps it pauses, and how it ended."""

    name: str
    steps: Steps[Any]
    pause: int = 0
    reply: Any = None
    result: Any = None
    error: Exception | None = None
    is_killed: bool = False

    def advance(self, bucket: Bucket) -> bool:
        """Do one access. Returns False at the end."""
        self.pause -= self.pause > 1
        try:
            self.reply = self.steps.send(self.reply)(bucket)
        except StopIteration as end:
            self.result = end.value
        except RefusedError as error:
            self.error = error
        else:
            return True
        return False


class RefusedError(Exception):
    """A process ended because of what it found."""


@dataclass
class Race:
    """Processes that take turns. `backup` is called at random moments."""

    bucket: Bucket
    rng: random.Random
    killed: float
    backed_up: float
    backup: Callable[[], None]
    ended: list[Process] = field(default_factory=list)

    def run(self, processes: list[Process]) -> None:
        """Run processes until all have ended or were killed. One that pauses sleeps until no other is left."""
        alive = list(processes)
        while alive:
            process = self.rng.choice([one for one in alive if one.pause != 1] or alive)
            if self.rng.random() < self.killed:
                process.is_killed = True
                alive.remove(process)
                continue
            if self.rng.random() < self.backed_up:
                self.backup()
            if not process.advance(self.bucket):
                alive.remove(process)
                self.ended.append(process)


def run(bucket: Bucket, steps: Steps[Value]) -> Value:
    """Run one process alone. Raises RefusedError as it does."""
    process = Process("", steps)
    while process.advance(bucket):
        pass
    if process.error is not None:
        raise process.error
    result: Value = process.result
    return result
