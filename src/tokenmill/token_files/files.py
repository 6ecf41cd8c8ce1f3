"""Files of shards: publish them with a checksum, and read them back as arrays."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.storage import Folder
from tokenmill.token_files.protocol import (
    LABEL,
    UNTRAINED,
    CompletedSplit,
    Content,
    Shard,
    ShardData,
    Tokens,
    WrittenFile,
)

IGNORED = -100
"""The label of a token that is not trained on."""

# Bytes that are hashed and then written while they are in the processor's cache.
CACHED_BYTES = 1 << 20


class ChecksumWriter:
    """Writes a file, and keeps its size and checksum."""

    closed = False

    def __init__(self, file: BinaryIO, name: str) -> None:
        self._file = file
        self._name = name
        self._bytes = 0
        self._digest = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview) -> int:
        """Write bytes. Libraries can use this object as a file."""
        view = memoryview(data).cast("B")
        for start in range(0, view.nbytes, CACHED_BYTES):
            chunk = view[start : start + CACHED_BYTES]
            self._digest.update(chunk)
            self._file.write(chunk)
        self._bytes += view.nbytes
        return view.nbytes

    def write_array(self, array: npt.NDArray[Any]) -> None:
        """Write the values of an array, little-endian."""
        little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        self.write(little.reshape(-1).view(np.uint8).data)

    def write_tokens(self, content: Content) -> None:
        """Write the tokens of a shard. Raises if their number is not that of its documents."""
        count = 0
        for batch in content.batches:
            self.write_array(batch)
            count += len(batch)
        if count != content.tokens:
            raise _wrong_count(count, content.tokens)

    @property
    def written(self) -> WrittenFile:
        """The name, size and checksum of the bytes written so far."""
        return WrittenFile(self._name, self._bytes, self._digest.hexdigest())


@contextlib.contextmanager
def publish(folder: Folder, name: str) -> Iterator[ChecksumWriter]:
    """Write a file that appears, complete, when the block ends. WriteShard syncs its directory before the commit."""
    with folder.publish(name, durable=False) as file:
        yield ChecksumWriter(file, name)


@contextlib.contextmanager
def open_raw(folder: Folder, name: str, shard: Shard, dtype: str) -> Iterator[ChecksumWriter]:
    """Write one value for each token: as a file, or as a region of a file that several workers write."""
    if shard.region is None:
        with publish(folder, name) as file:
            yield file
        return
    size = np.dtype(dtype).itemsize
    with folder.regions.write(name, shard.region.file_tokens * size, shard.region.position * size) as region:
        yield ChecksumWriter(region, name)


def write_raw(folder: Folder, name: str, shard: Shard, content: Content) -> WrittenFile:
    """Write only the tokens."""
    with open_raw(folder, name, shard, shard.dtype) as file:
        file.write_tokens(content)
        return file.written


def write_masked(folder: Folder, name: str, mask: str, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write the tokens of a shard with a mask, and into another file a label for each, or a byte: 1 if trained on."""
    has_labels, count = shard.mask == "labels", 0
    dtype = LABEL if has_labels else "uint8"
    with open_raw(folder, name, shard, shard.dtype) as tokens, open_raw(folder, mask, shard, dtype) as marks:
        for batch in content.batches:
            ids, is_trained = split_marks(batch, shard.dtype)
            tokens.write_array(ids)
            marks.write_array(labels(ids, is_trained) if has_labels else is_trained.view(np.uint8))
            count += len(ids)
        if count != content.tokens:
            raise _wrong_count(count, content.tokens)
        return tokens.written, marks.written


def write_headed(folder: Folder, name: str, header: bytes, content: Content) -> WrittenFile:
    """Write a header, then the tokens."""
    with publish(folder, name) as file:
        file.write(header)
        file.write_tokens(content)
        return file.written


def read_headed(folder: Folder, name: str, dtype: str, header: Callable[[int, str], bytes]) -> ShardData:
    """Read the tokens behind a header. Raises if the header is not that of these tokens."""
    size = len(header(0, dtype))
    tokens = array(folder, name, dtype, size)
    if folder.read(name, size) != header(len(tokens), dtype):
        raise damaged(folder, name, f"its header does not state {len(tokens)} tokens of {dtype}")
    return ShardData(tokens)


def no_index(_folder: Folder, _split: CompletedSplit) -> tuple[WrittenFile, ...]:
    """Write nothing: the `finish` of formats without an index over all shards."""
    return ()


