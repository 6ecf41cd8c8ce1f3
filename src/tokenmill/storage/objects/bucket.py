"""A Folder in an object store. One request makes an object appear, complete; nothing is renamed.

Several machines may write to it. Where they might write different bytes, the first object counts
(`publish_if_absent`). Elsewhere they write the same bytes, and the last one may win.
"""

from __future__ import annotations

import contextlib
import posixpath
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.storage.addresses import absolute, split_url
from tokenmill.storage.folder import Locks, Ranges, Regions, prefetch_map
from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.local.files import MAX_BYTES, AlreadyPublishedError
from tokenmill.storage.objects import read
from tokenmill.storage.objects.clients import BucketClients
from tokenmill.storage.objects.errors import explained, is_slow_down, no_conditional_create, reason
from tokenmill.storage.objects.locks import BucketLocks, Journal
from tokenmill.storage.objects.ranges import BucketRanges
from tokenmill.storage.objects.regions import BucketRegions
from tokenmill.storage.objects.requests import Patience, request
from tokenmill.storage.objects.upload import Upload

if TYPE_CHECKING:
    from obstore.store import ObjectStore

DELETE_PER_BATCH = 1000
LISTED_PER_BATCH = 9_900  # numbers in one range of a listing: at most ten answers of a thousand names
PREFETCH_LISTS = 15  # ranges listed in the background while one is used

# Of an object that is written only if none exists.
MAX_SECONDS = 400.0  # for which requests to a restarting server are repeated
MAX_REFUSALS = 3  # answers "it exists" for an object that does not: it may have been removed in between


class BucketFolder:
    """The objects below a URL."""

    is_remote = True

    def __init__(self, root: str) -> None:
        self.root = absolute(root)
        self._clients = BucketClients(self.root)
        self._journals: dict[str, Journal] = {}
        self.ranges: Ranges = BucketRanges(self, self._clients)
        self.regions: Regions = BucketRegions(self, self._clients)
        self.locks: Locks = BucketLocks(self, self._clients, self._journals)

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
        return read.stat_existing(self.path(name), self._clients.reader) is not None

    def names(self, directory: str) -> list[str]:
        """The objects directly inside a directory, unordered."""
        return [name for name, _ in read.sizes_below(self.path(directory), self._clients.reader) if "/" not in name]

    def directories(self, directory: str) -> list[str]:
        """The directories directly inside a directory: the first parts of the names of the objects in them."""
        files = read.sizes_below(self.path(directory), self._clients.reader)
        return list({name.split("/")[0] for name, _ in files if "/" in name})

    def numbered_sizes(self, directory: str, count: int) -> Iterator[list[tuple[str, int]]]:
        """The objects directly inside a directory with their sizes. S3 lists several ranges of numbers at a time.

        Other stores cannot begin a listing in the middle, or this is untested. S3 directory buckets list in no order.
        """
        url = self.path(directory)
        if not url.startswith("s3://") or "--x-s3/" in url or count <= LISTED_PER_BATCH:
            yield [(name, size) for name, size in read.sizes_below(url, self._clients.reader) if "/" not in name]
            return
        edges = [f"{number:08d}" for number in range(LISTED_PER_BATCH, min(count, 10**8), LISTED_PER_BATCH)]
        ranges = zip(["", *edges], [*edges, None], strict=True)
        yield from prefetch_map(
            self, lambda bounds: read.sizes_between(url, *bounds, store=self._clients.reader), ranges, PREFETCH_LISTS
        )

    def size(self, name: str) -> int:
        """The size of an object in bytes."""
        file = read.stat_existing(self.path(name), self._clients.reader)
        if file is None:
            raise StoreError(f"cannot read {self.path(name)}", "reason       there is no such object")
        return file.size

    def read(self, name: str, limit_bytes: int | None = None) -> bytes:
        """The content of an object, or its first `limit_bytes` bytes."""
        url, store = self.path(name), self._clients.reader
        if limit_bytes is None:
            return bytes(read.fetch_whole(url, store, checked=True))
        stop = min(limit_bytes, self.size(name)) if limit_bytes > MAX_BYTES else limit_bytes
        return bytes(read.fetch_any(url, 0, stop, store)[0])

    def buffer(self, name: str) -> pa.Buffer:
        """All bytes of an object."""
        return read.fetch_whole(self.path(name), self._clients.reader)

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
        url = self.path(name)
        with explained(url, "write"), Upload(self._clients.writer, url) as upload:
            yield upload  # type: ignore[misc]

    def publish_if_absent(self, name: str, data: pa.Buffer) -> bool:
        """Write an object unless one exists. Returns True if this call certainly wrote it.

        If the answer of the server was lost, this call may have written the object and returns False.
        """
        url = self.path(name)
        with explained(url, "write"):
            return _create(self._clients.creator, url, data, lambda: self.exists(name))

    def sync_directory(self, directory: str) -> None:
        """Do nothing: an object is durable when the store has answered."""

    def append(self, name: str, data: bytes) -> None:
        """Add lines to this process's objects of a journal. They are written every few seconds."""
        if name not in self._journals:
            self._journals[name] = Journal(self, name)
        self._journals[name].append(data)

    def discard(self, name: str) -> None:
        """Remove an object if it exists."""
        self._delete([self.path(name)])

    def remove(self, directory: str) -> None:
        """Remove the objects below a directory."""
        urls = [file.path for file in read.below(self.path(directory), self._clients.reader)]
        for start in range(0, len(urls), DELETE_PER_BATCH):
            self._delete(urls[start : start + DELETE_PER_BATCH])

    def remove_temporaries(self, directory: str) -> None:
        """Do nothing: an interrupted write leaves no object."""

    def _delete(self, urls: list[str]) -> None:
        import obstore  # noqa: PLC0415 - not for local runs

        with explained(self.root, "delete from"), contextlib.suppress(FileNotFoundError):
            request(obstore.delete, self._clients.reader, [split_url(url)[2] for url in urls])


def _create(store: ObjectStore, url: str, data: pa.Buffer, exists: Callable[[], bool]) -> bool:
    """Write an object. Returns False if one exists, or if it appeared while an answer was lost.

    `store` must not retry by itself: it would repeat a 501 for minutes.
    """
    import obstore  # noqa: PLC0415 - not for local runs
    from obstore.exceptions import AlreadyExistsError, GenericError  # noqa: PLC0415

    body, patience, refusals = memoryview(data).cast("B"), Patience(MAX_SECONDS), 0
    while True:
        try:
            interruptible(obstore.put, store, split_url(url)[2], body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            refusals += 1
        except NotImplementedError as error:
            raise no_conditional_create(url, f"the client is set not to: {reason(error)}") from None
        except GenericError as error:
            if "status code: 501" in str(error):
                raise no_conditional_create(url, f"the server answers {reason(error)}") from None
            patience.wait_after(error)
            if is_slow_down(error):
                continue  # nothing was written
        else:
            return True
        if exists():
            return False
        if refusals == MAX_REFUSALS:
            why = "the server answers 412 Precondition Failed for an object that does not exist"
            raise no_conditional_create(url, why)
