"""Sorted runs: the temporary files of a shuffle. A run holds the documents of some parts, sorted by stream and key.

A range of keys is one range of each run, so a shard reads one range per run, however many parts there are. A run that
was merged from others has one range of their keys (`exports/shuffle.py`). Ranges are read, not mapped: the kernel loads
more of a map than is touched, and with hundreds of runs this exceeds the memory budget.

    00000003.tokens      the tokens of all documents
    00000003.documents   a record for each document: its end, row and source
    00000003.kept        the kept columns of all documents, if the export has some: the position of each section and of
                         the end, then three sections for each column. They are whether each document has a value;
                         the values, or where the text of each document ends; the text
    00000003.index       for each bin and for the end, the documents before it; then the tokens before it; then the
                         checksums. Published last, so its existence commits the run

A resumed export compares the checksums of the runs that exist, and sorts or merges a damaged run again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokenmill.errors import CorruptStore, StorageError, StoreError
from tokenmill.exports.job import RUNS
from tokenmill.exports.shards import Counts
from tokenmill.storage import Folder
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.storage.checksum import xxh3_of
from tokenmill.storage.digest import digest_of
from tokenmill.store.layout import numbered_files
from tokenmill.store.part import PartContent, TokenArray
from tokenmill.token_files.protocol import COLUMN_TYPES, ExportedColumn

# A row of the `.documents` file.
_RECORD = np.dtype([("end", "<i8"), ("row", "<u8"), ("source", "<u4")])
# The end of the `.index` file: the digest of the export's work and the run's number, and the checksums (XXH3, 128 bits)
# of the tokens, the documents, the kept columns and the index up to here.
_TRAILER = struct.Struct("<32s16s16s16s16s")
# The checksum of kept columns that there are not.
_NOTHING = xxhash.xxh3_128_digest(b"").hex()
_FILES = ("tokens", "documents", "kept")


def spans(part_tokens: Counts, run_tokens: int) -> list[tuple[int, int, int]]:
    """Return which parts are sorted together: number of the run, first part, last part + 1."""
    if not len(part_tokens):
        return []
    group = (np.cumsum(part_tokens) - part_tokens) // run_tokens
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    stops = np.append(starts[1:], len(part_tokens))
    return list(zip(range(len(starts)), starts.tolist(), stops.tolist(), strict=True))


def publish_sorted_run(  # noqa: PLR0913, PLR0917 - a run, its content and what it belongs to
    folder: Folder, run: int, digest: str, content: PartContent, bin_of: Counts, bins: int, kept: bytes = b""
) -> None:
    """Publish sorted documents of the export with this digest. `bin_of` is the bin of each document in all streams.

    `kept` are the kept columns, encoded by `encode_columns`; without any there is no file.
    """
    records = np.empty(len(content.row), _RECORD)
    records["end"], records["row"], records["source"] = content.offsets[1:], content.row, content.source
    before = np.searchsorted(bin_of, np.arange(bins + 1))
    index = np.concatenate([before, content.offsets[before]]).astype("<i8").tobytes()
    checksums = []
    columns = (content.tokens, records, np.frombuffer(kept, np.uint8))
    for extension, column in zip(_FILES, columns, strict=True):
        data = np.ascontiguousarray(column).view(np.uint8).data
        checksums.append(xxhash.xxh3_128_digest(data))
        if extension == "kept" and not kept:
            continue
        with folder.publish(_name(run, extension), durable=False) as file:
            file.write(data)
    trailer = _TRAILER.pack(bytes.fromhex(_owner(digest, run)), *checksums, xxhash.xxh3_128_digest(index))
    with folder.publish(_name(run, "index"), durable=False) as file:
        file.write(index + trailer)


def committed(folder: Folder, count: int) -> npt.NDArray[np.bool_]:
    """Return which of `count` runs are committed."""
    return numbered_files(folder, RUNS, "index", count)


def discard(folder: Folder, run: int) -> None:
    """Remove a run: first its index, which commits it."""
    for extension in ("index", *_FILES):
        folder.discard(_name(run, extension))


def counts(folder: Folder, digest: str, run: int) -> tuple[Counts, Counts]:
    """Return the documents and the tokens in each bin of a run of the export with this digest."""
    documents, tokens = np.diff(_own_index(folder, run, digest))
    if bool((documents < 0).any()) or bool((tokens < 0).any()) or tokens.sum(dtype=np.float64) >= 2.0**62:
        raise _corrupt(folder, run, "it has negative or impossible counts")
    return documents, tokens


def is_intact(folder: Folder, run: int, digest: str) -> bool:
    """Whether this is the run of this number of the export with this digest, and its files are as they were written."""
    try:
        _, (export, *checksums) = _read_index(folder, run)
        files = _FILES if checksums[-1] != _NOTHING else _FILES[:-1]
        return export == _owner(digest, run) and checksums[: len(files)] == [
            xxh3_of(folder, _name(run, extension)) for extension in files
        ]
    except (StoreError, StorageError):
        return False


def _own_index(folder: Folder, run: int, digest: str) -> Counts:
    """The counts before each bin of a run of the export with this digest."""
    index, (export, *_) = _read_index(folder, run)
    if export != _owner(digest, run):
        raise _corrupt(folder, run, "it is of another export")
    return index


def _read_index(folder: Folder, run: int) -> tuple[Counts, tuple[str, ...]]:
    """The counts before each bin, the digest of the export, and the checksums of the files."""
    data = folder.read(_name(run, "index"))
    index = data[: -_TRAILER.size]
    if len(data) <= _TRAILER.size or len(index) % 16:
        raise _corrupt(folder, run, "its index is cut off")
    *digests, own = _TRAILER.unpack(data[-_TRAILER.size :])
    if xxhash.xxh3_128_digest(index) != own:
        raise _corrupt(folder, run, "its index is not as it was written")
    return np.frombuffer(index, "<i8").reshape(2, -1), tuple(digest.hex() for digest in digests)


@dataclass(frozen=True, slots=True)
class SortedRunRange:
    """Consecutive documents of a run: the end of each, counted from the first one's start, and its origin."""

    run: int
    first_document: int
    first_token: int
    ends: Counts
    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]

    def tokens(self, folder: Folder, dtype: str, start: int, stop: int) -> tuple[TokenArray, Counts]:
        """Read the tokens of documents [start, stop) of the range, and return them with the documents' offsets."""
        before = int(self.ends[start - 1]) if start else 0
        offsets = np.concatenate([np.zeros(1, np.int64), self.ends[start:stop] - before])
        size = np.dtype(dtype).itemsize
        first_byte, count = (self.first_token + before) * size, int(offsets[-1]) * size
        data = folder.ranges.read_at(_name(self.run, "tokens"), first_byte, count)
        return np.frombuffer(data, dtype), offsets

    def columns(self, folder: Folder, columns: Sequence[ExportedColumn], start: int, stop: int) -> pa.Table:
        """Read the kept columns of documents [start, stop) of the range."""
        first = self.first_document
        return read_columns(folder, _name(self.run, "kept"), columns, first + start, first + stop)


