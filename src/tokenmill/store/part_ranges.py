"""Read ranges of a part's tokens, for parts in an object store: a part has megabytes, a training sequence kilobytes."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import StoreError
from tokenmill.spans import Spans
from tokenmill.storage import Folder
from tokenmill.storage.folder import ReadRange
from tokenmill.storage.untrusted.flatbuffers import Table
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.tables import read_schema
from tokenmill.store.chain import BASE, Head, refuse_outdated
from tokenmill.store.part import (
    HEADER_BYTES,
    NOT_ITS_SPANS,
    SCHEMAS,
    PartSummary,
    TokenArray,
    corrupt_file,
    is_ascending,
    summary_of,
)

# A header that lists many skipped rows is longer than HEADER_BYTES.
MAX_HEADER_BYTES = 64 << 20

_RECORD_BATCH = 3

# The buffers of a part: for each column the validity, which is empty, and the values; the list has offsets as well.
_OFFSETS, _TOKENS, _SOURCE, _ROW, _TRAIN_OFFSETS, _TRAIN = 1, 3, 5, 7, 9, 11
_BUFFERS, _BUFFERS_WITH_TRAIN = 8, 12


class RangedPart:
    """A part whose header was read. Its columns are fetched when they are asked for, its tokens by range."""

    def __init__(self, folder: Folder, summary: PartSummary, columns: _Columns, read_range: ReadRange) -> None:
        self._folder = folder
        self._unit = summary.unit
        self._columns = columns
        self._read_range = read_range
        self.summary = summary
        self.dtype = columns.dtype

    def read_tokens(self, start: int, stop: int) -> TokenArray:
        """Tokens [start, stop) of the part, by one request."""
        if not 0 <= start <= stop <= self.summary.tokens:
            raise IndexError(f"part {self._unit} has no tokens {start} to {stop}")
        return self._read(_TOKENS, self.dtype, start, stop - start)

    @functools.cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """The position of each document in the part, and the number of tokens."""
        offsets: npt.NDArray[np.int64] = self._read(_OFFSETS, np.dtype(np.int64), 0, self.summary.documents + 1)
        if int(offsets[0]) != 0 or int(offsets[-1]) != self.summary.tokens or not is_ascending(offsets):
            raise corrupt_file(
                self._folder, self._unit, self.summary.file, "its columns do not have the lengths it states"
            )
        return offsets

    @property
    def source(self) -> npt.NDArray[np.uint32]:
        """The source of each document."""
        return self._read(_SOURCE, np.dtype(np.uint32), 0, self.summary.documents)

    @property
    def row(self) -> npt.NDArray[np.uint64]:
        """The row of each document."""
        return self._read(_ROW, np.dtype(np.uint64), 0, self.summary.documents)

    @functools.cached_property
    def train(self) -> Spans | None:
        """The tokens of each document that are trained on; None if all are."""
        if self._columns.train_bytes < 0:
            return None
        offsets: npt.NDArray[np.int64] = self._read(_TRAIN_OFFSETS, np.dtype(np.int64), 0, self.summary.documents + 1)
        count = int(offsets[-1])
        is_sound = is_ascending(offsets) and int(offsets[0]) == 0 and 4 * count <= self._columns.train_bytes
        spans = Spans(self._read(_TRAIN, np.dtype(np.uint32), 0, count), offsets) if is_sound else None
        if spans is None or not spans.fit(self.offsets):
            raise corrupt_file(self._folder, self._unit, self.summary.file, NOT_ITS_SPANS)
        return spans

    def _read(self, buffer: int, dtype: np.dtype[Any], start: int, count: int) -> npt.NDArray[Any]:
        position = self._columns.positions[buffer] + start * dtype.itemsize
        return np.frombuffer(self._read_range(position, count * dtype.itemsize), dtype)


@dataclass(frozen=True, slots=True)
class _Columns:
    """The type of the tokens, and the positions of the buffers in the file.

    `train_bytes` is the size of the values of the column `train`, -1 without that column.
    """

    dtype: np.dtype[Any]
    positions: list[int]
    train_bytes: int = -1


def open_ranged(folder: Folder, unit: int, head: Head = BASE) -> RangedPart:
    """Read the header of a part. Compares the sizes of the columns with the stated counts."""
    limit, name = HEADER_BYTES, head.part_file(unit)
    while True:
        try:
            data, file_bytes, read_range = folder.ranges.open_version(name, limit)
        except StoreError:
            if not folder.exists(name):
                refuse_outdated(folder, head)
            raise
        try:
            return RangedPart(folder, *_parse(unit, data, file_bytes), read_range)
        except MalformedDataError as damage:
            if len(data) < limit or limit >= MAX_HEADER_BYTES:  # the whole file was read, or no header is that long
                raise corrupt_file(folder, unit, name, str(damage)) from damage
            limit *= 16


def _parse(unit: int, data: bytes, file_bytes: int) -> tuple[PartSummary, _Columns]:
    """The summary and the columns in the header of a part."""
    schema = read_schema(pa.py_buffer(data))
    summary = summary_of(unit, schema, file_bytes)
    matching = next((known for known in SCHEMAS if schema.equals(known)), None)
    if matching is None:
        raise MalformedDataError("its columns are not those of a part")
    dtype = np.dtype(matching.field("tokens").type.value_type.to_pandas_dtype())
    start = 8 + _message_bytes(data, 8)  # the schema follows the eight bytes of the magic number
    body = start + _message_bytes(data, start)
    message = Table(data[start + 8 : body])
    if message.number(1, "<B") != _RECORD_BATCH or message.child(2).has(3):
        raise MalformedDataError("its batch is packed")
    nodes, buffers = message.child(2).tuples(1, 2), message.child(2).tuples(2, 2)
    expected = _BUFFERS if matching.names[-1] == "row" else _BUFFERS_WITH_TRAIN
    if len(buffers) != expected or bool(nodes[:, 1].any()) or bool((buffers < 0).any()):
        raise MalformedDataError("its batch has other buffers than a part")
    sizes = {_OFFSETS: 8 * (summary.documents + 1), _TOKENS: dtype.itemsize * summary.tokens}
    sizes |= {_SOURCE: 4 * summary.documents, _ROW: 8 * summary.documents}
    if any(int(buffers[number, 1]) < size for number, size in sizes.items()):
        raise MalformedDataError("its columns do not have the lengths it states")
    has_train = len(buffers) == _BUFFERS_WITH_TRAIN
    if has_train and int(buffers[_TRAIN_OFFSETS, 1]) < sizes[_OFFSETS]:
        raise MalformedDataError("its columns do not have the lengths it states")
    train_bytes = int(buffers[_TRAIN, 1]) if has_train else -1
    return summary, _Columns(dtype, (buffers[:, 0] + body).tolist(), train_bytes)


def _message_bytes(data: bytes, start: int) -> int:
    """The bytes of a message's header: a marker, the length, and as many bytes."""
    if data[start : start + 4] != b"\xff" * 4:
        raise MalformedDataError("it is not an Arrow file")
    size = 8 + int.from_bytes(data[start + 4 : start + 8], "little")
    if start + size > len(data):
        raise MalformedDataError("its header breaks off")
    return size
