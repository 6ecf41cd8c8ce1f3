"""A part: the committed tokens of one unit, as one Arrow IPC file with one record batch.

The schema's metadata holds the counts and checksums. The same unit gives the same bytes on every machine.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokenmill import spans
from tokenmill.errors import CorruptStore
from tokenmill.humanize import Readable
from tokenmill.sources import documents
from tokenmill.sources.documents import Documents
from tokenmill.spans import Spans
from tokenmill.storage import AlreadyPublishedError, Folder
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.storage.digest import Hasher
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.storage.untrusted.tables import read_batch, read_schema
from tokenmill.store.chain import BASE, Head, reading
from tokenmill.store.job import STORE_FORMAT, Job
from tokenmill.store.layout import advice, part_name

NULL, MISSING, FILTERED, CONTINUED = documents.NULL, documents.MISSING, documents.FILTERED, documents.CONTINUED
DENIED, DUPLICATE, LENGTH, ERASED = "denied", "duplicate", "length", "erased"
SPARSE = frozenset({DUPLICATE, FILTERED, LENGTH, CONTINUED})
"""The reasons whose rows in a part and source are one range, with rows of other reasons and documents in between."""
WITHOUT_TEXT = frozenset({NULL, MISSING})
INTENDED = frozenset({*WITHOUT_TEXT, DENIED, ERASED, *SPARSE})
"""The reasons for skipping a row without text, one that an option excludes, or one that is erased in the source store.
All other rows are in quarantine."""

NOT_ITS_SPANS = "the spans that are trained on are not those of its documents"

ARROW_END = b"ARROW1"  # the last bytes of an Arrow IPC file

# The bytes read for a part's schema. If the schema is longer, the whole file is read.
HEADER_BYTES = 8 << 10
# The footer of a part holds its metadata once more, and less than this besides.
FOOTER_BYTES = 4 << 10
# The bytes of a document in the columns of a part, without its tokens: its offset, source and row.
DOCUMENT_BYTES = 8 + 4 + 8
MIN_TOKEN_BYTES = 2
# A sparse file can have more offsets than fit in memory, so they are checked in batches.
OFFSETS_PER_BATCH = 1 << 20
# The maximum of a count in the manifest.
MAX_INT64 = (1 << 63) - 1

TokenArray = npt.NDArray[np.unsignedinteger[Any]]


class SkippedRow(Readable, msgspec.Struct, frozen=True, array_like=True):
    """Rows in [first, last] of a source that are not documents of the store, and the reason.

    With a reason of SPARSE, these are `rows` of the rows in the range.
    """

    source: int
    first: int
    last: int
    rows: int
    reason: str


class ErasedRange(msgspec.Struct, frozen=True, array_like=True):
    """Documents [first, last] of a part that were erased, by the change of this number, from 1."""

    first: int
    last: int
    change: int


class PartSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """The metadata of a part, from which its row of the manifest is made.

    `slice` is the digest of the slice of the sources that the part was made from. `text` is the hash of the documents'
    text; with it a part is compared with its sources without an engine. `xxh3` is the hash of the columns, for fast
    checks. `kept` is the hash of the kept columns, `erased` are the documents whose tokens were replaced by end tokens,
    `erased_rows` is the number of rows in quarantine whose text was erased, `spelled` the number of searched documents
    that spell a control token (see `ControlTokens`). `trained` is the number of tokens that are trained on, erased
    ones included; None if all are. `rows` is the number of rows that the documents are from; None if each is from its
    own.

    Defaults are not written, so a field that a later version adds leaves the bytes of other parts as they are. Each is
    empty, zero or None: `msgspec` recognizes other defaults by identity.
    """

    unit: int
    job: str
    documents: int
    tokens: int
    text_bytes: int
    blake3: str = ""
    skipped: tuple[SkippedRow, ...] = ()
    slice: str = ""
    text: str = ""
    xxh3: str = ""
    kept: str = ""
    erased: tuple[ErasedRange, ...] = ()
    erased_rows: int = 0
    spelled: int = 0
    trained: int | None = None
    rows: int | None = None

    @property
    def file(self) -> str:
        """The name of the part. One that an erasure changed has the start of its hash in its name."""
        return part_name(self.unit, self.blake3 if self.erased or self.erased_rows else "")

    @property
    def skipped_rows(self) -> int:
        """The number of rows of the unit that are not in the part."""
        return sum(skipped.rows for skipped in self.skipped) if self.skipped else 0

    @property
    def source_rows(self) -> int:
        """The number of rows of the unit, skipped ones included."""
        return (self.documents if self.rows is None else self.rows) + self.skipped_rows

    @property
    def quarantined_rows(self) -> int:
        """The number of skipped rows that are in quarantine."""
        return sum(skipped.rows for skipped in self.skipped if skipped.reason not in INTENDED)


@dataclass(frozen=True, slots=True, repr=False)
class PartContent(Readable):
    """The columns of a part: document i is tokens[offsets[i]:offsets[i + 1]], from row[i] of source[i].

    `erased[i]` is the number of the change that erased document i, or 0; `erased` is None if no document is erased.
    `train` is None if all tokens are trained on. Consecutive documents with one source and row are pieces of that row.
    """

    tokens: TokenArray
    offsets: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]
    erased: npt.NDArray[np.int64] | None = None
    train: Spans | None = None

    @property
    def row_count(self) -> int:
        """How many rows the documents are from."""
        is_other = (np.diff(self.row) != 0) | (np.diff(self.source) != 0)
        return int(np.count_nonzero(is_other)) + min(1, len(self.row))

    def document(self, position: int) -> TokenArray:
        """The tokens of one document."""
        return self.tokens[self.offsets[position] : self.offsets[position + 1]]

    def slice(self, start: int, stop: int) -> PartContent:
        """Documents [start, stop), without a copy of their tokens."""
        erased = None if self.erased is None else self.erased[start:stop]
        train = None if self.train is None else self.train.slice(start, stop)
        columns = self.offsets[start : stop + 1], self.source[start:stop], self.row[start:stop]
        return PartContent(self.tokens, *columns, erased, train)

    def select(self, is_kept: npt.NDArray[np.bool_]) -> PartContent:
        """Some documents of a whole part."""
        lengths = np.diff(self.offsets)
        return PartContent(
            self.tokens[np.repeat(is_kept, lengths)],
            np.append(0, np.cumsum(lengths[is_kept])),
            self.source[is_kept],
            self.row[is_kept],
            None if self.erased is None else self.erased[is_kept],
            None if self.train is None else self.train.select(is_kept),
        )

    def erase(self, changes: npt.NDArray[np.int64], token: int) -> PartContent:
        """A whole part without what the erased documents hold: their tokens become `token`, and none is trained on.

        `changes` is the number of the change that erased each document, or 0. Lengths and offsets stay as they are.
        """
        is_erased = changes > 0
        tokens = self.tokens.copy()
        tokens[np.repeat(is_erased, np.diff(self.offsets))] = token
        train = None if self.train is None else self.train.emptied(is_erased)
        return replace(self, tokens=tokens, erased=changes, train=train)


def _columns(content: PartContent) -> list[memoryview]:
    columns = [content.tokens, content.offsets, content.source, content.row]
    if content.train is not None:
        columns += [content.train.values, content.train.offsets]
    return [np.ascontiguousarray(column).data.cast("B") for column in columns]


def checksum(content: PartContent, summary: PartSummary) -> str:
    """BLAKE3 of the values of the columns, in order, and the summary in JSON with an empty `blake3`."""
    digest = Hasher()
    for column in _columns(content):
        digest.update(column)
    digest.update(msgspec.json.encode(msgspec.structs.replace(summary, blake3="")))
    return digest.hexdigest()


def fast_checksum(content: PartContent) -> str:
    """XXH3 of the values of the columns, in order."""
    digest = xxhash.xxh3_128()
    for column in _columns(content):
        digest.update(column)
    return digest.hexdigest()


def with_checksum(summary: PartSummary, content: PartContent) -> PartSummary:
    """The summary with both checksums filled in."""
    summary = msgspec.structs.replace(summary, xxh3=fast_checksum(content))
    return msgspec.structs.replace(summary, blake3=checksum(content, summary))


def write_part(folder: Folder, summary: PartSummary, content: PartContent) -> PartSummary:
    """Publish a part; returns its summary with both checksums."""
    summary = with_checksum(summary, content)
    publish_part(folder, summary, content)
    return summary


def publish_part(folder: Folder, summary: PartSummary, content: PartContent) -> None:
    """Publish a part, which commits its unit. Raises AlreadyPublishedError if the part exists."""
    name = summary.file
    if folder.is_remote:
        if not folder.publish_if_absent(name, _in_memory(summary, content)):
            raise AlreadyPublishedError(name)
        return
    # No directory fsync here: a part lost in a power cut is tokenized again. All parts are synced before the manifest.
    with folder.publish(name, durable=False, if_absent=True) as file:
        write_columns(file, content, _metadata(summary))


def _metadata(summary: PartSummary) -> dict[str, Any]:
    return {"tokenmill.format": str(STORE_FORMAT), "tokenmill.part": msgspec.json.encode(summary)}


def file_bytes(summary: PartSummary, content: PartContent) -> int:
    """The size of the file of a part."""
    measure = pa.MockOutputStream()
    write_columns(measure, content, _metadata(summary))
    return int(measure.size())


def _in_memory(summary: PartSummary, content: PartContent) -> pa.Buffer:
    """Encode a part. The size is measured first, because a growing buffer is copied repeatedly."""
    data = pa.allocate_buffer(file_bytes(summary, content))
    write_columns(pa.FixedSizeBufferWriter(data), content, _metadata(summary))
    return data


def write_columns(file: BinaryIO | pa.NativeFile, content: PartContent, metadata: dict[str, Any]) -> None:
    """Write columns as an Arrow IPC file with one record batch."""
    tokens = pa.LargeListArray.from_arrays(pa.array(content.offsets), pa.array(content.tokens))
    schema = _schema(tokens.type.value_type, with_train=content.train is not None).with_metadata(metadata)
    train = [] if content.train is None else [content.train.array()]
    batch = pa.record_batch([tokens, pa.array(content.source), pa.array(content.row), *train], schema=schema)
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch)


def read_summary(folder: Folder, unit: int, head: Head = BASE) -> PartSummary:
    """Read the counts and checksums of a part, from the first bytes of its file.

    The file ends with a copy of them, with which they are compared. The end of an object is not read: objects are never
    truncated.
    """
    name = head.part_file(unit)
    with reading(folder, name, head, partial(corrupt_file, folder, unit, name)):
        data, file_size, read_range = folder.ranges.open_version(name, HEADER_BYTES)
        try:
            schema = read_schema(pa.py_buffer(data))
        except MalformedDataError:
            schema = read_schema(folder.buffer(name))
        if not folder.is_remote:
            written = (schema.metadata or {}).get(b"tokenmill.part", b"")
            count = min(file_size, len(written) + FOOTER_BYTES)
            _check_end(read_range(file_size - count, count), written)
        return summary_of(unit, schema, file_size)


def _check_end(end: bytes, written: bytes) -> None:
    if not end.endswith(ARROW_END):
        raise MalformedDataError("its end is missing")
    _check_copies(are_equal=written in end)


def _check_copies(*, are_equal: bool) -> None:
    if not are_equal:
        raise MalformedDataError("its metadata is not the same at the start and at the end of the file")


def open_part(folder: Folder, unit: int, head: Head = BASE) -> tuple[PartSummary, PartContent]:
    """Open a part: its columns are views of the memory map. Compares the stated counts with the columns."""
    return open_part_file(folder, unit, head.part_file(unit), head)


def open_part_file(folder: Folder, unit: int, name: str, head: Head = BASE) -> tuple[PartSummary, PartContent]:
    """Open a part of a unit by the name of its file, which need not be that of the head."""
    with reading(folder, name, head, partial(corrupt_file, folder, unit, name)):
        data = folder.buffer(name)
        schema, batch = read_batch(data, *SCHEMAS)
        summary = summary_of(unit, schema, data.size)
        _check_copies(are_equal=read_schema(data).metadata == schema.metadata)
        content = _content(summary, batch)
    return summary, content


def check_content(folder: Folder, summary: PartSummary, content: PartContent) -> None:
    """Compare the columns of a part with its XXH3."""
    actual = fast_checksum(content)
    if actual != summary.xxh3:
        raise corrupt_file(folder, summary.unit, summary.file, f"checksum {actual}, expected {summary.xxh3}")


def check_part(folder: Folder, unit: int, job: Job | None = None, head: Head = BASE) -> PartSummary:
    """Read a whole part and compare it with its checksums and, if given, with its job.

    The checksums detect corruption, not tampering.
    """
    name = head.part_file(unit)
    summary, content = open_part_file(folder, unit, name, head)
    actual = checksum(content, summary)
    if actual != summary.blake3:
        raise corrupt_file(folder, unit, name, f"checksum {actual}, expected {summary.blake3}")
    check_content(folder, summary, content)
    if job is None:
        return summary
    if summary.job != job.digest():
        raise corrupt_file(folder, unit, name, "it belongs to another job")
    _check_type(folder, summary, content, job.tokenizer.dtype)
    largest = int(content.tokens.max(initial=0))
    if largest >= job.tokenizer.vocabulary_size:
        raise corrupt_file(folder, unit, name, f"it holds token {largest}, of {job.tokenizer.vocabulary_size}")
    return summary


def check_fits(folder: Folder, summary: PartSummary, content: PartContent, dtype: str, sources: int) -> None:
    """Refuse a part whose token type is not the store's, or that names an unknown source."""
    _check_type(folder, summary, content, dtype)
    if len(content.source) and int(content.source.max()) >= sources:
        reason = f"it names source {content.source.max()}, of {sources}"
        raise corrupt_file(folder, summary.unit, summary.file, reason)


