"""Files of tokens that anybody wrote: their tokens and documents, read by byte ranges, local or remote."""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.storage import FileInfo, Span
from tokenmill.token_files.protocol import Tokens

INTEGERS = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64")
"""The types of tokens that are read. Each id is checked to fit into 32 bits without sign."""

MAX_ID = (1 << 32) - 1

Positions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TokenRows:
    """Rows of equally many tokens, `stride` bytes apart, the tokens of the first one at `first_byte`.

    `before` are the bytes right before the tokens of each row. Tokens that follow each other are one row.
    """

    first_byte: int
    count: int
    tokens: int
    stride: int
    before: bytes = b""


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The tokens of one file.

    `edges(first, last)` are the token positions at which documents first to last start, where document `documents`
    starts at the end. Without an index, `documents` is None. `row_tokens` is the length of the rows of a file that
    consists of rows.
    """

    file: FileInfo
    dtype: str
    rows: tuple[TokenRows, ...]
    documents: int | None = None
    edges: Callable[[int, int], Positions] = lambda _first, _last: np.empty(0, np.int64)
    row_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """The number of tokens."""
        return sum(rows.count * rows.tokens for rows in self.rows)

    def byte_range(self, start: int, stop: int) -> Span:
        """The bytes that hold tokens [start, stop)."""
        edges = [place for *_, place in self._ranges(start, stop)]
        return (edges[0][0], edges[-1][1]) if edges else (0, 0)

    def read(self, start: int, stop: int) -> Tokens:
        """Tokens [start, stop)."""
        return next(self.pieces([(start, stop)]))

    def batches(self, start: int, stop: int, size: int) -> Iterator[Tokens]:
        """Tokens [start, stop), `size` at a time."""
        return self.pieces([(first, min(first + size, stop)) for first in range(start, stop, size)])

    def pieces(self, ranges: Sequence[Span]) -> Iterator[Tokens]:
        """The tokens of ranges in ascending order. The bytes of a remote file are fetched ahead."""
        if not ranges:
            return
        with storage.open_input(self.file, [self.byte_range(ranges[0][0], ranges[-1][1])]) as stream:
            for start, stop in ranges:
                yield self._read(stream, start, stop)

    def _ranges(self, start: int, stop: int) -> Iterator[tuple[TokenRows, int, int, Span]]:
        """The ranges of tokens of each of `rows`, counted from its first, and the bytes of the rows that hold them."""
        base = 0
        for rows in self.rows:
            length = rows.count * rows.tokens
            first, last = max(start - base, 0), min(stop - base, length)
            base += length
            if first >= last:
                continue
            item = np.dtype(self.dtype).itemsize
            if rows.stride == rows.tokens * item:
                yield rows, first, last, (rows.first_byte + first * item, rows.first_byte + last * item)
            else:
                row, end = first // rows.tokens, -(-last // rows.tokens)
                start_byte = rows.first_byte + row * rows.stride - len(rows.before)
                yield rows, first, last, (start_byte, rows.first_byte + (end - 1) * rows.stride + rows.tokens * item)

    def _read(self, stream: pa.NativeFile, start: int, stop: int) -> Tokens:
        dtype = np.dtype(self.dtype).newbyteorder("<")
        arrays: list[Tokens] = []
        for rows, first, last, (start_byte, stop_byte) in self._ranges(start, stop):
            stream.seek(start_byte)
            data = stream.read(stop_byte - start_byte)
            if len(data) != stop_byte - start_byte:
                raise truncated(self.file, stop_byte)
            if rows.stride == rows.tokens * dtype.itemsize:
                arrays.append(np.frombuffer(data, dtype))
            else:
                row = first // rows.tokens
                arrays.append(self._unpack(data, rows)[first - row * rows.tokens : last - row * rows.tokens])
        return arrays[0] if len(arrays) == 1 else np.concatenate([np.empty(0, dtype), *arrays])

    def _unpack(self, data: bytes, rows: TokenRows) -> Tokens:
        """The tokens of whole rows, whose bytes start with `before` of the first row."""
        head, size = len(rows.before), rows.tokens * np.dtype(self.dtype).itemsize
        count = (len(data) - head - size) // rows.stride + 1
        bytes_of = np.lib.stride_tricks.as_strided(
            np.frombuffer(data, np.uint8), (count, head + size), (rows.stride, 1), writeable=False
        )
        if bool((bytes_of[:, :head] != np.frombuffer(rows.before, np.uint8)).any()):
            raise refused(self.file, f"a row does not hold {rows.tokens} tokens of {self.dtype}")
        return np.ascontiguousarray(bytes_of[:, head:]).view(np.dtype(self.dtype).newbyteorder("<")).reshape(-1)


class TypeNotStated(SourceError):  # noqa: N818 - the name is written to logs
    """A file does not state the type of its tokens, and none was given."""


def contiguous(file: FileInfo, dtype: str, first_byte: int = 0) -> tuple[TokenRows]:
    """The tokens from a byte to the end of a file. Raises SourceError if these are not whole tokens."""
    item = np.dtype(dtype).itemsize
    count, rest = divmod(file.size - first_byte, item)
    if rest or count < 0:
        raise refused(file, f"its {file.size - first_byte} bytes are not a whole number of {dtype}")
    return (TokenRows(first_byte, 1, count, count * item),)


def as_ids(tokens: Tokens, file: FileInfo) -> npt.NDArray[np.uint32]:
    """Tokens as ids. Raises SourceError if one is negative or has more than 32 bits."""
    is_narrow = tokens.dtype.kind == "u" and tokens.dtype.itemsize <= 4
    if not is_narrow and len(tokens) and (int(tokens.min()) < 0 or int(tokens.max()) > MAX_ID):
        wrong = int(tokens.min()) if int(tokens.min()) < 0 else int(tokens.max())
        raise refused(file, f"{wrong} is not the id of a token", "Its tokens may be of another type.")
    return tokens.astype("<u4", copy=False)


def refused(file: FileInfo, reason: str, *advice: str) -> SourceError:
    """The error for a file whose tokens cannot be read."""
    return SourceError(f"{file.path} cannot be read as tokens", f"reason       {reason}", *advice)


def truncated(file: FileInfo, expected: int) -> SourceError:
    """The error for a file that is shorter than what it states."""
    reason = f"it has {file.size} bytes, and must have {expected}"
    return refused(file, reason, "It may be cut off: compare it with the original.")


def check_size(file: FileInfo, expected: int) -> None:
    """Raise SourceError if a file has not the bytes that it states."""
    if file.size < expected:
        raise truncated(file, expected)
    if file.size > expected:
        raise refused(file, f"{file.size - expected} bytes follow the {expected} that it states")


def check_dtype(file: FileInfo, stated: str | None, given: str) -> str:
    """The type of the tokens. Raises SourceError if it is unknown, or not the one that was given."""
    if stated is not None and stated not in INTEGERS:
        raise refused(file, f"it states values of {stated}, which are not tokens")
    if stated and given and stated != given:
        raise refused(file, f"its tokens are of {stated}, not of {given}")
    if not (stated or given):
        raise TypeNotStated(*refused(file, "it does not state the type of its tokens").args)
    return stated or given


def big_endian(file: FileInfo) -> SourceError:
    """The error for a file that a big-endian machine wrote, or whose bytes were swapped."""
    return refused(file, "its numbers are big-endian", "Write it again with little-endian numbers.")


def read_bytes(file: FileInfo, start: int, stop: int) -> bytes:
    """The bytes of a range of a file. Raises SourceError if it is shorter."""
    if stop > file.size:
        raise truncated(file, stop)
    if start >= stop:
        return b""
    with storage.open_input(file, [(start, stop)]) as stream:
        stream.seek(start)
        data = bytes(stream.read(stop - start))
    if len(data) != stop - start:
        raise truncated(file, stop)
    return data


def read_values(file: FileInfo, dtype: str, start_byte: int, count: int) -> npt.NDArray[Any]:
    """Little-endian values of a file."""
    kind = np.dtype(dtype).newbyteorder("<")
    return np.frombuffer(read_bytes(file, start_byte, start_byte + count * kind.itemsize), kind)


def rising(file: FileInfo, edges: npt.NDArray[Any], last: int) -> Positions:
    """Positions of documents. Raises SourceError if they fall, or pass `last`."""
    positions = edges.astype(np.int64)
    if len(positions) and (bool((np.diff(positions) < 0).any()) or int(positions[0]) < 0 or int(positions[-1]) > last):
        raise refused(file, f"its documents do not rise from 0 to {last}")
    return positions


def companion(file: FileInfo, path: str) -> FileInfo:
    """A file beside another one. Raises SourceError if it is missing."""
    try:
        return storage.stat(path)
    except SourceError as error:
        reason = f"{os.path.basename(path)} is not beside it: {error.headline}"
        raise refused(file, reason) from error
