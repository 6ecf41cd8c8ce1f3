"""Read the documents of an export in order: from the parts, or from the sorted runs of a shuffle.

Both readers first load the lengths and origins of the documents in some blocks, and then yield tokens in batches of
bounded size. Documents are copied in bulk, never one by one in Python.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore
from tokenmill.exports import sorted_runs
from tokenmill.exports.shards import Counts, SplitAndShuffle
from tokenmill.storage import Folder, prefetch_map
from tokenmill.store.part import PartContent, TokenArray
from tokenmill.token_files.files import join_marks
from tokenmill.token_files.protocol import ExportedColumn

# Opens a part by its number. The flag says whether its content is compared with its checksum.
OpenPart = Callable[[int, bool], PartContent]

# Reads the kept columns of a part, as the export has them.
ReadKept = Callable[[int], pa.Table]

Value = TypeVar("Value")

# Sorted runs that are read at the same time on remote storage: a shard needs a range of each.
PREFETCH_RUNS = 16


@dataclass(frozen=True, slots=True)
class DocumentTable:
    """Documents without their tokens: the length, source number and row of each."""

    lengths: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]

    def slice(self, start: int, stop: int) -> DocumentTable:
        """Return documents [start, stop)."""
        return DocumentTable(self.lengths[start:stop], self.source[start:stop], self.row[start:stop])

    def take(self, indices: npt.NDArray[np.int64]) -> DocumentTable:
        """Return the documents with these indices, in their order."""
        return DocumentTable(self.lengths[indices], self.source[indices], self.row[indices])

    @classmethod
    def of_part(cls, content: PartContent) -> DocumentTable:
        """Return the documents of a part."""
        return cls(np.diff(content.offsets), content.source, content.row)

    @classmethod
    def concatenate(cls, tables: Sequence[DocumentTable]) -> DocumentTable:
        """Return the documents of all tables, in order."""
        if not tables:
            return cls(np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint64))
        columns = zip(*((table.lengths, table.source, table.row) for table in tables), strict=True)
        return cls(*map(np.concatenate, columns))


def with_marks(content: PartContent) -> PartContent:
    """A part whose tokens are of uint32, with a mark for each that is not trained on."""
    is_trained = np.ones(1, np.bool_) if content.train is None else content.train.mask(content.offsets)
    return replace(content, tokens=join_marks(content.tokens, is_trained))


def take_documents(chunks: Sequence[tuple[TokenArray, Counts]], indices: Counts) -> TokenArray:
    """Return the tokens of documents in the order of `indices`, which count through the documents of all chunks.

    A chunk is the tokens of some documents and their offsets.
    """
    dtype = chunks[0][0].dtype
    if not len(indices):
        return np.empty(0, dtype)
    taken = pa.chunked_array([_as_binary(*chunk) for chunk in chunks]).take(pa.array(indices))
    tokens = [_as_tokens(chunk, dtype) for chunk in taken.chunks]
    return tokens[0] if len(tokens) == 1 else np.concatenate(tokens)


def _as_binary(tokens: TokenArray, offsets: Counts) -> pa.Array:
    """Return the documents as binary values over the same memory, because Arrow copies such values in bulk."""
    buffers = [None, pa.py_buffer(offsets * tokens.itemsize), pa.py_buffer(tokens)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _as_tokens(values: pa.Array, dtype: np.dtype[np.generic]) -> TokenArray:
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    data = values.buffers()[2]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].view(dtype)


@dataclass(slots=True)
class PartDocuments:
    """The documents of one stream in consecutive parts, in the order of the store.

    Parts are opened again for their tokens, one at a time, so that only one is mapped into memory. Their content is
    checked then, because it is read anyway; with `check_lengths` also before their lengths are used.
    """

    store: Folder
    order: SplitAndShuffle
    open_part: OpenPart
    stream: int
    parts: range
    read_kept: ReadKept
    check_lengths: bool = False
    origins: DocumentTable = field(init=False)
    _counts: list[int] = field(init=False, default_factory=list)
    _last_kept: tuple[int, pa.Table] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        tables = []
        opening = functools.partial(self._open, check_content=self.check_lengths)
        for content, kept in prefetch_map(self.store, opening, self.parts):
            origins = DocumentTable.of_part(content)
            tables.append(origins if kept is None else origins.take(kept))
            self._counts.append(len(tables[-1].lengths))
        self.origins = DocumentTable.concatenate(tables)

    def batches(self, start: int, stop: int, batch_bytes: int) -> Iterator[TokenArray]:
        """Yield the tokens of documents [start, stop): views of the part where the stream has all of its documents."""
        wanted = self._ranges(start, stop)
        opening = functools.partial(self._open, check_content=True)
        contents = prefetch_map(self.store, opening, [part for part, _, _ in wanted])
        for (_, first, last), (content, kept) in zip(wanted, contents, strict=True):
            if kept is not None:
                yield take_documents([(content.tokens, content.offsets)], kept[first:last])
            else:
                tokens = content.tokens[content.offsets[first] : content.offsets[last]]
                size = max(1, batch_bytes // tokens.itemsize)
                yield from (tokens[index : index + size] for index in range(0, len(tokens), size))

    def columns(self, start: int, stop: int) -> pa.Table:
        """Return the kept columns of documents [start, stop). Callers go through a part in several calls."""
        tables = [self._kept(part).slice(first, last - first) for part, first, last in self._ranges(start, stop)]
        return pa.concat_tables(tables).combine_chunks()

    def _kept(self, part: int) -> pa.Table:
        if self._last_kept is None or self._last_kept[0] != part:
            _, kept = self._open(part, check_content=False)
            values = self.read_kept(part)
            self._last_kept = part, values if kept is None else values.take(pa.array(kept))
        return self._last_kept[1]

    def _ranges(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The parts that hold documents [start, stop), and which of their documents in the stream these are."""
        ends = np.cumsum(self._counts)
        firsts, lasts = np.maximum(start - ends + self._counts, 0), np.minimum(stop - ends + self._counts, self._counts)
        wanted = np.flatnonzero(firsts < lasts).tolist()
        return [(self.parts[number], int(firsts[number]), int(lasts[number])) for number in wanted]

    def _open(self, part: int, *, check_content: bool) -> tuple[PartContent, Counts | None]:
        content = self.open_part(part, check_content)
        streams = self.order.streams(content.source, content.row)
        return content, None if streams is None else np.flatnonzero(streams == self.stream)