def _check_type(folder: Folder, summary: PartSummary, content: PartContent, dtype: str) -> None:
    if content.tokens.dtype != np.dtype(dtype):
        reason = f"its tokens are {content.tokens.dtype}, those of the store {dtype}"
        raise corrupt_file(folder, summary.unit, summary.file, reason)


def _schema(token: pa.DataType, *, with_train: bool) -> pa.Schema:
    columns = {"tokens": pa.large_list(token), "source": pa.uint32(), "row": pa.uint64()}
    columns |= {"train": spans.TYPE} if with_train else {}
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in columns.items()])


SCHEMAS = [_schema(token, with_train=some) for token in (pa.uint16(), pa.uint32()) for some in (False, True)]


def erased_changes(summary: PartSummary) -> npt.NDArray[np.int64] | None:
    """The number of the change that erased each document of a part, 0 for the others; None if none is erased.

    The ranges do not overlap, and the file has as many documents (see `summary_of`), so time and memory are bounded.
    """
    if not summary.erased:
        return None
    changes = np.zeros(summary.documents, np.int64)
    for entry in summary.erased:
        changes[entry.first : entry.last + 1] = entry.change
    return changes


def _content(summary: PartSummary, batch: pa.RecordBatch) -> PartContent:
    """The columns of a part. Raises MalformedDataError if they do not have the lengths that its summary states."""
    tokens = batch.column("tokens")
    if tokens.values.null_count:
        raise MalformedDataError("some of its tokens are null")
    source, row = batch.column("source").to_numpy(), batch.column("row").to_numpy()
    values, offsets = tokens.values.to_numpy(), tokens.offsets.to_numpy()
    is_sound = (
        len(offsets) == summary.documents + 1 == len(row) + 1 == len(source) + 1
        and int(offsets[0]) == 0
        and int(offsets[-1]) == summary.tokens == len(values)
        and is_ascending(offsets)
    )
    if not is_sound:
        raise MalformedDataError("its columns do not have the lengths it states")
    return PartContent(values, offsets, source, row, erased_changes(summary), _train(batch, offsets))


