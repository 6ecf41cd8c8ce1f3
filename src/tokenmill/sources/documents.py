"""The records that sources exchange with other packages: a file, its slices, its documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill import storage
from tokenmill.sources.token_source import StoreInput, TokenInput
from tokenmill.spans import Spans

Span = storage.Span

Int64Array = npt.NDArray[np.int64]
RowArray = npt.NDArray[np.uint64]

# The kinds whose documents are numbered, and files of tokens without an index, in which a row is the token at which its
# document starts. In other kinds it is the byte.
ROW_KINDS = ("parquet", "arrow", "csv", "indexed-tokens", "tokens")
# The reasons for skipping a row: its text is null, it lacks the column of the text, it does not satisfy `--where`, or a
# document of an earlier row goes on in it.
NULL, MISSING, FILTERED, CONTINUED = "null", "missing", "filtered", "continued"

# The `head` of a file that continues the last document of the file before and does not end it.
WHOLE = -1


class SourceFile(msgspec.Struct, frozen=True):
    """One input file: its index in the run's list of sources, its kind, and its size and fingerprint at planning.

    `identity` is a hash of its size and first bytes (see `with_identities`); 0 for work that keeps no parts. Of a file
    of tokens without an index, the first `head` tokens belong to a document of the file before, and its own last
    document goes on in the files of `rest` (see `tokens.joins`).
    """

    index: int
    path: str
    kind: str
    size: int
    fingerprint: str
    identity: int = 0
    head: int = 0
    rest: tuple[SourceFile, ...] = ()

    @property
    def info(self) -> storage.FileInfo:
        """The file as the record that `storage` takes."""
        return storage.FileInfo(self.path, self.size, self.fingerprint)


class Slice(msgspec.Struct, frozen=True):
    """A range [start, stop) of a file, in the measure of its kind (see `Slices`)."""

    start: int
    stop: int


class ReadOptions(msgspec.Struct, frozen=True):
    """Where the text is in a source, how large batches are, and how bad rows are handled."""

    column: str = "text"
    separator: str | None = None
    batch_bytes: int = 4 << 20
    # On a row that cannot be a document, "fail" raises BadDocument and "quarantine" reports it in `Documents.bad`.
    on_bad: str = "fail"
    # A longer document is a bad row. In a stream it is skipped without being held in memory.
    document_bytes: int | None = None
    # Columns that are kept, or that decide which rows are skipped. Planning refuses a file that lacks one.
    required: tuple[str, ...] = ()
    # A filter on columns, in its canonical text. Rows that do not satisfy it are skipped.
    where: str = ""
    # What stands between the strings of a list; None stands for the default (see `text_columns`).
    join: str | None = None
    # Columns in braces and the text around them, in place of `column` (see `text_columns`).
    template: str = ""
    # What a null in a column of the template is: "skip" skips its row, "empty" makes it empty text.
    null: str = "skip"
    # A document that spells one of these more often than the template is a bad row.
    refused: tuple[str, ...] = ()
    # The column holds lists of segments, each with its text and whether it is trained on (see `segments`).
    segments: bool = False
    # The column holds lists of messages, and `tools` those of tools if it is given (see `conversations`).
    messages: bool = False
    tools: str = ""
    # The documents are token ids (see `token_lists`).
    tokens: TokenInput | None = None
    # A template of text before each document, which is encoded by itself (see `prefixes`).
    prefix: str = ""
    # The row groups of a Parquet slice that are read, counted from its first one. None stands for all of them.
    groups: tuple[int, ...] | None = None

    @property
    def store(self) -> StoreInput | None:
        """The store that is read in place of the files; None if the files are read."""
        return None if self.tokens is None else self.tokens.store

    @property
    def joins_texts(self) -> bool:
        """Whether the strings of a list are joined to a text."""
        return not self.segments and not self.messages and self.tokens is None


@dataclass(frozen=True, slots=True)
class Slices:
    """The slices of a file, in file order: slice i is [start[i], stop[i]).

    The measure is row groups for Parquet, record batches for Arrow and bytes otherwise. `text_bytes` estimates the
    text of each slice without reading it. `rows` is None if the file does not declare its rows.
    """

    start: Int64Array
    stop: Int64Array
    text_bytes: Int64Array
    rows: Int64Array | None

    def whole(self) -> Slice:
        """All slices as one."""
        return Slice(int(self.start[0]), int(self.stop[-1]))


class BadRow(msgspec.Struct, frozen=True):
    """A row that cannot be a document, and why.

    `reason` is one of a few fixed phrases, so that bad rows can be counted by it; `detail` describes this row. `raw` is
    the line or the column's value, truncated to 64 KiB; `blake3` is the hash of all of it.
    """

    row: int
    reason: str
    detail: str
    blake3: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Documents:
    """A batch of documents of one file: valid UTF-8 or null, each with its row in the file.

    In Parquet and Arrow, a row is the row number. In JSON Lines and text, it is the byte offset of the document in the
    decompressed stream, which locates the document without counting lines. `bad` holds the bad rows of the same range,
    which are not in `rows`. A batch may consist of bad rows only. `skipped` holds the rows that `--deny` or `--where`
    have removed, by reason. `unread_groups` counts the Parquet row groups whose text was not read for this reason.
    `missing` holds the rows that lack the column of the text; the text of those that are in `rows` is null. `trained`
    are the bytes of each document that are trained on; None if all are. `prefix` is the text before each document, null
    where it has none; None without `ReadOptions.prefix`. With `ReadOptions.tokens`, `text` is binary: the ids of each
    document, without begin and end token (a store's with its own), and `trained` are the ids that are trained on.
    """

    text: pa.LargeStringArray
    rows: RowArray
    bad: tuple[BadRow, ...] = ()
    skipped: dict[str, RowArray] = field(default_factory=dict)
    unread_groups: int = 0
    missing: RowArray = field(default_factory=lambda: np.empty(0, np.uint64))
    trained: Spans | None = None
    prefix: pa.LargeStringArray | None = None

    @property
    def skipped_rows(self) -> int:
        """The number of rows that were removed on purpose."""
        return sum(map(len, self.skipped.values()))

    def null_mask(self) -> npt.NDArray[np.bool_]:
        """True for each document that is null."""
        return np.asarray(self.text.is_null())

    def reasons(self) -> dict[str, RowArray]:
        """The rows without text and those that were removed on purpose, by reason."""
        rows = self.rows[self.null_mask()] if self.text.null_count else self.rows[:0]
        is_missing = np.isin(rows, self.missing)
        without_text = {NULL: rows[~is_missing], MISSING: rows[is_missing]}
        return {reason: rows for reason, rows in (without_text | self.skipped).items() if len(rows)}

    def filter(self, is_chosen: npt.NDArray[np.bool_]) -> Documents:
        """The chosen documents, with all bad and skipped rows."""
        trained = None if self.trained is None else self.trained.select(is_chosen)
        prefix = None if self.prefix is None else self.prefix.filter(pa.array(is_chosen))
        text = self.text.filter(pa.array(is_chosen))
        return replace(self, text=text, rows=self.rows[is_chosen], trained=trained, prefix=prefix)

    def slice(self, start: int, stop: int) -> Documents:
        """Documents [start, stop), without bad and skipped rows. Their text is not copied."""
        trained = None if self.trained is None else self.trained.slice(start, stop)
        prefix = None if self.prefix is None else self.prefix.slice(start, stop - start)
        return Documents(self.text.slice(start, stop - start), self.rows[start:stop], trained=trained, prefix=prefix)

    def without_nulls(self) -> Documents:
        """The documents that are not null."""
        if not self.text.null_count:
            return self
        present = self.filter(~self.null_mask())
        return Documents(present.text, present.rows, self.bad, trained=present.trained, prefix=present.prefix)

    def whole_text(self) -> pa.LargeStringArray:
        """The text of each document after its prefix."""
        if self.prefix is None:
            return self.text
        return pc.binary_join_element_wise(self.prefix.fill_null(""), self.text, pa.scalar("", pa.large_string()))

    def text_bytes(self) -> int:
        """The total size of the text."""
        total: int | None = pc.sum(pc.binary_length(self.text)).as_py()
        return total or 0


@dataclass(frozen=True, slots=True)
class Columns:
    """The values of some columns of a file, for rows in ascending order. Their types are those of `plain_values`."""

    rows: RowArray
    values: pa.Table


class SourceKind(Protocol):
    """The interface of the modules `parquet`, `arrow`, `jsonl` and `text`."""

    def split(self, file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
        """Split a file into slices of about `unit_bytes` of text without reading its documents."""

    def byte_ranges(self, file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
        """The bytes that reading a slice, or the whole file, needs, as far as they are known before reading."""

    def read(self, file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
        """The documents of one slice, in file order."""

    def read_columns(
        self, file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
    ) -> Iterator[Columns]:
        """The values of some columns in one slice, or in the whole file, in file order.

        Raises NoColumn if the file declares its columns and lacks one. A JSON Lines file may lack any.
        """

    def require_columns(self, file: SourceFile, names: tuple[str, ...]) -> None:
        """Raise SourceError if the file declares its columns, and one of these is missing or not plain."""


def as_content(array: pa.Array, options: ReadOptions) -> pa.Array:
    """An array as the content of documents: large strings, or the ids that it holds already."""
    return array if options.tokens is not None else as_text(array)


def as_text(array: pa.Array) -> pa.LargeStringArray:
    """An array as large strings. Does not validate UTF-8: `bad_rows.split_valid` does, and reports the row."""
    return array.cast(options=pc.CastOptions(target_type=pa.large_string(), allow_invalid_utf8=True))