def read_range(folder: Folder, run: int, low: int, high: int, digest: str | None = None) -> SortedRunRange:
    """Read the documents of bins [low, high), without their tokens, in two reads.

    With the digest of its export, the index is read as a whole and checked.
    """
    if digest is not None:
        index = _own_index(folder, run, digest)[0, low : high + 1]
    else:
        index = np.frombuffer(folder.ranges.read_at(_name(run, "index"), low * 8, (high - low + 1) * 8), "<i8")
    start, stop = int(index[0]), int(index[-1])
    if not 0 <= start <= stop:
        raise _corrupt(folder, run, "its index does not rise")
    before = min(start, 1)  # the record before the first document has its start
    size = _RECORD.itemsize
    data = folder.ranges.read_at(_name(run, "documents"), (start - before) * size, (stop - start + before) * size)
    records = np.frombuffer(data, _RECORD)
    first_token = int(records["end"][0]) if before else 0
    records = records[before:]
    ends = records["end"]
    if first_token < 0 or bool((np.diff(ends, prepend=first_token) < 0).any()):
        raise _corrupt(folder, run, "its documents do not follow each other")
    return SortedRunRange(
        run, start, first_token, records["end"] - first_token, records["source"].copy(), records["row"].copy()
    )


def _owner(digest: str, run: int) -> str:
    """The digest of a run's place: the export's work, and the number of the run."""
    return digest_of([digest, run])


