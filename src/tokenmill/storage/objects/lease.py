"""A lease in an object store.

Its object names the holder: host, machine and process. Without a word of the holder, another process waits until the
object has not changed for STALE_SECONDS. A process on the same machine sees at once that the holder has ended.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time

import pyarrow as pa

from tokenmill.errors import TokenmillError
from tokenmill.storage.digest import hash_of
from tokenmill.storage.folder import Folder

RENEW_SECONDS = 10.0  # between two writes of the holder
STALE_SECONDS = 45.0  # without a change before another process takes the lease over
SETTLE_SECONDS = 1.0  # after which one of several processes that took the lease over at the same time has it


class BucketLease:
    """A lease as an object that its holder rewrites at intervals."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._holder = f"{socket.gethostname()} {_machine()} {os.getpid()} {secrets.token_hex(8)}"
        self._last_body = b""
        self._unchanged_since = 0.0
        self._released = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> bool:
        """Take the lease if no process holds it, or if its holder is dead."""
        if self._folder.publish_if_absent(self._name, pa.py_buffer(self._body(0))) or self._read() == self._body(0):
            self._start_renewing()
            return True
        body = self._read()
        if body != self._last_body:
            self._last_body, self._unchanged_since = body, time.monotonic()
        is_stale = time.monotonic() - self._unchanged_since >= STALE_SECONDS
        if not body or not (is_stale or _has_ended(body)):
            return False
        self._write(0)
        time.sleep(SETTLE_SECONDS)
        if self._read() != self._body(0):
            return False
        self._start_renewing()
        return True

    def release(self) -> None:
        """Stop renewing, and remove the object unless another process has taken it over."""
        self._released.set()
        if self._thread is not None:
            self._thread.join()
            with contextlib.suppress(TokenmillError):
                if self._read().startswith(self._holder.encode()):
                    self._folder.discard(self._name)

    def _start_renewing(self) -> None:
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        count = 0
        while not self._released.wait(RENEW_SECONDS):
            count += 1
            with contextlib.suppress(TokenmillError):  # the next write may succeed; if none does, the lease is lost
                self._write(count)

    def _body(self, count: int) -> bytes:
        return f"{self._holder} {count}\n".encode()

    def _write(self, count: int) -> None:
        with self._folder.publish(self._name) as file:
            file.write(self._body(count))

    def _read(self) -> bytes:
        """The content of the object; empty if it does not exist."""
        try:
            return self._folder.read(self._name, 1000)
        except TokenmillError:
            if self._folder.exists(self._name):
                raise
            return b""


def _machine() -> str:
    """The boot of this machine and the namespace of its process ids, as one word; - if they are not known."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read()
        return hash_of(f"{boot}{os.readlink('/proc/self/ns/pid')}".encode())[:16]
    except OSError:
        return "-"


def _has_ended(body: bytes) -> bool:
    """Whether the holder was a process of this machine that has ended. The id may be that of another process now."""
    machine, pid = (*body.split(b" ")[1:3], b"", b"")[:2]
    is_here = machine != b"-" and machine == _machine().encode()
    return is_here and pid.isdigit() and not os.path.exists(f"/proc/{pid.decode()}")