def _train(batch: pa.RecordBatch, documents: npt.NDArray[np.int64]) -> Spans | None:
    """The spans of a part, if it has them. Raises MalformedDataError if they are not spans of its documents."""
    if "train" not in batch.schema.names:
        return None
    column = batch.column("train")
    offsets = column.offsets.to_numpy()
    is_sound = not column.values.null_count and int(offsets[0]) == 0 and is_ascending(offsets)
    found = Spans(column.values.to_numpy(), offsets) if is_sound else None
    if found is None or not found.fit(documents):
        raise MalformedDataError(NOT_ITS_SPANS)
    return found


def is_ascending(offsets: npt.NDArray[np.int64]) -> bool:
    """Whether no document ends before it begins."""
    starts = range(0, len(offsets) - 1, OFFSETS_PER_BATCH)
    batches = (offsets[start : start + OFFSETS_PER_BATCH + 1] for start in starts)
    return all(bool((batch[1:] >= batch[:-1]).all()) for batch in batches)


def summary_of(unit: int, schema: pa.Schema, file_bytes: int) -> PartSummary:
    """The summary in the metadata of a part's schema. Raises MalformedDataError if it is not one of this unit.

    Every summary passes here before anything of a size that it states is allocated: its file can hold its documents
    and tokens, its ranges are in order, and those of erased documents do not overlap.
    """
    metadata: dict[bytes, Any] = schema.metadata or {}
    if metadata.get(b"tokenmill.format") != str(STORE_FORMAT).encode():
        raise MalformedDataError(f"it is not a part of format {STORE_FORMAT}")
    summary = decode(metadata.get(b"tokenmill.part", b""), PartSummary)
    if summary.unit != unit:
        raise MalformedDataError(f"it holds unit {summary.unit}")
    counts = [summary.documents, summary.tokens, summary.text_bytes, summary.skipped_rows, summary.spelled]
    counts += [summary.documents - summary.spelled, summary.erased_rows]
    counts += [] if summary.trained is None else [summary.trained, summary.tokens - summary.trained]
    for skipped in summary.skipped:
        most = skipped.last - skipped.first + 1
        counts += [skipped.source, skipped.first, skipped.last, skipped.rows - 1, most - skipped.rows]
    for entry in summary.erased:
        counts += [entry.first, entry.last - entry.first, summary.documents - 1 - entry.last, entry.change - 1]
    if min(counts) < 0 or max(counts) > MAX_INT64:
        raise MalformedDataError("it has negative or impossible counts")
    if DOCUMENT_BYTES * summary.documents + MIN_TOKEN_BYTES * summary.tokens > file_bytes:
        raise MalformedDataError(
            f"it states {summary.documents} documents and {summary.tokens} tokens, and has {file_bytes} bytes"
        )
    is_ordered = all(one.last < other.first for one, other in itertools.pairwise(summary.erased)) and all(
        (one.source, one.first) <= (other.source, other.first) for one, other in itertools.pairwise(summary.skipped)
    )
    if not is_ordered:
        raise MalformedDataError("its ranges of erased documents or skipped rows are in no order, or overlap")
    return summary


