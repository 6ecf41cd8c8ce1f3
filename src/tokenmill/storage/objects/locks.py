"""What object stores have instead of locks: leases, journals that end with a run, and objects that are created once.

Every process may write. A server must refuse to create an object that exists already, and a probe checks that it does.
"""

from __future__ import annotations

import contextlib
import posixpath
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from tokenmill.errors import TokenmillError
from tokenmill.storage.addresses import split_url
from tokenmill.storage.folder import Folder, Lease
from tokenmill.storage.objects.clients import BucketClients
from tokenmill.storage.objects.errors import explained, no_conditional_create
from tokenmill.storage.objects.lease import BucketLease
from tokenmill.storage.objects.requests import request

PREFIX = ".probe-"  # how the names of probes begin
CONTENTS = (b"first\n", b"second\n")  # what a probe writes, and what it tries to replace that with
MAX_AGE = timedelta(minutes=5)  # an older probe was left by a driver that was killed

# Lines of a journal wait at least MIN_SECONDS. The wait grows with the age of the journal, up to MAX_SECONDS, so that a
# journal of a week still has few enough objects to list.
MIN_SECONDS = 5.0
MAX_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BucketLocks:
    """The leases and the probe of a folder. `exclusive` and `shared` exclude no process."""

    _folder: Folder
    _clients: BucketClients
    _journals: dict[str, Journal]

    @contextlib.contextmanager
    def exclusive(self, name: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:  # noqa: ARG002
        """Let every process write, and flush this process's journals when the block ends."""
        try:
            yield
        finally:
            for journal in self._journals.values():
                with contextlib.suppress(TokenmillError):  # the error of the block matters more
                    journal.flush()

    def shared(self, name: str) -> contextlib.AbstractContextManager[None]:
        """The same as `exclusive`."""
        return self.exclusive(name)

    def holder(self, name: str) -> str | None:  # noqa: ARG002 - protocol
        """None: object stores have no lock, so there is no holder."""
        return None

    def remove_if_empty(self, name: str) -> None:
        """Do nothing: a folder is gone with its last object."""

    def lease(self, name: str) -> Lease:
        """A lease of that name, not yet taken."""
        return BucketLease(self._folder, f".{name}.claim")

    def check_conditional_create(self) -> None:
        """Raise StorageError if the server would let two drivers create the same object.

        A probe creates an object twice. The server must refuse the second request and keep the first content.
        """
        folder = self._folder
        name, (first, second) = f"{PREFIX}{secrets.token_hex(8)}", CONTENTS
        try:
            folder.publish_if_absent(name, pa.py_buffer(first))
            replaced = folder.publish_if_absent(name, pa.py_buffer(second)) or folder.read(name) != first
        finally:
            with contextlib.suppress(TokenmillError):  # the probe may not exist, and an error above matters more
                for probe in [name, *self._stale_probes(name)]:  # listed before any is removed
                    folder.discard(probe)
        if replaced:
            raise no_conditional_create(folder.root, "the server ignores If-None-Match and replaces the object")

    def _stale_probes(self, name: str) -> list[str]:
        """The probes that killed drivers left behind; empty if they cannot be listed.

        The server's clock decides their age: the server has just written the probe `name`.
        """
        written: dict[str, datetime] = {}
        with contextlib.suppress(TokenmillError):
            written = self._list_times()
        now = written.get(name)
        probes = {probe: time for probe, time in written.items() if probe.startswith(PREFIX)}
        return [probe for probe, time in probes.items() if now is not None and now - time > MAX_AGE]

    def _list_times(self) -> dict[str, datetime]:
        """The names directly inside the folder, with the times at which they were written, by the server's clock."""
        import obstore  # noqa: PLC0415 - not for local runs

        root = self._folder.root
        with explained(root, "list"):
            prefix = split_url(root)[2] or None
            found = request(obstore.list_with_delimiter, self._clients.reader, prefix)["objects"]
        return {posixpath.basename(meta["path"]): meta["last_modified"] for meta in found}


class Journal:
    """The objects of a journal that this process writes. An object cannot be appended to: each write makes a new one.

    The object's name begins with the time, so that the objects of several writers sort by time.
    """

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._directory, _, self._suffix = name.partition(".")
        self._writer = f"{socket.gethostname().split('.')[0]}-{secrets.token_hex(4)}"
        self._lines = b""
        self._created = self._flushed = time.monotonic()

    def append(self, lines: bytes) -> None:
        """Buffer lines, and write the buffer if it has waited long enough."""
        self._lines += lines
        now = time.monotonic()
        if now - self._flushed >= min(max(MIN_SECONDS, (now - self._created) / 20), MAX_SECONDS):
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        if not self._lines:
            return
        milliseconds = int(time.time() * 1000)
        with self._folder.publish(f"{self._directory}/{milliseconds:014d}-{self._writer}.{self._suffix}") as file:
            file.write(self._lines)
        self._lines, self._flushed = b"", time.monotonic()
