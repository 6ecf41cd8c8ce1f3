"""Byte ranges of objects."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tokenmill.errors import TRY_AGAIN, CorruptStore, SourceError
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.folder import Folder, ReadRange
from tokenmill.storage.local.files import MAX_BYTES, truncated_error
from tokenmill.storage.objects import read
from tokenmill.storage.objects.clients import BucketClients
from tokenmill.storage.range_file import RangeFile

CHUNK_BYTES = 1 << 20
REPLACED = "Another process has changed the store, such as `tokenmill erase`. Open the store again."


@dataclass(frozen=True, slots=True)
class BucketRanges:
    """Byte ranges of the objects of a folder."""

    _folder: Folder
    _clients: BucketClients

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of an object, read as they are consumed."""
        with pa.input_stream(self._file(name)) as stream:
            rest = b""
            while data := stream.read(CHUNK_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                yield from (line + b"\n" for line in lines)
        if rest:
            yield rest

    def open_version(self, name: str, limit_bytes: int) -> tuple[bytes, int, ReadRange]:
        """The first bytes of an object, its size, and a function that reads ranges of the same version; see Ranges."""
        data, file = read.fetch_any(self._folder.path(name), 0, limit_bytes, self._clients.reader)
        return bytes(data), file.size, functools.partial(self._read_version, file)

    def _read_version(self, file: FileInfo, start: int, count: int) -> bytes:
        if min(start, count) < 0 or start + count > file.size:
            raise truncated_error(file.path, start + count)
        return bytes(self._fetch(file, start, start + count)) if count else b""

    def chunks(self, name: str, start: int, count: int) -> Iterator[bytes]:
        """A byte range of an object in chunks; the next ones are prefetched."""
        with self._file(name, start, count) as file:
            file.seek(start)
            for offset in range(0, count, CHUNK_BYTES):
                yield file.read(min(CHUNK_BYTES, count - offset))

    def read_at(self, name: str, start: int, count: int) -> bytes:
        """Exactly `count` bytes from `start`. Raises CorruptStore if the object is shorter."""
        if not count:
            return b""
        if min(start, count) < 0:
            raise truncated_error(self._folder.path(name), start + count)
        if count > MAX_BYTES:
            with self._file(name, start, count) as file:
                file.seek(start)
                return file.read(count)
        data, _ = read.fetch_any(self._folder.path(name), start, start + count, self._clients.reader)
        if data.size < count:
            raise truncated_error(self._folder.path(name), start + count)
        return bytes(data)

    def _file(self, name: str, start: int = 0, count: int | None = None) -> RangeFile:
        file = read.stat(self._folder.path(name), self._clients.reader)
        stop = file.size if count is None else start + count
        if stop > file.size:
            raise truncated_error(file.path, stop)
        return RangeFile(file, functools.partial(self._fetch, file), [(start, stop)])

    def _fetch(self, file: FileInfo, start: int, stop: int) -> pa.Buffer:
        """A byte range of this version, with the client of this moment: credentials may be renewed meanwhile."""
        try:
            return read.fetch(file.path, file.fingerprint, start, stop, self._clients.reader)
        except SourceError as error:
            version = f"was          version {file.fingerprint}"
            raise CorruptStore(
                f"{file.path} was replaced while it was read", version, REPLACED, exit_code=TRY_AGAIN
            ) from error
