"""A folder in an object store. An object appears whole or not at all, by one request: there is nothing to rename.

Several machines may write to it at a time. Where two of them might not write the same, the first one counts
(`publish_first`); elsewhere it does not matter who comes last.
"""

from __future__ import annotations

import contextlib
import itertools
import posixpath
import secrets
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from tokenmill.errors import CorruptStore, SourceError, StoreError, TokenmillError
from tokenmill.storage.addresses import absolute, split_url
from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.lease import Lease
from tokenmill.storage.local.guards import MAX_BYTES, check_size, truncated_error
from tokenmill.storage.local.writing import AlreadyPublishedError
from tokenmill.storage.objects import clients, read
from tokenmill.storage.objects.conditional_create import create
from tokenmill.storage.objects.errors import no_conditional_create
from tokenmill.storage.objects.journal import Journal
from tokenmill.storage.objects.lease import BucketLease
from tokenmill.storage.objects.upload import Upload, part_bytes
from tokenmill.storage.prefetch import prefetch_map
from tokenmill.storage.range_file import PIECE_BYTES, RangeFile

if TYPE_CHECKING:
    from obstore.store import ObjectStore

DELETE_PER_BATCH = 1000
PREFETCH_PIECES = 6
"""How many pieces of a file are on their way while it is joined."""
PROBE = ".probe-"
MAX_PROBE_AGE = timedelta(minutes=5)
"""How long a driver takes to probe at the most. An older probe was left by a driver that was killed."""

PROBES = (b"first\n", b"second\n")
"""What a probe writes, and what it tries to write over that."""

LISTED_PER_BATCH = 9_900
"""How many numbers a stretch of a listing has: no more than ten answers, which have a thousand names each."""

PREFETCH_LISTS = 15
"""How many such stretches are listed while one is looked at."""


