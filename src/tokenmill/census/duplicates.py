"""Documents that are equal, token by token, found by a hash of 128 bits (XXH3) in bounded memory.

A worker writes a record for each document of its parts into a scratch file, sorted by hash. Ranges of hashes are then
the same for all files, so a range is read from each of them, sorted and counted by whoever has it, and no step holds
more than a range. A library call for each document is quicker here than arithmetic on whole columns: it takes less than
a microsecond, and the hash itself runs at the speed of memory.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.part import PartContent

RECORD = np.dtype([("high", "<u8"), ("low", "<u8"), ("row", "<u8"), ("source", "<u4"), ("tokens", "<u4")])
DOCUMENTS_AT_ONCE = 1 << 16
NAMED_GROUPS = 10
SORTING_FACTOR = 4
"""How many times its size a range takes while it is sorted."""

Records = npt.NDArray[np.void]


class Group(msgspec.Struct, frozen=True):
    """Documents that are equal: how many, how long each is, where the first of them is, and their hash."""

    copies: int
    tokens: int
    source: int
    row: int
    hash: str


class Found(msgspec.Struct, frozen=True):
    """What is equal in a range of hashes; `documents` and `tokens` are those beyond the first of each group."""

    groups: int = 0
    documents: int = 0
    tokens: int = 0
    largest: tuple[Group, ...] = ()


def join(one: Found, other: Found) -> Found:
    """Both together. The order in which they come does not matter."""
    largest = sorted((*one.largest, *other.largest), key=_rank)[:NAMED_GROUPS]
    return Found(one.groups + other.groups, one.documents + other.documents, one.tokens + other.tokens, tuple(largest))


def records(content: PartContent) -> Records:
    """One record for each document of a part."""
    found = np.empty(len(content.row), RECORD)
    for start in range(0, len(found), DOCUMENTS_AT_ONCE):
        stop = min(start + DOCUMENTS_AT_ONCE, len(found))
        hashes = np.frombuffer(_hashes(content, start, stop), "<u8").reshape(-1, 2)
        found["high"][start:stop], found["low"][start:stop] = hashes[:, 0], hashes[:, 1]
    found["row"], found["source"] = content.row, content.source
    found["tokens"] = np.minimum(np.diff(content.offsets), (1 << 32) - 1)
    return found


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
    together = np.concatenate(found) if found else np.empty(0, RECORD)
    places = range_of(together["high"], ranges)
    order = np.argsort(places, kind="stable")
    index = np.searchsorted(places[order], np.arange(ranges + 1)).astype("<i8")
    with open(path, "wb") as file:
        file.write(index.data)
        file.write(together[order].data)


@dataclass(frozen=True, slots=True)
class CountDuplicates:
    """The function that counts what is equal in one range of hashes, in the scratch files of a directory."""

    scratch: str
    files: int
    ranges: int

    def __call__(self, number: int) -> Found:
        """Read the range from every file, and sort it."""
        pieces = [self._read(file, number) for file in range(self.files)]
        return count(np.concatenate(pieces) if pieces else np.empty(0, RECORD))

    def _read(self, file: int, number: int) -> Records:
        with open(scratch_path(self.scratch, file), "rb") as opened:
            opened.seek(8 * number)
            start, stop = np.frombuffer(opened.read(16), "<i8").tolist()
            opened.seek(8 * (self.ranges + 1) + start * RECORD.itemsize)
            return np.fromfile(opened, RECORD, stop - start)


def count(found: Records) -> Found:
    """What is equal among all documents of a range."""
    if not len(found):
        return Found()
    order = np.lexsort((found["low"], found["high"]))
    high, low = found["high"][order], found["low"][order]
    is_first = np.append(True, (high[1:] != high[:-1]) | (low[1:] != low[:-1]))
    starts = np.flatnonzero(is_first)
    copies = np.diff(np.append(starts, len(found)))
    starts, copies = starts[copies > 1], copies[copies > 1]
    tokens = found["tokens"][order[starts]].astype(np.int64)
    wasted = tokens * (copies - 1)
    best = np.lexsort((-copies, -wasted))[:NAMED_GROUPS]  # as _rank has it: the sort is stable, and hashes rise
    largest = tuple(_group(found[order[starts[i] : starts[i] + copies[i]]], int(tokens[i])) for i in best)
    return Found(len(starts), int((copies - 1).sum()), int(wasted.sum()), largest)


def scratch_path(directory: str, file: int) -> str:
    """The name of a scratch file."""
    return os.path.join(directory, f"{file:08d}.hashes")


def _group(members: Records, tokens: int) -> Group:
    first = members[np.lexsort((members["row"], members["source"]))[0]]
    name = f"{int(first['high']):016x}{int(first['low']):016x}"
    return Group(len(members), tokens, int(first["source"]), int(first["row"]), name)


def _rank(group: Group) -> tuple[int, int, str]:
    """Those that waste most come first; among equals those with most copies, and then their hashes decide."""
    return -group.tokens * (group.copies - 1), -group.copies, group.hash