def _corrupt(folder: Folder, run: int, reason: str) -> CorruptStore:
    return CorruptStore(
        f"run {run} of a shuffle is damaged",
        f"file         {folder.path(_name(run, 'index'))}",
        f"found        {reason}",
        f"Remove the directory {folder.path(RUNS)} and export again.",
    )


def _name(run: int, extension: str) -> str:
    return f"{RUNS}/{run:08d}.{extension}"


# The types of the values of a column in the file. The end of a text is a number, too.
_VALUE_TYPES = {"string": "<i8", "int64": "<i8", "float64": "<f8", "bool": "u1"}


def encode_columns(values: pa.Table, columns: Sequence[ExportedColumn]) -> bytes:
    """The content of the file."""
    sections = [section.tobytes() for column in columns for section in _sections(values[column.name], column)]
    starts = 8 * (len(sections) + 1) + np.cumsum([0, *map(len, sections)])
    return b"".join([starts.astype("<i8").tobytes(), *sections])


def _sections(values: pa.ChunkedArray, column: ExportedColumn) -> tuple[npt.NDArray[np.generic], ...]:
    array, text = values.combine_chunks(), np.empty(0, np.uint8)
    is_valid = array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    if column.type == "string":
        text, offsets = text_buffers(array.fill_null(""))
        plain = offsets[1:]
    else:
        plain = array.fill_null(False if column.type == "bool" else 0).to_numpy(zero_copy_only=False)
    return is_valid, plain.astype(_VALUE_TYPES[column.type]), text


def read_columns(folder: Folder, name: str, columns: Sequence[ExportedColumn], start: int, stop: int) -> pa.Table:
    """Read the columns of documents [start, stop) of a run."""
    header = np.frombuffer(folder.ranges.read_at(name, 0, 8 * (3 * len(columns) + 1)), "<i8").tolist()
    arrays = {
        column.name: _read_column(folder, name, column, header[3 * number : 3 * number + 3], start, stop)
        for number, column in enumerate(columns)
    }
    return pa.table(arrays)


def _read_column(  # noqa: PLR0913, PLR0917 - a column in a file, and which of its documents
    folder: Folder, name: str, column: ExportedColumn, sections: Sequence[int], start: int, stop: int
) -> pa.Array:
    is_valid, values, text = sections
    kind = np.dtype(_VALUE_TYPES[column.type])
    nulls = np.frombuffer(folder.ranges.read_at(name, is_valid + start, stop - start), np.uint8) == 0
    before = min(start, 1) if column.type == "string" else 0  # the end of the text before is the start of the first
    data = folder.ranges.read_at(
        name, values + (start - before) * kind.itemsize, (stop - start + before) * kind.itemsize
    )
    plain = np.frombuffer(data, kind)
    if column.type != "string":
        return pa.array(plain.astype(bool) if column.type == "bool" else plain, COLUMN_TYPES[column.type], mask=nulls)
    ends = plain if before else np.concatenate([np.zeros(1, np.int64), plain])
    content = folder.ranges.read_at(name, text + int(ends[0]), int(ends[-1] - ends[0]))
    validity = pa.array(~nulls).buffers()[1]
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(ends - ends[0], np.int64)), pa.py_buffer(content)]
    return pa.Array.from_buffers(COLUMN_TYPES[column.type], stop - start, buffers)