class BucketFolder:
    """The objects below a URL."""

    is_remote = True

    def __init__(self, root: str) -> None:
        self.root = absolute(root)
        self._clients = clients.BucketClients(self.root)
        self._prefix = split_url(self.root)[2]
        self._journals: dict[str, Journal] = {}

    @property
    def _store(self) -> ObjectStore:
        return self._clients.reader

    def path(self, name: str) -> str:
        """The URL of a name, which must stay inside the folder."""
        inside = posixpath.normpath(name)
        if "\0" in name or name.startswith("/") or inside.startswith(".."):
            raise CorruptStore(f"the name {name!r} points outside {self.root}")
        return self.root if inside == "." else f"{self.root}/{inside}"

    def create(self, name: str = ".") -> bool:  # noqa: ARG002 - the face of a folder
        """Nothing: a folder is there as soon as an object is in it."""
        return False

    def exists(self, name: str) -> bool:
        """Whether there is an object of that name."""
        return self._meta(name) is not None

    def names(self, directory: str) -> list[str]:
        """The names of the objects directly inside a directory, unordered."""
        root = self.path(directory)
        found = (file.path[len(root) + 1 :] for file in read.below(root, self._store))
        return [name for name in found if "/" not in name]

    def numbered_names(self, directory: str, count: int) -> Iterator[list[str]]:
        """The same where there may be `count` numbered objects: in S3 by stretches of numbers, many at a time.

        Other stores cannot begin in the middle, or it was not tried; S3's directory buckets list in no order.
        """
        for files in self.numbered_sizes(directory, count):
            yield [name for name, _ in files]

    def numbered_sizes(self, directory: str, count: int) -> Iterator[list[tuple[str, int]]]:
        """The same with the size of each object, which a listing holds anyway."""
        url = self.path(directory)
        if not url.startswith("s3://") or "--x-s3/" in url or count <= LISTED_PER_BATCH:
            files = [(file.path[len(url) + 1 :], file.size) for file in read.below(url, self._store)]
            yield [(name, size) for name, size in files if "/" not in name]
            return
        edges = [f"{number:08d}" for number in range(LISTED_PER_BATCH, min(count, 10**8), LISTED_PER_BATCH)]
        stretches = zip(["", *edges], [*edges, None], strict=True)
        yield from prefetch_map(
            self, lambda stretch: read.sizes_between(url, *stretch, store=self._store), stretches, PREFETCH_LISTS
        )

    def size(self, name: str) -> int:
        """The size of an object in bytes."""
        meta = self._meta(name)
        if meta is None:
            raise StoreError(f"cannot read {self.path(name)}", "reason       there is no such object")
        return int(meta["size"])

    def read(self, name: str, limit_bytes: int | None = None) -> bytes:
        """The content of an object, or its first bytes."""
        if limit_bytes is None:
            return bytes(self._whole(name, checked=True))
        size = min(limit_bytes, self.size(name)) if limit_bytes > MAX_BYTES else limit_bytes
        return bytes(self._range(name, {"range": (0, size)}))

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of an object, one after the other."""
        with pa.input_stream(self._file(name)) as stream:
            rest = b""
            while data := stream.read(1 << 20):
                *whole, rest = (rest + data).split(b"\n")
                yield from (line + b"\n" for line in whole)
        if rest:
            yield rest

    def chunks(self, name: str, start: int, count: int) -> Iterator[bytes]:
        """A stretch of an object, some of it at a time; the next ones are fetched meanwhile."""
        with self._file(name, start, count) as file:
            file.seek(start)
            for place in range(0, count, 1 << 20):
                yield file.read(min(1 << 20, count - place))

    def read_at(self, name: str, start: int, count: int) -> bytes:
        """Exactly these bytes of an object."""
        if not count:
            return b""
        if min(start, count) < 0:
            raise truncated_error(self.path(name), start + count)
        with self._file(name, start, count) if count > MAX_BYTES else contextlib.nullcontext() as file:
            if file is not None:
                file.seek(start)
                return file.read(count)
        data = self._range(name, {"range": (start, start + count)})
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
    def publish(self, name: str, *, durable: bool = True, first: bool = False) -> Iterator[BinaryIO]:
        """Write an object that appears when the block ends; what is to be the first is held in memory until then."""
        del durable  # an object is durable when it is there
        if first:
            held = pa.BufferOutputStream()
            yield held
            if not self.publish_if_absent(name, held.getvalue()):
                raise AlreadyPublishedError(self.path(name))
            return
        with self._telling(name, "write"), Upload(self._clients.writer, self._key(name)) as upload:
            yield upload  # type: ignore[misc]

    def publish_if_absent(self, name: str, data: pa.Buffer) -> bool:
        """Write an object unless there is one; whether it was, as far as is known.

        If an answer is lost, it is not known who has written what is there.
        """
        with self._telling(name, "write"):
            return create(self._clients.creator, self._key(name), data, lambda: self.exists(name), self.path(name))

    def check_conditional_create(self) -> None:
        """Raise StorageError if the server would let two drivers create the same object.

        The probe creates an object twice. The second request has to be refused, and the first content has to stay.
        """
        name = f"{PROBE}{secrets.token_hex(8)}"
        try:
            self.publish_if_absent(name, pa.py_buffer(PROBES[0]))
            replaced = self.publish_if_absent(name, pa.py_buffer(PROBES[1])) or self.read(name) != PROBES[0]
        finally:
            with contextlib.suppress(TokenmillError):  # it may not be there, and the error above is the reason
                self._delete([self._key(name), *self._stale_probes(name)])
        if replaced:
            raise no_conditional_create(self.root, "the server ignores If-None-Match and replaces the object")

    def _stale_probes(self, name: str) -> list[str]:
        """The keys of the probes of drivers that were killed while they probed; none if they cannot be listed.

        Ages are counted by the clock of the server, which has just written the probe `name`.
        """
        import obstore  # noqa: PLC0415 - not for local runs

        written = {}
        with contextlib.suppress(TokenmillError), self._telling(".", "list"):
            for meta in interruptible(obstore.list_with_delimiter, self._store, self._prefix or None)["objects"]:
                if posixpath.basename(meta["path"]).startswith(PROBE):
                    written[meta["path"]] = meta["last_modified"]
        now = written.get(self._key(name))
        return [key for key, time in written.items() if now is not None and now - time > MAX_PROBE_AGE]

    def publish_new(self, name: str, data: bytes) -> bool:
        """The same; False only if there is one with another content."""
        return self.publish_if_absent(name, pa.py_buffer(data)) or self.read(name) == data

    @contextlib.contextmanager
    def write_region(self, name: str, size: int, start: int) -> Iterator[BinaryIO]:  # noqa: ARG002 - the face of a folder
        """Write a stretch as an object of its own; sealing joins them."""
        with self.publish(f"{_pieces(name)}/{start:020d}") as file:
            yield file

    def region_exists(self, name: str, size: int, start: int, count: int) -> bool:
        """Whether the stretch is there, on its own or in the sealed object."""
        if (whole := self._meta(name)) is not None:
            return bool(whole["size"] == size)
        piece = self._meta(f"{_pieces(name)}/{start:020d}")
        return piece is not None and bool(piece["size"] == count)

    def finalize(self, name: str, size: int, told: Callable[[int], None] = lambda _: None) -> None:
        """Join the stretches: they are read one after the other while the object is written."""
        if not self._is_sealed(name, size):
            try:
                self._join(name, size, told)
            except (StoreError, SourceError):
                if not self._is_sealed(name, size):  # by another machine, which has removed the stretches
                    raise
        self.remove(_pieces(name))

    def _is_sealed(self, name: str, size: int) -> bool:
        whole = self._meta(name)
        return whole is not None and bool(whole["size"] == size)

    def _join(self, name: str, size: int, told: Callable[[int], None]) -> None:
        root = self.path(_pieces(name))
        pieces = sorted(read.below(root, self._store), key=lambda piece: piece.path)
        ends = list(itertools.accumulate(piece.size for piece in pieces))
        starts = [int(piece.path[len(root) + 1 :]) for piece in pieces]
        if [0, *ends] != [*starts, size]:
            raise StoreError(f"a stretch of {self.path(name)} has gone", "Run the same command again.")
        spans = [
            (piece, start, min(start + PIECE_BYTES, piece.size))
            for piece in pieces
            for start in range(0, piece.size, PIECE_BYTES)
        ]
        with self._telling(name, "write"), Upload(self._clients.writer, self._key(name), part_bytes(size)) as upload:
            fetch = lambda span: read.fetch(span[0].path, span[0].fingerprint, span[1], span[2], self._store)  # noqa: E731
            for data in prefetch_map(self, fetch, spans, PREFETCH_PIECES):
                upload.write(data)
                told(data.size)

    def sync_directory(self, directory: str) -> None:
        """Nothing: an object is durable when the store has answered."""

    def append(self, name: str, data: bytes) -> None:
        """Add lines to this process's share of a journal; they are written every few seconds."""
        if name not in self._journals:
            self._journals[name] = Journal(self, name)
        self._journals[name].append(data)

    def discard(self, name: str) -> None:
        """Remove an object, if it is there."""
        self._delete([self._key(name)])

    def remove(self, directory: str) -> None:
        """Remove the objects below a directory."""
        keys = [
            file.path[len(self.root) - len(self._prefix) :] for file in read.below(self.path(directory), self._store)
        ]
        for start in range(0, len(keys), DELETE_PER_BATCH):
            self._delete(keys[start : start + DELETE_PER_BATCH])

    def remove_if_empty(self, lock: str) -> None:
        """Nothing: a folder is gone with its last object."""

    def remove_temporaries(self, directory: str) -> int:  # noqa: ARG002 - the face of a folder
        """Nothing: what was not written whole was never there."""
        return 0

    @contextlib.contextmanager
    def lock(self, name: str, waiting: Callable[[str], None] | None = None) -> Iterator[None]:  # noqa: ARG002
        """Let anybody write, and see to it that the journals are written at the end."""
        try:
            yield
        finally:
            for journal in self._journals.values():
                with contextlib.suppress(TokenmillError):  # there is something more important to tell
                    journal.flush()

    def shared_lock(self, name: str) -> contextlib.AbstractContextManager[None]:
        """The same: it is always shared."""
        return self.lock(name)

    def lease(self, name: str) -> Lease:
        """Ask to be the only one, of all who share the folder, to do something."""
        return BucketLease(self, f".{name}.claim")

    def lock_holder(self, name: str) -> str | None:  # noqa: ARG002 - the face of a folder
        """Nobody can be told: nobody holds it for himself."""
        return None

    def free_bytes(self) -> int | None:
        """No end to it."""
        return None

    def _key(self, name: str) -> str:
        return self.path(name)[len(self.root) - len(self._prefix) :]

    def _meta(self, name: str) -> Any:
        import obstore  # noqa: PLC0415 - not for local runs

        with self._telling(name, "read"):
            try:
                return interruptible(obstore.head, self._store, self._key(name))
            except FileNotFoundError:
                return None

    def _whole(self, name: str, *, checked: bool = False) -> pa.Buffer:
        import obstore  # noqa: PLC0415 - not for local runs

        with self._telling(name, "read"):
            result = interruptible(obstore.get, self._store, self._key(name))
            if checked:
                check_size(self.path(name), result.meta["size"])
            return pa.py_buffer(interruptible(result.bytes))

    def _range(self, name: str, options: Any) -> pa.Buffer:
        import obstore  # noqa: PLC0415 - not for local runs

        with self._telling(name, "read"):
            try:
                result = interruptible(obstore.get, self._store, self._key(name), options=options)
                return pa.py_buffer(interruptible(result.bytes))
            except obstore.exceptions.GenericError as error:
                if "status code: 416" in str(error):  # it starts after the end
                    return pa.py_buffer(b"")
                raise

    def _file(self, name: str, start: int = 0, count: int | None = None) -> RangeFile:
        file = read.stat(self.path(name), self._store)
        stop = file.size if count is None else start + count
        if stop > file.size:
            raise truncated_error(file.path, stop)
        fetch = lambda a, b: read.fetch(file.path, file.fingerprint, a, b, self._store)  # noqa: E731
        return RangeFile(file, fetch, [(start, stop)])

    def _delete(self, keys: list[str]) -> None:
        import obstore  # noqa: PLC0415 - not for local runs

        with self._telling(".", "delete from"), contextlib.suppress(FileNotFoundError):
            interruptible(obstore.delete, self._store, keys)

    @contextlib.contextmanager
    def _telling(self, name: str, doing: str) -> Iterator[None]:
        """Tell what goes wrong with the URL it happened at."""
        try:
            yield
        except TokenmillError:
            raise
        except FileNotFoundError as error:
            raise StoreError(f"cannot {doing} {self.path(name)}", "reason       there is no such object") from error
        except Exception as error:
            if type(error).__module__.startswith("obstore"):
                raise clients.failed(self.path(name), doing, error) from None
            raise


def _pieces(name: str) -> str:
    return posixpath.join(posixpath.dirname(name), f".{posixpath.basename(name)}.pieces")