@dataclass(slots=True)
class SortedRunDocuments:
    """The documents in ranges of sorted runs, sorted by key. A range is a run and bins of its index.

    With the `digest` of the export, the runs must be of this export.
    """

    folder: Folder
    order: SplitAndShuffle
    dtype: str
    ranges: list[tuple[int, int, int]]
    with_columns: tuple[ExportedColumn, ...] = ()
    digest: str | None = None
    origins: DocumentTable = field(init=False)
    _ranges: list[sorted_runs.SortedRunRange] = field(init=False, default_factory=list)
    _run: Counts = field(init=False)
    _index: Counts = field(init=False)

    def __post_init__(self) -> None:
        """Read the origins from each range and sort them by key. Documents of one key stay in their order."""
        read = functools.partial(sorted_runs.read_range, self.folder, digest=self.digest)
        ranges = prefetch_map(self.folder, lambda range_: read(*range_), self.ranges, PREFETCH_RUNS)
        self._ranges = [range_ for range_ in ranges if len(range_.ends)]
        tables = [DocumentTable(np.diff(some.ends, prepend=0), some.source, some.row) for some in self._ranges]
        origins = DocumentTable.concatenate(tables)
        if len(origins.source) and int(origins.source.max()) >= len(self.order.identities):
            raise CorruptStore(
                "a run of a shuffle names a source that does not exist",
                f"export       {self.folder.root}",
                "Remove the export's directory and export again.",
            )
        permutation = np.argsort(self.order.keys(origins.source, origins.row), kind="stable")
        self.origins = origins.take(permutation)
        counts = [len(table.lengths) for table in tables]
        self._run = np.repeat(np.arange(len(counts)), counts)[permutation]
        self._index = np.concatenate([np.arange(count) for count in [*counts, 0]])[permutation]

    def batches(self, start: int, stop: int, batch_bytes: int) -> Iterator[TokenArray]:
        """Yield the tokens of documents [start, stop). Runs are sorted, so a range of keys is one range of each run."""
        if start == stop:
            return
        ends = np.cumsum(self.origins.lengths[start:stop]) * np.dtype(self.dtype).itemsize
        edges = np.searchsorted(ends, np.arange(batch_bytes, ends[-1], batch_bytes), side="right").tolist()
        for low, high in itertools.pairwise([0, *edges, stop - start]):
            if low < high:
                yield self.tokens(start + low, start + high)

    def columns(self, start: int, stop: int) -> pa.Table:
        """Return the kept columns of documents [start, stop)."""

        def read(run: sorted_runs.SortedRunRange, start: int, stop: int) -> pa.Table:
            return run.columns(self.folder, self.with_columns, start, stop)

        tables, indices = self._read(start, stop, read)
        return pa.concat_tables(tables).take(pa.array(indices)).combine_chunks()

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Return the tokens of documents [start, stop)."""

        def read(run: sorted_runs.SortedRunRange, start: int, stop: int) -> tuple[TokenArray, Counts]:
            return run.tokens(self.folder, self.dtype, start, stop)

        return take_documents(*self._read(start, stop, read))

    def _read(
        self, start: int, stop: int, read: Callable[[sorted_runs.SortedRunRange, int, int], Value]
    ) -> tuple[list[Value], Counts]:
        """Read a range of each run, and return what was read and the indices of documents [start, stop) in it."""
        run, index = self._run[start:stop], self._index[start:stop]
        counts = np.bincount(run, minlength=len(self._ranges))
        before = np.cumsum(counts) - counts
        present = np.flatnonzero(counts)
        first = np.zeros_like(counts)
        first[present] = index[np.argsort(run, kind="stable")[before[present]]]

        def read_run(number: int) -> Value:
            return read(self._ranges[number], int(first[number]), int(first[number] + counts[number]))

        chunks = list(prefetch_map(self.folder, read_run, present.tolist(), PREFETCH_RUNS))
        return chunks, index - first[run] + before[run]


# The documents of some blocks of a stream.
DocumentRange = PartDocuments | SortedRunDocuments