def write_listing(folder: Folder, name: str, before: str, items: Iterable[dict[str, Any]], after: str) -> WrittenFile:
    """Publish a JSON file of one long list between two texts. Only one item is in memory at a time."""
    with publish(folder, name) as file:
        file.write(before.encode())
        for position, item in enumerate(items):
            file.write(f"{', ' if position else ''}{json.dumps(item, sort_keys=True)}".encode())
        file.write(after.encode())
        return file.written


def split_marks(tokens: Tokens, dtype: str) -> tuple[Tokens, npt.NDArray[np.bool_]]:
    """The tokens of a shard with a mask, and whether each is trained on."""
    is_trained = tokens < UNTRAINED
    return (tokens & ~UNTRAINED).astype(dtype), is_trained


def labels(tokens: Tokens, is_trained: npt.NDArray[np.bool_]) -> npt.NDArray[np.int32]:
    """The tokens that are trained on, and IGNORED in place of the others."""
    return np.where(is_trained, tokens.astype(np.int32), np.int32(IGNORED))


def join_marks(tokens: Tokens, is_trained: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    """The tokens of a shard with a mask, of which some are trained on."""
    joined = tokens.astype(np.uint32)
    np.bitwise_or(joined, UNTRAINED, out=joined, where=~is_trained)
    return joined


def rechunk(batches: Iterator[Tokens], sizes: Iterable[int], dtype: str) -> Iterator[Tokens]:
    """Yield the tokens in arrays of the given sizes: views where possible. Raises if the sums differ."""
    rest: Tokens = np.empty(0, dtype)
    for size in sizes:
        chunks = [rest[:size]]
        rest = rest[size:]
        missing = size - len(chunks[0])
        while missing:
            batch = next(batches, None)
            if batch is None:
                raise _wrong_count(size - missing, size)
            chunks.append(batch[:missing])
            rest = batch[missing:]
            missing -= len(chunks[-1])
        filled = [chunk for chunk in chunks if len(chunk)]
        yield filled[0] if len(filled) == 1 else np.concatenate(filled or chunks)
    left = len(rest) + sum(len(batch) for batch in batches)
    if left:
        raise _wrong_count(left, 0)


def check_fits(folder: Folder, name: str, size_bytes: int, most_bytes: int) -> None:
    """Raise if a file would be larger than the offsets of its format can address."""
    if size_bytes > most_bytes:
        raise StoreError(
            f"{folder.path(name)} would be larger than its format allows",
            f"size         {size_bytes} bytes",
            f"limit        {most_bytes} bytes",
            "Make smaller shards, or remove the longest documents.",
        )


def _wrong_count(actual: int, expected: int) -> StoreError:
    return StoreError(
        "a shard's documents do not have its tokens", f"expected     {expected}", f"found        {actual}"
    )


def damaged(folder: Folder, name: str, reason: str) -> CorruptStore:
    """Return the error for a file with invalid content."""
    return CorruptStore(f"{folder.path(name)} is damaged", f"reason       {reason}")


def file_size(folder: Folder, name: str) -> int:
    """Return the size of a file. Raises CorruptStore if it is missing."""
    if not folder.exists(name):
        raise CorruptStore(f"{folder.path(name)} is missing")
    return folder.size(name)


def spans(folder: Folder, name: str, edges: npt.NDArray[np.int64], last: int) -> npt.NDArray[np.int64]:
    """Return the lengths between the edges in a file. Raises if the edges do not rise to `last`."""
    if int(edges[-1]) != last or bool((edges[1:] < edges[:-1]).any()):
        raise damaged(folder, name, f"its offsets do not rise from {int(edges[0])} to {last}")
    return np.diff(edges)


def array(folder: Folder, name: str, dtype: str, start_byte: int = 0, count: int | None = None) -> npt.NDArray[Any]:
    """Return values of a file as a view of its memory map. Raises if the file is too short."""
    size = file_size(folder, name)
    item = np.dtype(dtype).itemsize
    if count is None:
        count, rest = divmod(size - start_byte, item)
        if rest or count < 0:
            raise damaged(folder, name, f"its {size} bytes are not a whole number of {dtype}")
    if start_byte + count * item > size:
        raise damaged(folder, name, f"it has {size} bytes, expected {start_byte + count * item}")
    if not count:
        return np.empty(0, dtype)
    buffer = folder.buffer(name)
    return np.frombuffer(buffer, np.dtype(dtype).newbyteorder("<"), count, start_byte)
