"""Where a token of an exported file is from, and where a document of the store went: a few of its records tell.

The shards of a stream hold its documents in one order, by source and row or by the keys of the shuffle, so a document
is found by halving: the records of some shards are read, never all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import IncompleteStore, StoreError, UsageError
from tokenmill.exports import records
from tokenmill.exports.documents import DocumentTable
from tokenmill.exports.file_checks import damaged
from tokenmill.exports.job import EXPORT, MANIFEST, ExportJob, read_frozen
from tokenmill.exports.order import SplitAndShuffle
from tokenmill.exports.shards import TRAIN, VAL, Counts
from tokenmill.storage import Folder

MAX_NAMED_FILES = 10


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """A stretch of an exported file that is of one document: tokens [start, stop) of it, counted as in the export."""

    token: int
    source: int
    row: int
    start: int
    stop: int


class ShardLocation(msgspec.Struct, frozen=True):
    """Tokens [token, token + tokens) of an exported file, which are those of a document from its token `start` on."""

    file: str
    split: str
    token: int
    tokens: int
    start: int


class ExportIndex:
    """A complete export, to be searched."""

    def __init__(self, folder: Folder) -> None:
        frozen = read_frozen(folder)
        if frozen is None:
            raise StoreError(f"{folder.root} is not an export", f"There is no {EXPORT} in it.")
        if not folder.exists(MANIFEST):
            raise IncompleteStore(f"the export {folder.root} is not complete", "Run the same `tokenmill export` again.")
        self.folder = folder
        self.job: ExportJob = frozen.job
        self._manifest = records.read_manifest(folder, self.job.digest())
        columns = ("shard", "start", "documents", "tokens", "cut")
        numbers, self._starts, self._documents, self._tokens, self._cuts = (
            self._manifest[column].to_numpy() for column in columns
        )
        if not np.array_equal(numbers, np.arange(len(numbers))):
            raise damaged(folder, MANIFEST, "its shards are not counted from 0 on")

    def origins(self, name: str, start: int, stop: int) -> Iterator[TokenOrigin]:
        """What tokens [start, stop) of a file are, document by document."""
        shards = self._shards_of(name)
        self._check_size(shards)
        ends = np.cumsum(self._tokens[shards])
        if not 0 <= start < stop <= int(ends[-1]):
            raise no_tokens(self.folder.path(name), start, stop, int(ends[-1]))
        first, last = np.searchsorted(ends, [start, stop - 1], "right").tolist()
        for shard, end in zip(shards[first : last + 1].tolist(), ends[first : last + 1].tolist(), strict=True):
            yield from self._in_shard(shard, end - int(self._tokens[shard]), start, stop)

    def locations(self, order: SplitAndShuffle, source: int, row: int) -> list[ShardLocation]:
        """Where a document is; nowhere if what was left at the end has been dropped."""
        columns = np.array([source], np.uint32), np.array([row], np.uint64)
        streams = order.streams(*columns)
        stream = TRAIN if streams is None else int(streams[0])
        wanted = (int(order.keys(*columns)[0]),) if order.seed is not None else (source, row)
        shards = np.flatnonzero((self._documents > 0) & (self._streams() == stream))
        shards = shards[np.argsort(self._starts[shards], kind="stable")]
        low, high = 0, len(shards)
        while low < high:  # the first shard whose last document is not before this one
            middle = (low + high) // 2
            if _sort_key(order, self._read(int(shards[middle])), -1) < wanted:
                low = middle + 1
            else:
                high = middle
        found: list[ShardLocation] = []
        for shard in shards[low:].tolist():
            origins = self._read(shard)
            if _sort_key(order, origins, 0) > wanted:
                break
            found += self._locations_in(shard, origins, source, row)
        return found

    def _in_shard(self, shard: int, before: int, start: int, stop: int) -> Iterator[TokenOrigin]:
        """The documents of a shard that starts after so many tokens of its file, as far as they are asked for."""
        origins = self._read(shard)
        ends = before + np.cumsum(origins.lengths)
        first, last = np.searchsorted(ends, [max(start, before), min(stop, int(ends[-1])) - 1], "right").tolist()
        for place in (first + np.flatnonzero(origins.lengths[first : last + 1])).tolist():
            begin = int(ends[place] - origins.lengths[place])
            cut = int(self._cuts[shard]) if place == 0 else 0
            token = max(start, begin)
            stretch = cut + token - begin, cut + min(stop, int(ends[place])) - begin
            yield TokenOrigin(token, int(origins.source[place]), int(origins.row[place]), *stretch)

    def _read(self, shard: int) -> DocumentTable:
        """The documents of a shard, which are those that the manifest has the checksum of."""
        origins = records.read_origins(self.folder, shard)
        if records.documents_xxh3(origins) != self._manifest["documents_xxh3"][shard].as_py():
            raise records.corrupt(self.folder, shard, "it is not the record that the manifest describes")
        return origins

    def _locations_in(self, shard: int, origins: DocumentTable, source: int, row: int) -> list[ShardLocation]:
        files = self._manifest["files"][shard].as_py()
        same = self._shards_of(files[0]["name"])
        before = int(self._tokens[same[same < shard]].sum())
        starts = np.cumsum(origins.lengths) - origins.lengths
        places = np.flatnonzero((origins.source == source) & (origins.row == row)).tolist()
        split = self._manifest["split"][shard].as_py()
        return [
            ShardLocation(
                file=self.folder.path(files[0]["name"]),
                split=split,
                token=before + int(starts[place]),
                tokens=int(origins.lengths[place]),
                start=int(self._cuts[shard]) if place == 0 else 0,
            )
            for place in places
        ]

    def _streams(self) -> Counts:
        """The stream that each shard is cut from: what is held out by its hash is one of its own."""
        if self.job.val_fraction is None:
            return np.full(len(self._manifest), TRAIN)
        held_out = pc.equal(self._manifest["split"], "val").to_numpy(zero_copy_only=False)
        return np.where(held_out, VAL, TRAIN)

    def find_copy(self, name: str, size: int) -> str | None:
        """The file of this name and size, in whichever directory of the export."""
        files = self._manifest["files"].combine_chunks().flatten()
        paths, sizes = (pc.struct_field(files, field) for field in ("name", "bytes"))
        for path in pc.unique(paths.filter(pc.match_substring_regex(paths, f"(^|/){re.escape(name)}$"))).to_pylist():
            if pc.sum(sizes.filter(pc.equal(paths, path))).as_py() == size:
                return str(path)
        return None

    def _check_size(self, shards: Counts) -> None:
        """Refuse a file that has another size than the manifest says. One that was moved away can be asked about."""
        files = [files[0] for files in self._manifest["files"].take(pa.array(shards)).to_pylist()]
        name, size = files[0]["name"], sum(file["bytes"] for file in files)
        if self.folder.exists(name) and self.folder.size(name) != size:
            raise damaged(self.folder, name, f"it has {self.folder.size(name):,} bytes, not {size:,}")

    def _shards_of(self, name: str) -> Counts:
        """The shards that a file holds: one, or all of a split if that is one file."""
        files = self._manifest["files"].combine_chunks()
        alike = pa.array([name, f"{name}.bin", f"{name.removesuffix('.idx')}.bin"])  # as Megatron calls a pair
        names = pc.struct_field(files.flatten(), "name")
        named = np.flatnonzero(pc.is_in(names, alike).to_numpy(zero_copy_only=False))
        if len(named):
            return np.unique(np.searchsorted(files.offsets.to_numpy(), named, "right") - 1)
        first = pc.struct_field(pc.list_element(files.filter(pc.greater(pc.list_value_length(files), 0)), 0), "name")
        raise self._unknown_file(name, pc.unique(first))

    def _unknown_file(self, name: str, files: pa.Array) -> UsageError:
        some = files.slice(0, MAX_NAMED_FILES).to_pylist()
        more = [f"and {len(files) - len(some):,} more"] if len(files) > len(some) else []
        return UsageError(
            f"{name} is no file with tokens of this export" if name else "say which file of the export the token is in",
            f"export       {self.folder.root} ({self.job.format})",
            *(f"{'files' if place == 0 else '':<12} {file}" for place, file in enumerate(some)),
            *more,
        )


def no_tokens(where: str, start: int, stop: int, held: int) -> UsageError:
    """The error for tokens [start, stop) of a place that does not hold so many."""
    wanted = f"{start:,}" if stop == start + 1 else f"{start:,} to {stop:,}"
    return UsageError(f"there is no token {wanted} in {where}", f"holds        {held:,} tokens, from 0")


def in_store(job: ExportJob, origin: TokenOrigin, tokens: int) -> TokenOrigin:
    """The same, counted as in the store, where the document has so many tokens.

    An end token that stands before the document in the export is its last token in the store. It is left out of a
    stretch that goes on after it.
    """
    if job.end != "prepended" or job.end_token is None:
        return origin
    if origin.start == 0 and origin.stop == 1:
        return replace(origin, start=tokens - 1, stop=tokens)
    skip = origin.start == 0
    return replace(origin, token=origin.token + skip, start=origin.start - 1 + skip, stop=origin.stop - 1)


def _sort_key(order: SplitAndShuffle, origins: DocumentTable, place: int) -> tuple[int, ...]:
    """What the documents of a shuffled or of an unshuffled export are sorted by."""
    at = slice(place, place + 1 or None)
    if order.seed is not None:
        return (int(order.keys(origins.source[at], origins.row[at])[0]),)
    return int(origins.source[place]), int(origins.row[place])
