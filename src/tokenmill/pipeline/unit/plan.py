"""The plan: how the sources are split into units. A table that is frozen before the first unit is started.

The position of a worker in its unit is marked while it works, and reported when it dies.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import SourceError, TokenmillError
from tokenmill.sources import files_between, require_columns, split_file, splits_of
from tokenmill.sources.documents import ReadOptions, Slice, Slices, SourceFile
from tokenmill.sources.missing_column import OTHER_COLUMN
from tokenmill.storage import Threads
from tokenmill.storage.digest import hash_of
from tokenmill.store.tables import PLAN_SCHEMA
from tokenmill.system import status_page

# The text of a unit: by default, and the bounds of what is chosen for small and huge corpora.
SMALLEST_UNIT_BYTES = 1 << 20
DEFAULT_UNIT_BYTES = 4 << 20
LARGEST_UNIT_BYTES = 64 << 20

# Advice for a source that lacks a column of --keep, --deny, --where or --prefix.
REQUIRED_ADVICE = (
    "Give other columns to --keep, --deny, --where and --prefix. The value none switches them off, also after --like."
)

# How many whole files a unit has at most.
MAX_SOURCES_IN_UNIT = 4096


class UnitTask(msgspec.Struct, frozen=True):
    """One unit as it is sent to a worker: a slice (`file_slice`) of one file, or several whole files.

    `slice` is the digest of what the unit is made from (see `SliceDigests`).
    """

    unit: int
    files: tuple[SourceFile, ...]
    text_bytes: int
    file_slice: Slice | None = None
    rows: int | None = None
    slice: str = ""

    def file(self, source: int) -> SourceFile:
        """The file with this index in the list of sources."""
        return self.files[source - self.files[0].index]


def default_unit_bytes(total_bytes: int) -> int:
    """The size of a unit: a small corpus has units for all workers, and a huge one not many more than a million."""
    if total_bytes < 64 * DEFAULT_UNIT_BYTES:
        return max(SMALLEST_UNIT_BYTES, total_bytes // 64)
    return min(LARGEST_UNIT_BYTES, max(DEFAULT_UNIT_BYTES, total_bytes // 100_000))


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The function that splits some files into slices, or returns the error of the first bad file.

    Runs in a worker: native code reads the footers, and a damaged file may kill it.
    """

    options: ReadOptions
    unit_bytes: int

    def __call__(self, files: tuple[SourceFile, ...]) -> list[Slices] | TokenmillError:
        """The slices of each file, in the order of the files."""
        Position("cut").mark()
        with Threads(min(len(files), 8)) as pool:  # reading footers is mostly waiting
            try:
                return list(pool.map(self._split, files))
            except TokenmillError as error:
                return error

    def _split(self, file: SourceFile) -> Slices:
        slices = split_file(file, self.options, self.unit_bytes)
        check_required(file, self.options.required)
        return slices


def check_required(file: SourceFile, names: tuple[str, ...]) -> None:
    """Raise SourceError if a file declares its columns, and one that is required is missing or not plain."""
    if not names:
        return
    try:
        require_columns(file, names)
    except SourceError as error:
        details = [line for line in error.details if line != OTHER_COLUMN]
        raise SourceError(error.headline, *details, REQUIRED_ADVICE) from error


