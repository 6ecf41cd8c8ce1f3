"""A Folder in an object store. One request makes an object appear, complete; nothing is renamed.

Several machines may write to it. Where they might write different bytes, the first object counts
(`publish_if_absent`). Elsewhere they write the same bytes, and the last one may win.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from tokenmill.errors import CorruptStore, SourceError, StoreError, TokenmillError
from tokenmill.storage.addresses import FileInfo, absolute, split_url
from tokenmill.storage.folder import Lease, ReadRange
from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.local.guards import MAX_BYTES, check_size, truncated_error
from tokenmill.storage.local.writing import AlreadyPublishedError
from tokenmill.storage.objects import probe, read
from tokenmill.storage.objects.clients import BucketClients
from tokenmill.storage.objects.conditional_create import create
from tokenmill.storage.objects.errors import explained
from tokenmill.storage.objects.journal import Journal
from tokenmill.storage.objects.lease import BucketLease
from tokenmill.storage.objects.regions import read_regions, region_directory, region_name
from tokenmill.storage.objects.upload import PART_BYTES, Upload, part_bytes
from tokenmill.storage.prefetch import prefetch_map
from tokenmill.storage.range_file import RangeFile

if TYPE_CHECKING:
    from obstore.store import ObjectStore

DELETE_PER_BATCH = 1000
CHUNK_BYTES = 1 << 20
LISTED_PER_BATCH = 9_900  # numbers in one range of a listing: at most ten answers of a thousand names
REPLACED = "Another process has changed the store, such as `tokenmill erase`. Open the store again."
PREFETCH_LISTS = 15  # ranges listed in the background while one is used


class BucketFolder:
    """The objects below a URL."""

    is_remote = True

    def __init__(self, root: str) -> None:
        self.root = absolute(root)
        self._clients = BucketClients(self.root)
        self._prefix = split_url(self.root)[2]
        self._journals: dict[str, Journal] = {}

    @property
    def _store(self) -> ObjectStore:
        return self._clients.reader

    def path(self, name: str) -> str:
        """The URL of a name. Raises CorruptStore if it leads outside the folder."""
        inside = posixpath.normpath(name)
        if "\0" in name or name.startswith("/") or inside.startswith(".."):
            raise CorruptStore(f"the name {name!r} points outside {self.root}")
        return self.root if inside == "." else f"{self.root}/{inside}"

    def create(self, name: str = ".") -> bool:  # noqa: ARG002 - protocol
        """Do nothing: a folder exists as soon as it contains an object."""
        return False

    def exists(self, name: str) -> bool:
        """Whether an object of that name exists."""
        return self._meta(name) is not None

    def names(self, directory: str) -> list[str]:
        """The objects directly inside a directory, unordered."""
        return [name for name, _ in read.sizes_below(self.path(directory), self._store) if "/" not in name]

    def directories(self, directory: str) -> list[str]:
        """The directories directly inside a directory: the first parts of the names of the objects in them."""
        return list(
            {name.split("/")[0] for name, _ in read.sizes_below(self.path(directory), self._store) if "/" in name}
        )

    def numbered_names(self, directory: str, count: int) -> Iterator[list[str]]:
        """The same in batches, for up to `count` numbered objects. S3 lists several ranges of numbers at a time.

        Other stores cannot begin a listing in the middle, or this is untested. S3 directory buckets list in no order.
        """
        for files in self.numbered_sizes(directory, count):
            yield [name for name, _ in files]

    def numbered_sizes(self, directory: str, count: int) -> Iterator[list[tuple[str, int]]]:
        """The same, each name with its object's size, which a listing contains anyway."""
        url = self.path(directory)
        if not url.startswith("s3://") or "--x-s3/" in url or count <= LISTED_PER_BATCH:
            yield [(name, size) for name, size in read.sizes_below(url, self._store) if "/" not in name]
            return
        edges = [f"{number:08d}" for number in range(LISTED_PER_BATCH, min(count, 10**8), LISTED_PER_BATCH)]
        ranges = zip(["", *edges], [*edges, None], strict=True)
        yield from prefetch_map(
            self, lambda bounds: read.sizes_between(url, *bounds, store=self._store), ranges, PREFETCH_LISTS
        )

    def size(self, name: str) -> int:
        """The size of an object in bytes."""
        meta = self._meta(name)
        if meta is None:
            raise StoreError(f"cannot read {self.path(name)}", "reason       there is no such object")
        return int(meta["size"])

    def read(self, name: str, limit_bytes: int | None = None) -> bytes:
        """The content of an object, or its first `limit_bytes` bytes."""
        if limit_bytes is None:
            return bytes(self._whole(name, checked=True))
        stop = min(limit_bytes, self.size(name)) if limit_bytes > MAX_BYTES else limit_bytes
        return bytes(self._range(name, 0, stop))

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
        """The first bytes of an object, its size, and a function that reads ranges of the same version; see Folder."""
        with explained(self.path(name), "read"):
            data, file = read.fetch_any(self.path(name), 0, limit_bytes, self._store)
        return bytes(data), file.size, functools.partial(self._read_version, file)

    def _read_version(self, file: FileInfo, start: int, count: int) -> bytes:
        if min(start, count) < 0 or start + count > file.size:
            raise truncated_error(file.path, start + count)
        try:
            return bytes(self._fetch(file, start, start + count)) if count else b""
        except SourceError as error:
            raise CorruptStore(f"{file.path} was replaced while it was read", REPLACED) from error

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
            raise truncated_error(self.path(name), start + count)
        if count > MAX_BYTES:
            with self._file(name, start, count) as file:
                file.seek(start)
                return file.read(count)
        data = self._range(name, start, start + count)
        if data.size < count:
            raise truncated_error(self.path(name), start + count)
        return bytes(data)

    def map(self, name: str) -> pa.NativeFile:
        """An object as a file in memory."""
        return pa.BufferReader(self.buffer(name))

    def buffer(self, name: str) -> pa.Buffer:
        """All bytes of an object."""
        return self._whole(name)

    @contextlib.contextmanager
    def publish(self, name: str, *, durable: bool = True, if_absent: bool = False) -> Iterator[BinaryIO]:
        """Write an object that appears when the block ends; see Folder. With `if_absent` it is in memory until then."""
        del durable  # an object is durable as soon as it exists
        if if_absent:
            memory = pa.BufferOutputStream()
            yield memory
            if not self.publish_if_absent(name, memory.getvalue()):
                raise AlreadyPublishedError(self.path(name))
            return
        with explained(self.path(name), "write"), self._upload(name) as upload:
            yield upload  # type: ignore[misc]

    def publish_if_absent(self, name: str, data: pa.Buffer) -> bool:
        """Write an object unless one exists. Returns True if this call certainly wrote it.

        If the answer of the server was lost, this call may have written the object and returns False.
        """
        with explained(self.path(name), "write"):
            return create(self._clients.creator, self._key(name), data, lambda: self.exists(name), self.path(name))

    def check_conditional_create(self) -> None:
        """Raise StorageError if the server would let two drivers create the same object."""
        probe.check_conditional_create(self, self._list_times)

    def _list_times(self) -> dict[str, datetime]:
        """The names directly inside the folder, with the times at which they were written, by the server's clock."""
        import obstore  # noqa: PLC0415 - not for local runs

        with explained(self.root, "list"):
            found = interruptible(obstore.list_with_delimiter, self._store, self._prefix or None)["objects"]
        return {posixpath.basename(meta["path"]): meta["last_modified"] for meta in found}

    def publish_new(self, name: str, data: bytes) -> bool:
        """Publish an object unless one exists. Returns False if one exists with another content."""
        while not self.publish_if_absent(name, pa.py_buffer(data)):
            try:
                return self.read(name) == data
            except StoreError:
                if self.exists(name):
                    raise  # else it was removed after the attempt
        return True

    def write_region(self, name: str, size: int, start: int) -> contextlib.AbstractContextManager[BinaryIO]:  # noqa: ARG002
        """Write a byte range as an object of its own. `finalize` joins these objects."""
        return self.publish(region_name(name, start))

    def region_exists(self, name: str, size: int, start: int, count: int) -> bool:
        """Whether the region exists, as an object of its own or in the finalized object."""
        final = self._meta(name)
        if final is not None:
            return bool(final["size"] == size)
        return self._has_size(region_name(name, start), count)

    def region_file(self, name: str) -> str:
        """The object itself: before `finalize`, each region is an object of its own."""
        return name

    def discard_regions(self, name: str) -> None:
        """Remove the objects of the regions."""
        self.remove(region_directory(name))

    def finalize(self, name: str, size: int, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Join the regions: read them in order while the final object is uploaded."""
        if not self._has_size(name, size):
            try:
                regions = read.below(self.path(region_directory(name)), self._store)
                chunks = read_regions(self, name, size, regions, self._fetch)
                with explained(self.path(name), "write"), self._upload(name, part_bytes(size)) as upload:
                    for data in chunks:
                        upload.write(data)
                        on_progress(data.size)
            except (StoreError, SourceError):
                if not self._has_size(name, size):  # another machine may have finalized it and removed the regions
                    raise
        self.remove(region_directory(name))

    def _has_size(self, name: str, size: int) -> bool:
        meta = self._meta(name)
        return meta is not None and bool(meta["size"] == size)

    def _upload(self, name: str, size_of_part: int = PART_BYTES) -> Upload:
        return Upload(self._clients.writer, self._key(name), size_of_part)

    def sync_directory(self, directory: str) -> None:
        """Do nothing: an object is durable when the store has answered."""

    def append(self, name: str, data: bytes) -> None:
        """Add lines to this process's objects of a journal. They are written every few seconds."""
        if name not in self._journals:
            self._journals[name] = Journal(self, name)
        self._journals[name].append(data)

    def discard(self, name: str) -> None:
        """Remove an object if it exists."""
        self._delete([self._key(name)])

    def remove(self, directory: str) -> None:
        """Remove the objects below a directory."""
        keys = [
            file.path[len(self.root) - len(self._prefix) :] for file in read.below(self.path(directory), self._store)
        ]
        for start in range(0, len(keys), DELETE_PER_BATCH):
            self._delete(keys[start : start + DELETE_PER_BATCH])

    def remove_if_empty(self, lock: str) -> None:
        """Do nothing: a folder is gone with its last object."""

    def remove_temporaries(self, directory: str) -> int:  # noqa: ARG002 - protocol
        """Do nothing: an interrupted write leaves no object."""
        return 0

    @contextlib.contextmanager
    def lock(self, name: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:  # noqa: ARG002
        """Let every process write, and flush this process's journals when the block ends."""
        try:
            yield
        finally:
            for journal in self._journals.values():
                with contextlib.suppress(TokenmillError):  # the error of the block matters more
                    journal.flush()

    def shared_lock(self, name: str) -> contextlib.AbstractContextManager[None]:
        """The same as `lock`, which excludes no process."""
        return self.lock(name)

    def lease(self, name: str) -> Lease:
        """A lease of that name, not yet taken."""
        return BucketLease(self, f".{name}.claim")

    def lock_holder(self, name: str) -> str | None:  # noqa: ARG002 - protocol
        """None: object stores have no lock, so there is no holder."""
        return None

    def free_bytes(self) -> int | None:
        """None: an object store has no limit."""
        return None

    def _key(self, name: str) -> str:
        return self.path(name)[len(self.root) - len(self._prefix) :]

    def _meta(self, name: str) -> Any:
        import obstore  # noqa: PLC0415 - not for local runs

        with explained(self.path(name), "read"):
            try:
                return interruptible(obstore.head, self._store, self._key(name))
            except FileNotFoundError:
                return None

    def _whole(self, name: str, *, checked: bool = False) -> pa.Buffer:
        import obstore  # noqa: PLC0415 - not for local runs

        with explained(self.path(name), "read"):
            result = interruptible(obstore.get, self._store, self._key(name))
            if checked:
                check_size(self.path(name), result.meta["size"])
            return pa.py_buffer(interruptible(result.bytes))

    def _range(self, name: str, start: int, stop: int) -> pa.Buffer:
        """The bytes in a range, fewer if the object is shorter."""
        with explained(self.path(name), "read"):
            return read.fetch_any(self.path(name), start, stop, self._store)[0]

    def _file(self, name: str, start: int = 0, count: int | None = None) -> RangeFile:
        file = read.stat(self.path(name), self._store)
        stop = file.size if count is None else start + count
        if stop > file.size:
            raise truncated_error(file.path, stop)
        return RangeFile(file, functools.partial(self._fetch, file), [(start, stop)])

    def _fetch(self, file: FileInfo, start: int, stop: int) -> pa.Buffer:
        """A byte range, with the client of this moment: credentials may be renewed while a file is read."""
        return read.fetch(file.path, file.fingerprint, start, stop, self._store)

    def _delete(self, keys: list[str]) -> None:
        import obstore  # noqa: PLC0415 - not for local runs

        with explained(self.root, "delete from"), contextlib.suppress(FileNotFoundError):
            interruptible(obstore.delete, self._store, keys)
