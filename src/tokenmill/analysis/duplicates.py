"""Finds documents with equal tokens by a 128-bit hash (XXH3), in bounded memory.

A worker writes one record per distinct hash of its parts, with the number of copies, to a scratch file sorted by hash.
All files use the same hash ranges. A second pass reads one range from every file, sorts it and counts the copies, so no
step holds more than one range. All copies of a document fall into one range, with one record per file.

Hashing each document with a library call is faster here than arithmetic on whole columns: a call takes less than a
microsecond, and the hash runs at memory speed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.store.part import PartContent

# A hash, the first document that has it, the length of that document, and the number of documents.
RECORD = np.dtype(
    [("high", "<u8"), ("low", "<u8"), ("row", "<u8"), ("source", "<u4"), ("tokens", "<u4"), ("copies", "<u4")]
)
DOCUMENTS_PER_BATCH = 1 << 16
MAX_GROUPS_LISTED = 10
# Sorting a range takes this many times the size of the range.
SORTING_FACTOR = 4

Records = npt.NDArray[np.void]


class EqualDocuments(msgspec.Struct, frozen=True):
    """A group of equal documents: their number, the length of each, the first of them, and their hash."""

    copies: int
    tokens: int
    source: int
    row: int
    hash: str


class DuplicateCounts(msgspec.Struct, frozen=True):
    """The duplicates in a range of hashes. `documents` and `tokens` exclude the first document of each group."""

    groups: int = 0
    documents: int = 0
    tokens: int = 0
    largest: tuple[EqualDocuments, ...] = ()


def merge(one: DuplicateCounts, other: DuplicateCounts) -> DuplicateCounts:
    """Add two counts. The order of the arguments does not matter."""
    largest = sorted((*one.largest, *other.largest), key=_rank)[:MAX_GROUPS_LISTED]
    return DuplicateCounts(
        one.groups + other.groups, one.documents + other.documents, one.tokens + other.tokens, tuple(largest)
    )


def records(content: PartContent) -> Records:
    """One record for each hash of a part."""
    count = len(content.row)
    edges = range(0, count, DOCUMENTS_PER_BATCH)
    return collapse([_batch_records(content, start, min(start + DOCUMENTS_PER_BATCH, count)) for start in edges])


def _batch_records(content: PartContent, start: int, stop: int) -> Records:
    hashes = np.frombuffer(_hashes(content, start, stop), "<u8").reshape(-1, 2)
    batch = np.empty(stop - start, RECORD)
    batch["high"], batch["low"] = hashes[:, 0], hashes[:, 1]
    batch["row"], batch["source"] = content.row[start:stop], content.source[start:stop]
    batch["tokens"] = np.minimum(np.diff(content.offsets[start : stop + 1]), (1 << 32) - 1)
    batch["copies"] = 1
    return collapse([batch])


def collapse(batches: list[Records]) -> Records:
    """One record for each hash, sorted by hash. Its first document is the first one in the order of the batches."""
    together = np.concatenate(batches) if batches else np.empty(0, RECORD)
    if not len(together):
        return together
    order, starts = _sort(together)
    kept = together[order[starts]]
    kept["copies"] = np.add.reduceat(together["copies"][order], starts)
    return kept


def _sort(batch: Records) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The stable order by hash, and the positions in that order at which each distinct hash begins."""
    order = np.lexsort((batch["low"], batch["high"]))
    high, low = batch["high"][order], batch["low"][order]
    return order, np.flatnonzero(np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1])))


def _hashes(content: PartContent, start: int, stop: int) -> bytes:
    data = np.ascontiguousarray(content.tokens).data.cast("B")
    ends = (content.offsets[start : stop + 1] * content.tokens.itemsize).tolist()
    digest = xxhash.xxh3_128_digest
    return b"".join([digest(data[ends[i] : ends[i + 1]]) for i in range(stop - start)])


def spill(path: str, batches: list[Records], ranges: int) -> None:
    """Write records to a scratch file: the start of each range, then the records, range by range."""
    together = collapse(batches)
    # The upper 32 bits of a hash choose its range.
    range_numbers = (together["high"] >> np.uint64(32)) * np.uint64(ranges) >> np.uint64(32)
    index = np.searchsorted(range_numbers.astype(np.int64), np.arange(ranges + 1)).astype("<i8")
    with open(path, "wb") as file:
        file.write(index.data)
        file.write(together.data)


@dataclass(frozen=True, slots=True)
class CountDuplicates:
    """Counts the duplicates in one range of hashes, over all scratch files of a directory. Runs in a worker."""

    scratch: str
    files: int
    ranges: int

    def __call__(self, number: int) -> DuplicateCounts:
        """Read the range from every file, sort it, and count."""
        batches = [self._read(file, number) for file in range(self.files)]
        return count(np.concatenate(batches) if batches else np.empty(0, RECORD))

    def _read(self, file: int, number: int) -> Records:
        with open(scratch_path(self.scratch, file), "rb") as opened:
            opened.seek(8 * number)
            start, stop = np.frombuffer(opened.read(16), "<i8").tolist()
            opened.seek(8 * (self.ranges + 1) + start * RECORD.itemsize)
            return np.fromfile(opened, RECORD, stop - start)


def count(batch: Records) -> DuplicateCounts:
    """Count the duplicates among all records of a range."""
    if not len(batch):
        return DuplicateCounts()
    order, starts = _sort(batch)
    copies = np.add.reduceat(batch["copies"][order].astype(np.int64), starts)
    stops = np.append(starts[1:], len(batch))
    starts, stops, copies = starts[copies > 1], stops[copies > 1], copies[copies > 1]
    tokens = batch["tokens"][order[starts]].astype(np.int64)
    wasted = tokens * (copies - 1)
    best = np.lexsort((-copies, -wasted))[:MAX_GROUPS_LISTED]  # the order of _rank: a stable sort, and hashes ascend
    largest = tuple(_group(batch[order[starts[i] : stops[i]]], int(copies[i]), int(tokens[i])) for i in best)
    return DuplicateCounts(len(starts), int((copies - 1).sum()), int(wasted.sum()), largest)


def scratch_path(directory: str, file: int) -> str:
    """The path of a scratch file."""
    return os.path.join(directory, f"{file:08d}.hashes")


def _group(members: Records, copies: int, tokens: int) -> EqualDocuments:
    first = members[np.lexsort((members["row"], members["source"]))[0]]
    name = f"{int(first['high']):016x}{int(first['low']):016x}"
    return EqualDocuments(copies, tokens, int(first["source"]), int(first["row"]), name)


def _rank(group: EqualDocuments) -> tuple[int, int, str]:
    """Sort key: most wasted tokens first, then most copies, then the hash."""
    return -group.tokens * (group.copies - 1), -group.copies, group.hash
