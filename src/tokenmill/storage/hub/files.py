"""Files of the Hub: where their bytes are, and byte ranges of them.

The Hub answers with the URL of the file on its CDN, signed for a limited time. Each process asks the Hub once per file,
and reads from the CDN.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qs, quote, urljoin, urlsplit

import pyarrow as pa

from tokenmill.errors import SourceError, StorageError
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.hub.address import HubAddress, is_commit, parse
from tokenmill.storage.hub.client import endpoint, is_hub
from tokenmill.storage.hub.requests import MAX_ATTEMPTS, Backoff, TransientError, answer, check, is_missing
from tokenmill.storage.objects.errors import another_version

MAX_LOCATIONS = 1024  # that a process remembers
DEFAULT_SECONDS = 900.0  # validity of a location without an expiry time
MAX_REDIRECTS = 5
EXPIRED_STATUS = (401, 403, 404, 410)  # answers of a CDN to a URL whose signature has expired


@dataclass(slots=True)
class FileLocation:
    """A file as the Hub describes it, and where its bytes are.

    Attributes:
        address: The address with its commit.
        size: The size in bytes.
        fingerprint: The hash of the content.
        target: The URL of the bytes, usually on the CDN.
        valid_until: When the URL expires, by the monotonic clock.
        etag: The etag at the target, which may differ from the Hub's; empty if no request was made yet.
    """

    address: HubAddress
    size: int
    fingerprint: str
    target: str
    valid_until: float
    etag: str

    @property
    def info(self) -> FileInfo:
        """The file as a source."""
        return FileInfo(self.address.url, self.size, self.fingerprint)


@dataclass(slots=True)
class _Entry:
    """A remembered location. A thread holds the lock while it asks the Hub."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    location: FileLocation | None = None


class _LocationCache:
    """The locations of the files that were read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[HubAddress, _Entry] = OrderedDict()

    def entry(self, address: HubAddress) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(address, _Entry())
            self._entries.move_to_end(address)
            if len(self._entries) > MAX_LOCATIONS:
                self._entries.popitem(last=False)
            return entry


_caches: dict[int, _LocationCache] = {}


def _locations(process: int) -> _LocationCache:
    """The cache of this process. A fork may copy a lock that is held. All threads get the same cache."""
    return _caches.get(process) or _caches.setdefault(process, _LocationCache())


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
    entry = _locations(os.getpid()).entry(address)
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
        if location is None or location.valid_until < time.monotonic():
            location = entry.location = locate(address)
    if location is None or location.fingerprint != fingerprint:
        raise another_version(address.url, fingerprint, location.info if location else None)
    return location


def _check_range(response: Any, location: FileLocation, start: int, stop: int) -> None:
    """Raise if an answer does not contain the requested range of the file."""
    status = response.status_code
    if is_hub(location.target) and status != 416:
        check(location.address, response)
    if status in EXPIRED_STATUS:
        raise TransientError(f"the CDN answered {status}: its address may have expired", is_misplaced=True)
    is_whole = status == 200 and start == 0
    if not is_whole and status != 206:
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
        raise SourceError(
            "the server does not answer as the Hub does",
            f"file         {address.url}",
            "reason       the hash, the size or the commit of the file is missing",
            "Check HF_ENDPOINT, if you set it.",
        )
    valid_until = time.monotonic() + _seconds_left(target, headers)
    target_etag = _etag(response, "etag") if is_hub(target) else ""
    return FileLocation(address.at(commit, address.path), int(size), etag, target, valid_until, target_etag)


def _etag(response: Any, header: str) -> str:
    """An etag without quotes; empty without the header."""
    return str(response.headers.get(header, "")).removeprefix("W/").strip('"')


def _seconds_left(target: str, headers: Any) -> float:
    """For how long to use a signed URL: until shortly before it expires, by the clock of the server."""
    query = {name.lower(): values[-1] for name, values in parse_qs(urlsplit(target).query).items()}
    seconds = DEFAULT_SECONDS
    with contextlib.suppress(ValueError):
        if "x-amz-expires" in query:
            seconds = float(query["x-amz-expires"])
        elif "expires" in query:
            now = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else time.time()
            seconds = float(query["expires"]) - now
    return seconds - min(60.0, seconds / 10)
