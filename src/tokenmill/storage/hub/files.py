"""Files of the Hub: where their bytes are, asked once and remembered for as long as that holds, and ranges of them.

The Hub answers with the address of the file on its CDN, signed for a while. So the Hub is asked once for each file and
process, and everything else is between us and the CDN.
"""

from __future__ import annotations

import contextlib
import functools
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

MAX_REMEMBERED = 1024
DEFAULT_SECONDS = 900.0
"""How long an answer is remembered that does not say how long it holds."""

MAX_REDIRECTS = 5
GONE = (401, 403, 404, 410)
"""What a CDN answers when a signature has expired."""


@dataclass(slots=True)
class FileLocation:
    """A file as the Hub describes it, where its bytes are, and until when (by the clock that only goes forward)."""

    address: HubAddress
    size: int
    fingerprint: str
    target: str
    until: float
    etag: str
    """What the place with the bytes calls them, if it was asked already. It is not always what the Hub calls them."""

    @property
    def info(self) -> FileInfo:
        """The file as a source."""
        return FileInfo(self.address.url, self.size, self.fingerprint)


@dataclass(slots=True)
class _Entry:
    """What is remembered of a file; its lock is held by the one thread that asks the Hub."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    located: FileLocation | None = None


class _Memory:
    """The files that were read last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[HubAddress, _Entry] = OrderedDict()

    def entry(self, address: HubAddress) -> _Entry:
        with self._lock:
            entry = self._entries.setdefault(address, _Entry())
            self._entries.move_to_end(address)
            if len(self._entries) > MAX_REMEMBERED:
                self._entries.popitem(last=False)
            return entry


@functools.lru_cache(maxsize=1)
def _memory(_process: int) -> _Memory:
    """It belongs to one process: a fork may copy a lock that is held."""
    return _Memory()


def fetch(url: str, fingerprint: str, start: int, stop: int) -> pa.Buffer:
    """Exactly these bytes of a file, of the version that has this fingerprint."""
    address, patience = parse(url), Backoff(parse(url))
    pieces: list[bytes] = []
    place = start
    while place < stop:
        try:
            for piece in _stream(address, fingerprint, place, stop):
                pieces.append(piece)
                place += len(piece)
                patience.renew()
        except TransientError as trouble:
            patience.wait(trouble)
    return pa.py_buffer(b"".join(pieces))


def locate(address: HubAddress, unconnected_attempts: int = MAX_ATTEMPTS) -> FileLocation | None:
    """Ask the Hub for a file; None if the dataset has none of that path."""
    patience = Backoff(address, unconnected_attempts)
    while True:
        try:
            return _ask(address)
        except TransientError as trouble:
            patience.wait(trouble)


def _stream(address: HubAddress, fingerprint: str, start: int, stop: int) -> Iterator[bytes]:
    """The bytes from start on, as they come; Trouble if they break off before stop."""
    entry = _memory(os.getpid()).entry(address)
    located = _remembered(entry, address, fingerprint)
    if stop > located.size:
        raise EOFError(f"bytes {start} to {stop} were asked for of a file of {located.size}")
    left = stop - start
    try:
        with answer("GET", located.target, {"range": f"bytes={start}-{stop - 1}"}) as response:
            _check_range(response, located, start, stop)
            for piece in response.iter_raw():  # to its very end: only then is the connection used again
                yield piece[:left]
                left -= len(piece)
                if left < 0:
                    return
    except TransientError as trouble:
        if trouble.misplaced and entry.located is located:
            entry.located = None
        raise
    if left:
        raise TransientError(f"{left} bytes are missing at the end of an answer")


def _remembered(entry: _Entry, address: HubAddress, fingerprint: str) -> FileLocation:
    with entry.lock:  # one asks, and the others wait for what it learns
        located = entry.located
        if located is None or located.until < time.monotonic():
            located = entry.located = locate(address)
    if located is None or located.fingerprint != fingerprint:
        raise another_version(address.url, fingerprint, located.info if located else None)
    return located


def _check_range(response: Any, located: FileLocation, start: int, stop: int) -> None:
    """Raise if an answer does not hold the range of the file that was asked for."""
    status = response.status_code
    if is_hub(located.target) and status != 416:
        check(located.address, response)
    if status in GONE:
        raise TransientError(f"the CDN answered {status}: its address may have expired", misplaced=True)
    whole = status == 200 and start == 0
    if not whole and status != 206:
        raise TransientError(f"the CDN answered {status} to a request for bytes {start} to {stop}", misplaced=True)
    expected = f"bytes {start}-{stop - 1}/{located.size}"
    if not whole and response.headers.get("content-range", expected) != expected:
        raise TransientError(
            f"the CDN answered with {response.headers['content-range']} instead of {expected}", misplaced=True
        )
    etag = _etag(response, "etag")
    if located.etag not in ("", etag):
        raise TransientError("the CDN has another file now", misplaced=True)
    located.etag = etag


def _ask(address: HubAddress) -> FileLocation | None:
    """One question, which takes more than one request only if the dataset has another name by now."""
    target = (
        f"{endpoint()}/datasets/{address.repository}/resolve/{quote(address.revision, safe='')}/{quote(address.path)}"
    )
    for _ in range(MAX_REDIRECTS):
        with answer("HEAD", target) as response:
            if is_missing(response):
                return None
            check(address, response)
            if not 300 <= response.status_code < 400:
                return _located(address, target, response)
            target = urljoin(target, response.headers.get("location", ""))
            if not is_hub(target) and _etag(response, "x-linked-etag"):
                return _located(address, target, response)
    raise StorageError("the Hub redirects in a circle", f"file         {address.url}")


def _located(address: HubAddress, target: str, response: Any) -> FileLocation:
    headers = response.headers
    etag = _etag(response, "x-linked-etag") or _etag(response, "etag")
    size = headers.get("x-linked-size") or headers.get("content-length") or ""
    commit = address.revision if address.is_pinned else headers.get("x-repo-commit", "")
    if not etag or not size.isdigit() or not is_commit(commit):
        raise SourceError(
            "this is no answer of a Hub",
            f"file         {address.url}",
            "reason       the hash, the size or the commit of the file is missing",
            "Check HF_ENDPOINT, if you set it.",
        )
    until = time.monotonic() + _seconds_left(target, headers)
    known = _etag(response, "etag") if is_hub(target) else ""
    return FileLocation(address.at(commit, address.path), int(size), etag, target, until, known)


def _etag(response: Any, header: str) -> str:
    """An etag without its quotes; empty if there is none."""
    return str(response.headers.get(header, "")).removeprefix("W/").strip('"')


def _seconds_left(target: str, headers: Any) -> float:
    """How long to use an address: until some time before it expires. The server's clock counts, whatever ours says."""
    query = {name.lower(): values[-1] for name, values in parse_qs(urlsplit(target).query).items()}
    seconds = DEFAULT_SECONDS
    with contextlib.suppress(ValueError):
        if "x-amz-expires" in query:
            seconds = float(query["x-amz-expires"])
        elif "expires" in query:
            now = parsedate_to_datetime(headers["date"]).timestamp() if "date" in headers else time.time()
            seconds = float(query["expires"]) - now
    return seconds - min(60.0, seconds / 10)
