"""The records that travel between sources and the rest: a file, its slices, its documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill import storage

Span = storage.Span

Int64Array = npt.NDArray[np.int64]
RowArray = npt.NDArray[np.uint64]


class SourceFile(msgspec.Struct, frozen=True):
    """One input file: its place in the run's list of sources, its kind, and what it looked like at planning."""

    index: int
    path: str
    kind: str
    size: int
    fingerprint: str

    @property
    def info(self) -> storage.FileInfo:
        """The file as storage knows it."""
        return storage.FileInfo(self.path, self.size, self.fingerprint)


class Slice(msgspec.Struct, frozen=True):
    """Some of a file: [start, stop) in its kind's own measure.

    `detail` is what the kind found out about the slice when the file was cut, and needs to read it, if anything.
    """

    start: int
    stop: int
    detail: bytes | None = None


class ReadOptions(msgspec.Struct, frozen=True):
    """Where the text is in a source, and how much of it is handed over at once."""

    column: str = "text"
    separator: str | None = None
    batch_bytes: int = 4 << 20
    on_bad: str = "fail"
    """What becomes of a row that cannot be a document: "fail" raises BadDocument, "quarantine" tells it in `bad`."""
    document_bytes: int | None = None
    """A longer document is a bad row, too; one of a stream is passed over without being held."""


@dataclass(frozen=True, slots=True)
class Slices:
    """How a file is cut, in file order: slice i is [start[i], stop[i]) in the kind's own measure.

    That measure is row groups for Parquet, record batches for Arrow and bytes elsewhere. `text_bytes` is what the
    slice holds, as near as can be told without reading it; `rows` is known only where the file says it.
    """

    start: Int64Array
    stop: Int64Array
    text_bytes: Int64Array
    rows: Int64Array | None
    details: list[bytes] | None = None

    def whole(self) -> Slice:
        """All of them as one."""
        return Slice(int(self.start[0]), int(self.stop[-1]))


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be a document, and why.

    `reason` is one of a few phrases that people count by, `detail` its particulars. `raw` is the line, or the value of
    the column, cut after 64 KiB; `sha256` is that of all of it.
    """

    row: int
    reason: str
    detail: str
    sha256: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Documents:
    """Some documents of one file: valid UTF-8 or null, with the row each has in the file.

    A row is the row's number in Parquet and Arrow. In JSON Lines and text it is the byte at which the document starts
    (in the decompressed stream), which finds the document without counting lines. `bad` are those rows of the same
    stretch that are not among `rows`; there may be nothing else.
    """

    text: pa.LargeStringArray
    rows: RowArray
    bad: tuple[BadRow, ...] = ()

    def null_mask(self) -> npt.NDArray[np.bool_]:
        """Which of them are null."""
        mask: npt.NDArray[np.bool_] = self.text.is_null().to_numpy(zero_copy_only=False)
        return mask

    def without_nulls(self) -> Documents:
        """Those that are there."""
        if not self.text.null_count:
            return self
        return Documents(self.text.drop_null(), self.rows[~self.null_mask()], self.bad)

    def text_bytes(self) -> int:
        """The size of the text."""
        total: int | None = pc.sum(pc.binary_length(self.text)).as_py()
        return total or 0

    def slice_bytes(self, most_bytes: int) -> Documents:
        """The first documents, as many as fit; at least one if there is one."""
        ends = np.cumsum(pc.binary_length(self.text).to_numpy(zero_copy_only=False))
        count = max(1, int(np.searchsorted(ends, most_bytes, side="right")))
        return Documents(self.text.slice(0, count), self.rows[:count], self.bad)


class SourceKind(Protocol):
    """What a module of this package offers."""

    def split(self, file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
        """Cut a file into slices of about `unit_bytes` of text without reading its documents."""
        ...

    def byte_ranges(self, file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
        """The bytes of a file that reading a slice, or all of it, takes; as far as they are known before."""
        ...

    def read(self, file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
        """The documents of one slice, in file order."""
        ...


def as_text(array: pa.Array) -> pa.LargeStringArray:
    """An array as large strings. Bytes that are no UTF-8 pass: `validity.checked` finds them and names their row."""
    return array.cast(options=pc.CastOptions(target_type=pa.large_string(), allow_invalid_utf8=True))