def corrupt_file(folder: Folder, unit: int, name: str, reason: str) -> CorruptStore:
    """The error for a damaged part in the file of this name."""
    where = f"file         {folder.path(name)}"
    return CorruptStore(f"part {unit} is damaged", where, f"found        {reason}", *advice(name))


class TextHash:
    """The hash of the text and the boundaries of documents, and of the ranges that are trained on, if not all text is.

    Prefixes are hashed, too. It does not depend on how documents are batched. `text_bytes` is the size of the text,
    0 for documents that are ids already. A part that leaves out documents subtracts theirs.
    """

    def __init__(self) -> None:
        self.text_bytes = 0
        self._hashes = [xxhash.xxh3_128(), xxhash.xxh3_128()]

    def update(self, documents: Documents) -> None:
        """Add documents, none of which is null."""
        (data, offsets), trained, prefix = text_buffers(documents.text), documents.trained, documents.prefix
        self.text_bytes += 0 if pa.types.is_large_binary(documents.text.type) else len(data)
        columns: list[npt.NDArray[Any]] = [data, np.diff(offsets)]
        if trained is not None:
            columns += [trained.values, np.diff(trained.offsets)]
        if prefix is not None:
            data, offsets = text_buffers(prefix)
            columns += [data, np.where(prefix.is_null(), -1, np.diff(offsets))]
        self._hashes += [xxhash.xxh3_128() for _ in columns[len(self._hashes) :]]
        for digest, column in zip(self._hashes, columns, strict=True):
            digest.update(np.ascontiguousarray(column).data)

    def hexdigest(self) -> str:
        """The hash of all documents so far."""
        return xxhash.xxh3_128_hexdigest(b"".join(digest.digest() for digest in self._hashes))
