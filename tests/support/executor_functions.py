"""Functions that executors are tested with, good and bad: workers import them by name from here."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from tokenmill.errors import SourceError
from tokenmill.system import status_page, storage_settings

WAIT_SECONDS = 30.0
"""The longest that anything here waits for a condition."""

_hoard: list[bytes] = []


def double(number: int) -> int:
    """Twice the number."""
    return 2 * number


def negate(number: int) -> int:
    """The number with its sign turned."""
    return -number


def pid(_: object) -> int:
    """The process that runs this."""
    return os.getpid()


def endpoint(_: object) -> tuple[str | None, str | None]:
    """The endpoint that a caller gave, and that of the environment."""
    return storage_settings.current().endpoint, os.environ.get("AWS_ENDPOINT_URL")


def zeros(count: int) -> bytes:
    """A value of that many bytes."""
    return bytes(count)


def unsendable(_: object) -> object:
    """A value that cannot be sent anywhere."""
    return threading.Lock()


def hoard(count: int) -> int:
    """Keep that many bytes for good; the process that has them."""
    _hoard.append(b"x" * count)
    return os.getpid()


def fail(kind: str) -> None:
    """Raise an error: one made for people, or any other."""
    if kind == "explained":
        raise SourceError("the source is gone", "file         a.parquet")
    raise ValueError("seven is no number")


def die(way: str) -> None:
    """End the process in the middle of an item."""
    if way == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif way == "SIGSEGV":
        ctypes.string_at(0)
    elif way == "SIGABRT":
        os.abort()
    elif way == "sys.exit(5)":
        sys.exit(5)
    else:
        os._exit(int(way))


def double_or_die(item: int | str) -> int:
    """Twice the number, or the end of the process if the item is a way to die."""
    if isinstance(item, str):
        die(item)
    return double(int(item))


def die_at_first(marker: str) -> str:
    """Die if the marker file is not there yet, having made it; later, succeed."""
    if not os.path.exists(marker):
        Path(marker).touch()
        die("SIGKILL")
    return "alive"


def die_fat(count: int) -> None:
    """Die while holding that many bytes, after long enough for someone to see it."""
    hoard(count)
    time.sleep(1.5)
    die("SIGKILL")


def linger(_: object) -> None:
    """Close every pipe, but never come to the end."""
    os.closerange(3, 1024)
    time.sleep(WAIT_SECONDS)


def die_talking(words: str) -> None:
    """Print something and something to stderr, then die without the interpreter's good-bye."""
    os.write(1, b"printed\n")
    os.write(2, words.encode())
    die("SIGABRT")


def announce_and_wait(marker: str) -> None:
    """Write one's own pid to a file, then wait, in Python, for long. Return at once if the file was there already."""
    if _announce(marker):
        time.sleep(WAIT_SECONDS)


def announce_and_wait_unguarded(marker: str) -> None:
    """The same, without the kernel's promise to kill this process when its parent dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    announce_and_wait(marker)


def announce_and_hold_interpreter(marker: str) -> None:
    """The same, waiting in native code that lets no other thread of Python run."""
    if _announce(marker):
        ctypes.PyDLL(None).sleep(int(WAIT_SECONDS))


def announce_and_wait_as_named(marker: str) -> None:
    """One of these, which the name of the file chooses."""
    ways = {"unguarded": announce_and_wait_unguarded, "stuck": announce_and_hold_interpreter}
    ways.get(Path(marker).name, announce_and_wait)(marker)


def _announce(marker: str) -> bool:
    if os.path.exists(marker):
        return False
    Path(f"{marker}.new").write_text(str(os.getpid()))
    os.replace(f"{marker}.new", marker)
    return True


def wait_for(marker: str) -> str:
    """Wait until a file is there; what it holds."""
    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end:
        if os.path.exists(marker):
            return Path(marker).read_text()
        time.sleep(0.005)
    raise TimeoutError(marker)


def has_thread(module: str) -> str:
    """Whether a module was loaded before this function was asked for."""
    return "loaded" if module in sys.modules else "not loaded"


def pandas_after_use_of_arrow(_: object) -> bool:
    """Whether pyarrow has loaded pandas, as it does with its first array."""
    import pyarrow as pa

    pa.array([1])
    return "pandas" in sys.modules


def mark_and_sleep(times: list[float]) -> str:
    """Begin one thing after the other, each of which takes so long; each may take two seconds."""
    for number, seconds in enumerate(times):
        status_page.set_status(f"step {number}".encode(), 2.0)
        time.sleep(seconds)
    return "awake"


def be_refused(seconds: float) -> str:
    """Wait so long for a server that refuses requests, without a step of one's own; a step may take half a second."""
    status_page.set_status(b"waiting", 0.5)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        threading.Thread(target=status_page.note_refusal).start()
        time.sleep(0.1)
    return "served"


def mark_and_announce(marker: str) -> None:
    """Begin something that may take two seconds, write one's own pid to a file, and wait."""
    status_page.set_status(b"marked", 2.0)
    announce_and_wait(marker)


def mark_or_not(item: tuple[float, float]) -> str:
    """Begin something that may take so long, if that is more than nothing, and takes so long."""
    limit, seconds = item
    if limit:
        status_page.set_status(b"marked", limit)
    time.sleep(seconds)
    return "awake"


def hold(megabytes: int) -> int:
    """Have that much memory, if it is much for a while."""
    held = b"x" * (megabytes << 20)
    time.sleep(1.0 if megabytes > 1 else 0.0)
    return len(held)


def be_killed(marker: str) -> int:
    """Be killed from outside as often as the file's name says, then live."""
    with open(marker, "a+") as file:
        file.seek(0)
        before = len(file.read())
        file.write("x")
    if before < int(Path(marker).name):
        os.kill(os.getpid(), signal.SIGKILL)
    return before
