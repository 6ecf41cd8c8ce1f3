"""Calls that are stopped at their accesses to files: killed there, or made to take turns with other calls.

A call of a race is a thread. At each access to a file it waits until the stage lets it go on, so one call runs at a
time, and the seed decides which. A kill is an exception that no handler of the package catches; whatever the call does
to files afterwards fails, too. In a forked process it is a real SIGKILL.
"""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import inline_executor
from tests.support.restores.remembering import remember_tables
from tokenmill.storage.local.disk import DiskFolder, DiskRegions
from tokenmill.storage.objects.bucket import BucketFolder
from tokenmill.storage.objects.regions import BucketRegions

READS = ("exists", "names", "read", "size")
ACCESSES: dict[type, tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    DiskFolder: (READS, ("discard", "remove", "append"), ("publish",)),
    BucketFolder: (READS, ("discard", "remove", "append", "publish_if_absent"), ("publish",)),
    DiskRegions: ((), ("finalize",), ("write",)),
    BucketRegions: ((), ("finalize",), ()),
}
"""What is stopped of each class: reads, changes, and changes that happen when a block ends."""

BLOCKED_SECONDS = 1.0
"""A call that comes to no access in this time waits for a lock that another one holds."""

MAX_SECONDS = 120.0

sleep = time.sleep


class Killed(BaseException):
    """The end of a killed call."""


@dataclass(eq=False)
class Actor:
    """A call on the stage, and how it ended.

    It is killed at its `kill_at`-th change, and paused at its `pause_at`-th access until the others have ended.
    """

    name: str
    function: Callable[[], Any]
    kill_at: int = 0
    pause_at: int = 0
    result: Any = None
    error: BaseException | None = None
    changes: int = 0
    accesses: int = 0
    sleeps: bool = False
    has_ended: bool = False
    kill: Callable[[], None] | None = None
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def run(self) -> None:
        """Call the function, and keep its result or its error."""
        try:
            self.result = self.function()
        except BaseException as error:  # noqa: BLE001 - the caller judges how it ended
            self.error = error

    def change(self) -> None:
        """Die if this is the change of the kill. A dead call changes nothing more."""
        self.changes += 1
        if self.kill_at and self.changes >= self.kill_at:
            if self.kill is not None:
                self.kill()
            raise Killed(self.name)

    @property
    def is_ready(self) -> bool:
        """Whether it is neither paused nor waits for a moment."""
        return not self.sleeps and self.accesses != self.pause_at


class Stage:
    """Stops the calls of actors at their accesses to files. Other calls pass."""

    def __init__(self) -> None:
        self._actors: dict[int, Actor] = {}
        self._arrived: queue.SimpleQueue[Actor] | None = None

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Stop calls at the accesses of both kinds of folders, and do not wait for the disk."""
        with pytest.MonkeyPatch.context() as patch:
            remember_tables(patch)
            patch.setattr(os, "fsync", lambda _: None)
            patch.setattr(time, "sleep", self._sleep)
            patch.setattr(inline_executor, "_supervised", contextlib.nullcontext)  # there is one status page
            for kind, (reads, changes, blocks) in ACCESSES.items():
                for name in (*reads, *changes):
                    patch.setattr(kind, name, self._stopped(getattr(kind, name), is_change=name in changes))
                for name in blocks:
                    patch.setattr(kind, name, self._stopped_block(getattr(kind, name)))
            yield

    def call(self, actor: Actor) -> Actor:
        """Run an actor alone, until its end or its kill."""
        with self._acting(actor):
            actor.run()
        return actor

    def fork(self, actor: Actor) -> int:
        """Run an actor in a process of its own, with a real kill. Returns the id of the process."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # idle threads of libraries do no harm
            process = os.fork()
        if process:
            return process
        actor.kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
        self.call(actor)
        os._exit(0 if actor.error is None else 1)

    def race(self, actors: Sequence[Actor], rng: random.Random) -> None:
        """Run actors in turns, as `rng` says."""
        self._arrived = arrived = queue.SimpleQueue[Actor]()
        threads = [threading.Thread(target=self._perform, args=(actor,), daemon=True) for actor in actors]
        for thread in threads:
            thread.start()
        running, waiting = set(actors), list[Actor]()
        while running or waiting:
            with contextlib.suppress(queue.Empty):  # those that run wait for a lock of one that waits for its turn
                while running:
                    actor = arrived.get(timeout=BLOCKED_SECONDS if waiting else MAX_SECONDS)
                    running.remove(actor)
                    if not actor.has_ended:
                        waiting.append(actor)
            if running and not waiting:
                raise TimeoutError(f"these calls do not go on: {[actor.name for actor in running]}")
            if waiting:
                actor = rng.choice([one for one in waiting if one.is_ready] or waiting)
                waiting.remove(actor)
                running.add(actor)
                actor.turn.release()
        for thread in threads:
            thread.join()
        self._arrived = None

    def _perform(self, actor: Actor) -> None:
        """The thread of an actor of a race."""
        assert self._arrived is not None
        with self._acting(actor):
            self._wait(actor)
            actor.run()
        actor.has_ended = True
        self._arrived.put(actor)

    @contextlib.contextmanager
    def _acting(self, actor: Actor) -> Iterator[None]:
        self._actors[threading.get_ident()] = actor
        yield
        del self._actors[threading.get_ident()]

    def _wait(self, actor: Actor) -> None:
        """Wait for the turn, if there are others."""
        if self._arrived is not None:
            self._arrived.put(actor)
            actor.turn.acquire()

    def _access(self, *, is_change: bool) -> None:
        actor = self._actors.get(threading.get_ident())
        if actor is None:
            return
        actor.accesses += 1
        self._wait(actor)
        if is_change:
            actor.change()

    def _sleep(self, seconds: float) -> None:
        """Let the others go on. Only a call that is alone waits."""
        actor = self._actors.get(threading.get_ident())
        if actor is None or len(self._actors) == 1:
            sleep(seconds)
            return
        actor.sleeps = True
        self._wait(actor)
        actor.sleeps = False

    def _stopped(self, method: Callable[..., Any], *, is_change: bool) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self._access(is_change=is_change)
            return method(*args, **kwargs)

        return call

    def _stopped_block(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @contextlib.contextmanager
        def call(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with method(*args, **kwargs) as file:
                yield file
                self._access(is_change=True)

        return call
