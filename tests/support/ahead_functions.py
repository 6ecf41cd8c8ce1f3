"""Functions for workers that have several items at once: they foresee, do and publish, and die wherever one likes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.executor_functions import WAIT_SECONDS, die, hoard
from tokenmill.errors import SourceError
from tokenmill.executors import worker
from tokenmill.system import status_page

Item = tuple[int, str]
"""A number, and what happens to it: see `act`."""


@dataclass(frozen=True)
class Stages:
    """Does items and publishes them in the background, each of which takes so long, and keeps a log of it."""

    log: str
    seconds: float = 0.0
    publish_seconds: float = 0.0
    wait_seconds: float = worker.WAIT_SECONDS

    def __call__(self, item: Item) -> int | Future[Any]:
        """Do an item: its number, now or when it is published."""
        worker.WAIT_SECONDS = self.wait_seconds
        attempt = write(self.log, "begin", item)
        time.sleep(self.seconds)
        if item[1].startswith("publish"):
            return background().submit(self.publish, item, attempt)
        act(item[1], item, self.log, attempt)
        return item[0]

    def publish(self, item: Item, attempt: int) -> Any:
        """Publish an item, in the background."""
        seconds = self.publish_seconds * (2 if item[1] == "publish later" else 1)
        time.sleep(seconds / 2)
        status_page.set_status(b"in the background", 0.1)  # not of the item that the main thread is at
        time.sleep(seconds / 2)
        act(item[1].removeprefix("publish").strip(), item, self.log, attempt)
        write(self.log, "published", item)
        return threading.Lock() if item[1] == "publish unsendable" else item[0]


@dataclass(frozen=True)
class Foreseeing(Stages):
    """The same with foresight, which takes so long, too."""

    foresee_seconds: float = 0.0

    def prefetch(self, item: Item) -> None:
        """Take notice of an item, and fail: that must not matter."""
        time.sleep(self.foresee_seconds)
        write(self.log, "prefetch", item)
        raise ValueError("nobody hears this")


def act(what: str, item: Item, log: str, attempt: int) -> None:
    """Do what an item asks for."""
    number = item[0]
    if what == "fail":
        status_page.set_status(f"failing {number}".encode(), 30.0)
        raise SourceError(f"{number} is no good")
    if what == "exit":
        sys.exit(3)
    if what == "crash" or (what == "crash once" and attempt == 1):
        status_page.set_status(f"crashing {number}".encode(), 30.0)
        die("SIGABRT")
    if what == "be killed" and attempt == 1:
        die("SIGKILL")
    if what == "wait for two":
        until(lambda: all(f" {number + more}\n" in Path(log).read_text() for more in (1, 2)))
    if what == "wait for word":
        until(Path(f"{log}.word").exists)
    if what == "hang":
        status_page.set_status(f"hanging {number}".encode(), 1.0)
        time.sleep(WAIT_SECONDS)
    if what == "stop":
        status_page.set_status(b"stopped", 1.0)
        os.kill(os.getpid(), signal.SIGSTOP)
    if what == "grow":
        hoard(200 << 20)


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(0.005)


def write(log: str, what: str, item: Item) -> int:
    """Add a line to the log; how many like it there are by now."""
    line = f"{what} {os.getpid()} {item[0]}\n"
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line.encode())
    os.close(descriptor)
    return sum(f"{what} " in other and other.endswith(f" {item[0]}") for other in Path(log).read_text().splitlines())


def thread_names(_: object) -> list[str]:
    """The threads of this process."""
    return sorted(thread.name for thread in threading.enumerate())


def echo(item: bytes) -> bytes:
    """The item itself."""
    return item


@cache
def background() -> ThreadPoolExecutor:
    """Threads for publishing."""
    return ThreadPoolExecutor(4)
