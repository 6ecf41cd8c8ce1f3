"""Files of the Hub: where their bytes are, and byte ranges of them.

The Hub answers with the URL of the file on its CDN, signed for a limited time. Each process asks the Hub once per file,
and reads from the CDN. When the CDN does not accept the URL any more, the Hub is asked again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urljoin

import pyarrow as pa

from tokenmill.errors import StorageError
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.hub.address import HubAddress, is_commit, parse
from tokenmill.storage.hub.client import endpoint, is_hub
from tokenmill.storage.hub.requests import MAX_ATTEMPTS, Backoff, TransientError, answer, check, is_missing, not_the_hub
from tokenmill.storage.objects.errors import another_version

MAX_LOCATIONS = 1024  # that a process remembers
MAX_REDIRECTS = 5


@dataclass(slots=True)
class FileLocation:
    """A file as the Hub describes it, and where its bytes are.

    Attributes:
        address: The address with its commit.
        size: The size in bytes.
        fingerprint: The hash of the content.
        target: The URL of the bytes, usually on the CDN.
        etag: The etag at the target, which may differ from the Hub's; empty if no request was made yet.
    """

    address: HubAddress
    size: int
    fingerprint: str
    target: str
    etag: str = ""

    @property
    def info(self) -> FileInfo:
        """The file as a source."""
        return FileInfo(self.address.url, self.size, self.fingerprint)


@dataclass(slots=True)
class _Entry:
    """A remembered location. A thread holds the lock while it asks the Hub."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    location: FileLocation | None = None


# By process and file: a fork may copy a lock that is held.
_entries: dict[tuple[int, HubAddress], _Entry] = {}


def _entry(address: HubAddress) -> _Entry:
    """What this process remembers of a file. All threads get the same entry."""
    if len(_entries) >= MAX_LOCATIONS:  # few files are read at a time, so little is asked for again
        _entries.clear()
    return _entries.setdefault((os.getpid(), address), _Entry())


def fetch(url: str, fingerprint: str, start: int, stop: int) -> pa.Buffer:
    """The bytes from start to stop of the version of a file with this fingerprint."""
    address, backoff = parse(url), Backoff(parse(url))
    chunks: list[bytes] = []
    position = start
    while position < stop:
        try:
            for chunk in _stream(address, fingerprint, position, stop):
                chunks.append(chunk)
                position += len(chunk)
                backoff.reset()
        except TransientError as error:
            backoff.wait(error)
    return pa.py_buffer(b"".join(chunks))


def locate(address: HubAddress, unconnected_attempts: int = MAX_ATTEMPTS) -> FileLocation | None:
    """Ask the Hub for a file; None if the dataset has no file of that path."""
    backoff = Backoff(address, unconnected_attempts)
    while True:
        try:
            return _request_location(address)
        except TransientError as error:
            backoff.wait(error)


def _stream(address: HubAddress, fingerprint: str, start: int, stop: int) -> Iterator[bytes]:
    """The bytes from start to stop as they arrive. Raises TransientError if they break off."""
    entry = _entry(address)
    location = _current_location(entry, address, fingerprint)
    if stop > location.size:
        raise EOFError(f"bytes {start} to {stop} were asked for of a file of {location.size}")
    left = stop - start
    try:
        with answer("GET", location.target, {"range": f"bytes={start}-{stop - 1}"}) as response:
            _check_range(response, location, start, stop)
            for chunk in response.iter_raw():  # to the end: otherwise the connection is not reused
                yield chunk[:left]
                left -= len(chunk)
                if left < 0:
                    return
    except TransientError as error:
        if error.is_misplaced and entry.location is location:
            entry.location = None
        raise
    if left:
        raise TransientError(f"{left} bytes are missing at the end of an answer")


def _current_location(entry: _Entry, address: HubAddress, fingerprint: str) -> FileLocation:
    with entry.lock:  # one thread asks the Hub, and the others wait for its answer
        location = entry.location
        if location is None:
            location = entry.location = locate(address)
    if location is None or location.fingerprint != fingerprint:
        raise another_version(address.url, fingerprint, location.info if location else None)
    return location


def _check_range(response: Any, location: FileLocation, start: int, stop: int) -> None:
    """Raise if an answer does not contain the requested range of the file."""
    status = response.status_code
    if is_hub(location.target) and status != 416:
        check(location.address, response)
    is_whole = status == 200 and start == 0
    if not is_whole and status != 206:  # the URL may have expired
        raise TransientError(f"the CDN answered {status} to a request for bytes {start} to {stop}", is_misplaced=True)
    expected = f"bytes {start}-{stop - 1}/{location.size}"
    if not is_whole and response.headers.get("content-range", expected) != expected:
        raise TransientError(
            f"the CDN answered with {response.headers['content-range']} instead of {expected}", is_misplaced=True
        )
    etag = _etag(response, "etag")
    if location.etag not in ("", etag):
        raise TransientError("the CDN has another file now", is_misplaced=True)
    location.etag = etag


def _request_location(address: HubAddress) -> FileLocation | None:
    """One attempt to locate a file. Redirects of the Hub itself, to a renamed dataset, are followed."""
    target = (
        f"{endpoint()}/datasets/{address.repository}/resolve/{quote(address.revision, safe='')}/{quote(address.path)}"
    )
    for _ in range(MAX_REDIRECTS):
        with answer("HEAD", target) as response:
            if is_missing(response):
                return None
            check(address, response)
            if not 300 <= response.status_code < 400:
                return _location(address, target, response)
            target = urljoin(target, response.headers.get("location", ""))
            if not is_hub(target) and _etag(response, "x-linked-etag"):
                return _location(address, target, response)
    raise StorageError("the Hub redirects in a circle", f"file         {address.url}")


def _location(address: HubAddress, target: str, response: Any) -> FileLocation:
    headers = response.headers
    etag = _etag(response, "x-linked-etag") or _etag(response, "etag")
    size = headers.get("x-linked-size") or headers.get("content-length") or ""
    commit = address.revision if address.is_pinned else headers.get("x-repo-commit", "")
    if not etag or not size.isdigit() or not is_commit(commit):
        raise not_the_hub(address, "the hash, the size or the commit of the file is missing")
    return FileLocation(address.at(commit, address.path), int(size), etag, target)


def _etag(response: Any, header: str) -> str:
    """An etag without quotes; empty without the header."""
    return str(response.headers.get(header, "")).removeprefix("W/").strip('"')
