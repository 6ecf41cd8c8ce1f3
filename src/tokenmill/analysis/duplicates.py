"""Documents that are equal, token by token, found by a hash of 128 bits (XXH3) in bounded memory.

A worker writes a record for each hash in its parts, with the number of copies, into a scratch file, sorted by hash.
Ranges of hashes are then the same for all files, so a range is read from each of them, sorted and counted by whoever
has it, and no step holds more than a range. All copies of a document fall into one, where they take one record of each
file, however many they are. A library call for each document is quicker here than arithmetic on whole columns: it takes
less than a microsecond, and the hash itself runs at the speed of memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.store.part import PartContent

RECORD = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("row", "<u8"), ("source", "<u4"), ("tokens", "<u4"), ("copies", "<u4")]
)
"""A hash, the first document that has it, the length of each, and how many there are."""

DOCUMENTS_PER_BATCH = 1 << 16
NAMED_GROUPS = 10
SORTING_FACTOR = 4
"""How many times its size a range takes while it is sorted."""

Records = npt.NDArray[np.void]


class EqualDocuments(msgspec.Struct, frozen=True):
    """Documents that are equal: how many, how long each is, where the first of them is, and their hash."""

    copies: int
    tokens: int
    source: int
    row: int
    hash: str


class DuplicateCounts(msgspec.Struct, frozen=True):
    """What is equal in a range of hashes; `documents` and `tokens` are those beyond the first of each group."""

    groups: int = 0
    documents: int = 0
    tokens: int = 0
    largest: tuple[EqualDocuments, ...] = ()


def join(one: DuplicateCounts, other: DuplicateCounts) -> DuplicateCounts:
    """Both together. The order in which they come does not matter."""
    largest = sorted((*one.largest, *other.largest), key=_rank)[:NAMED_GROUPS]
    return DuplicateCounts(
        one.groups + other.groups, one.documents + other.documents, one.tokens + other.tokens, tuple(largest)
    )


def records(content: PartContent) -> Records:
    """One record for each hash of a part."""
    count = len(content.row)
    edges = range(0, count, DOCUMENTS_PER_BATCH)
    return collapsed([_records(content, start, min(start + DOCUMENTS_PER_BATCH, count)) for start in edges])


def _records(content: PartContent, start: int, stop: int) -> Records:
    hashes = np.frombuffer(_hashes(content, start, stop), "<u8").reshape(-1, 2)
    found = np.empty(stop - start, RECORD)
    found["high"], found["low"] = hashes[:, 0], hashes[:, 1]
    found["row"], found["source"] = content.row[start:stop], content.source[start:stop]
    found["tokens"] = np.minimum(np.diff(content.offsets[start : stop + 1]), (1 << 32) - 1)
    found["copies"] = 1
    return collapsed([found])


def collapsed(found: list[Records]) -> Records:
    """One record for each hash, sorted by hash; those that come first tell where the first document is."""
    together = np.concatenate(found) if found else np.empty(0, RECORD)
    if not len(together):
        return together
    order, starts = _sorted(together)
    kept = together[order[starts]]
    kept["copies"] = np.add.reduceat(together["copies"][order], starts)
    return kept


def _sorted(found: Records) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The order of hashes, in which equal ones stay as they are, and where in it each hash begins."""
    order = np.lexsort((found["low"], found["high"]))
    high, low = found["high"][order], found["low"][order]
    return order, np.flatnonzero(np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])))


def _hashes(content: PartContent, start: int, stop: int) -> bytes:
    data = np.ascontiguousarray(content.tokens).data.cast("B")
    ends = (content.offsets[start : stop + 1] * content.tokens.itemsize).tolist()
    digest = xxhash.xxh3_128_digest
    return b"".join([digest(data[ends[place] : ends[place + 1]]) for place in range(stop - start)])


def range_of(high: npt.NDArray[np.uint64], ranges: int) -> npt.NDArray[np.int64]:
    """The range of hashes that each hash is in, by its upper 32 bits."""
    return ((high >> np.uint64(32)) * np.uint64(ranges) >> np.uint64(32)).astype(np.int64)


def spill(path: str, found: list[Records], ranges: int) -> None:
    """Write records into a scratch file, range by range, with where each range begins before them."""
    together = collapsed(found)
    index = np.searchsorted(range_of(together["high"], ranges), np.arange(ranges + 1)).astype("<i8")
    with open(path, "wb") as file:
        file.write(index.data)
        file.write(together.data)


@dataclass(frozen=True, slots=True)
class CountDuplicates:
    """The function that counts what is equal in one range of hashes, in the scratch files of a directory."""

    scratch: str
    files: int
    ranges: int

    def __call__(self, number: int) -> DuplicateCounts:
        """Read the range from every file, and sort it."""
        pieces = [self._read(file, number) for file in range(self.files)]
        return count(np.concatenate(pieces) if pieces else np.empty(0, RECORD))

    def _read(self, file: int, number: int) -> Records:
        with open(scratch_path(self.scratch, file), "rb") as opened:
            opened.seek(8 * number)
            start, stop = np.frombuffer(opened.read(16), "<i8").tolist()
            opened.seek(8 * (self.ranges + 1) + start * RECORD.itemsize)
            return np.fromfile(opened, RECORD, stop - start)


def count(found: Records) -> DuplicateCounts:
    """What is equal among all documents of a range."""
    if not len(found):
        return DuplicateCounts()
    order, starts = _sorted(found)
    copies = np.add.reduceat(found["copies"][order].astype(np.int64), starts)
    stops = np.append(starts[1:], len(found))
    starts, stops, copies = starts[copies > 1], stops[copies > 1], copies[copies > 1]
    tokens = found["tokens"][order[starts]].astype(np.int64)
    wasted = tokens * (copies - 1)
    best = np.lexsort((-copies, -wasted))[:NAMED_GROUPS]  # as _rank has it: the sort is stable, and hashes rise
    largest = tuple(_group(found[order[starts[i] : stops[i]]], int(copies[i]), int(tokens[i])) for i in best)
    return DuplicateCounts(len(starts), int((copies - 1).sum()), int(wasted.sum()), largest)


def scratch_path(directory: str, file: int) -> str:
    """The name of a scratch file."""
    return os.path.join(directory, f"{file:08d}.hashes")


def _group(members: Records, copies: int, tokens: int) -> EqualDocuments:
    first = members[np.lexsort((members["row"], members["source"]))[0]]
    name = f"{int(first['high']):016x}{int(first['low']):016x}"
    return EqualDocuments(copies, tokens, int(first["source"]), int(first["row"]), name)


def _rank(group: EqualDocuments) -> tuple[int, int, str]:
    """Those that waste most come first; among equals those with most copies, and then their hashes decide."""
    return -group.tokens * (group.copies - 1), -group.copies, group.hash