def build_plan(slices: list[Slices], unit_bytes: int) -> pa.Table:
    """The plan: a row for each slice, whole small sources next to each other joined to about `unit_bytes` of text."""
    counts = np.array([len(split.start) for split in slices], np.int64)
    if not counts.any():
        return PLAN_SCHEMA.empty_table()
    source = np.repeat(np.arange(len(slices), dtype=np.uint32), counts)
    start = np.concatenate([split.start for split in slices])
    stop = np.concatenate([split.stop for split in slices])
    text_bytes = np.concatenate([split.text_bytes for split in slices])
    is_counted = np.repeat(np.array([split.rows is not None for split in slices], np.bool_), counts)
    rows = np.concatenate([_rows(split) for split in slices])

    first = _unit_starts(np.repeat(counts == 1, counts) & (text_bytes < unit_bytes // 2), text_bytes, unit_bytes)
    last = np.append(first[1:], len(source)) - 1
    whole = last > first
    spanned = source[last] - source[first] + 1  # sources without a slice, which lie between them, included
    some_unknown = np.add.reduceat(~is_counted, first) > 0
    return pa.table(
        [
            pa.array(source[first]),
            pa.array(spanned.astype(np.uint32)),
            pa.array(start[first], mask=whole),
            pa.array(stop[first], mask=whole),
            pa.array(np.add.reduceat(text_bytes, first)),
            pa.array(np.add.reduceat(rows, first), mask=some_unknown),
        ],
        schema=PLAN_SCHEMA,
    )


def _unit_starts(small: np.ndarray, text_bytes: np.ndarray, unit_bytes: int) -> np.ndarray:
    """The positions at which a unit begins, where streaks of small sources share units."""
    streak = np.cumsum(~small)
    before = np.cumsum(text_bytes) - text_bytes
    position = np.arange(len(small))
    streak_first = np.searchsorted(streak, streak)  # sizes are measured from the first source of a streak
    filled = (before - before[streak_first]) // unit_bytes
    count = (position - streak_first) // MAX_SOURCES_IN_UNIT
    changed = (np.diff(streak) != 0) | (np.diff(filled) != 0) | (np.diff(count) != 0) | ~small[1:] | ~small[:-1]
    return np.flatnonzero(np.concatenate([[True], changed]))


def _rows(split: Slices) -> np.ndarray:
    return split.rows if split.rows is not None else np.zeros(len(split.start), np.int64)


class SliceDigests:
    """The digest of each unit's slice: its sources by position, kind, size, identity and split, and which part of them.

    Paths and modification times do not enter it, so a part keeps its slice when its source is moved or copied.
    """

    def __init__(self, plan: pa.Table, sources: pa.Table) -> None:
        self._first, self._count = (plan[name].to_numpy() for name in ("source", "sources"))
        # A unit of whole sources has no slice. -1 marks that, because no slice starts there.
        self._start, self._stop = (plan[name].fill_null(-1).to_numpy() for name in ("start", "stop"))
        self._sources = np.empty(len(sources), [("kind", "S16"), ("size", "<i8"), ("identity", "<u8")])
        self._sources["kind"] = np.array(sources["kind"].cast(pa.string()).to_pylist(), "S16")
        self._sources["size"] = sources["size"].to_numpy()
        self._sources["identity"] = sources["identity"].to_numpy()
        # The documents of a file also depend on the files in which its last document goes on.
        self._heads = sources["head"].to_numpy() if "head" in sources.column_names else None
        self._splits = [split or "" for split in splits_of(sources)]

    def __getitem__(self, unit: int) -> str:
        first, count = int(self._first[unit]), int(self._count[unit])
        span = struct.pack("<QQqq", first, count, int(self._start[unit]), int(self._stop[unit]))
        splits = self._splits[first : first + count]
        names = "\0".join(splits).encode() if any(splits) else b""
        return hash_of(span + self._sources[first : first + count].tobytes() + names + self._joined(first, count))[:32]

    def _joined(self, first: int, count: int) -> bytes:
        """The heads of some sources, and the sources that go on with the last document."""
        if self._heads is None:
            return b""
        stop = first + count
        while stop < len(self._heads) and self._heads[stop]:
            stop += 1
        return bytes(self._heads[first:stop].tobytes() + self._sources[first + count : stop].tobytes())


def spread(length: int, most: int) -> npt.NDArray[np.int64]:
    """At most `most` indices, evenly spread over `length` of them."""
    return np.unique(np.linspace(0, length - 1, min(most, length)).astype(np.int64))


def tasks(plan: pa.Table, sources: pa.Table, units: Iterable[int]) -> Iterator[UnitTask]:
    """The tasks of some units, made one by one.

    Without identities of the sources, for work that keeps no parts, the tasks have no slice digests.
    """
    first, count, text_bytes = (plan[name].to_numpy() for name in ("source", "sources", "text_bytes"))
    start, stop, rows = (plan[name].fill_null(0).to_numpy() for name in ("start", "stop", "rows"))
    is_slice, is_counted = (plan[name].is_valid().to_numpy() for name in ("stop", "rows"))
    slices = SliceDigests(plan, sources) if "identity" in sources.column_names else None
    files: tuple[SourceFile, ...] = ()
    for unit in units:
        source, length = int(first[unit]), int(count[unit])
        if not files or files[0].index != source or len(files) != length:  # units of one file follow each other
            files = tuple(files_between(sources, source, source + length))
        yield UnitTask(
            unit=int(unit),
            files=files,
            text_bytes=int(text_bytes[unit]),
            file_slice=Slice(int(start[unit]), int(stop[unit])) if is_slice[unit] else None,
            rows=int(rows[unit]) if is_counted[unit] else None,
            slice="" if slices is None else slices[unit],
        )


# The stages of a unit, as messages describe them.
STAGES = {
    "begin": "looking whether it is done",
    "cut": "reading the footer",
    "load": "loading the tokenizer",
    "read": "reading",
    "encode": "encoding",
    "write": "writing the part",
}

# How long a stage may take before the worker counts as stuck: reads and writes may wait for a slow network.
DEFAULT_SECONDS = 600.0


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A stage of the work on a unit, and the rows [first, last] of a source that are being processed, if any."""

    stage: str
    source: int | None = None
    first: int | None = None
    last: int | None = None

    def mark(self, seconds: float = DEFAULT_SECONDS) -> None:
        """Mark this as the position of the worker, which counts as stuck after `seconds`."""
        status_page.set_status(msgspec.json.encode(self), seconds)


def position_in(note: bytes) -> Position | None:
    """The position that a worker marked, if it marked one."""
    try:
        return msgspec.json.decode(note, type=Position)
    except msgspec.MsgspecError:
        return None
