"""Find the origin of a token of an exported file, and the location of a store's document in an export.

The shards of a stream hold its documents in order, by source and row or by the key of the shuffle. A binary search
finds a document, so only a few records are read.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import IncompleteStore, StoreError, UsageError
from tokenmill.exports import records
from tokenmill.exports.documents import DocumentTable
from tokenmill.exports.file_checks import damaged
from tokenmill.exports.job import EXPORT, ExportJob, is_complete, manifest_file, read_frozen
from tokenmill.exports.shards import TRAIN, VAL, Counts, SplitAndShuffle
from tokenmill.humanize import Readable
from tokenmill.storage import Folder
from tokenmill.token_files import find_format

# Files that an error message lists.
MAX_NAMED_FILES = 10


@dataclass(frozen=True, slots=True)
class TokenOrigin:
    """Tokens of an exported file from one document: tokens [start, stop) of the document as it is in the export.

    `token` is the position of the first one in the file. In a file of text, it is the row of the document.
    """

    token: int
    source: int
    row: int
    start: int
    stop: int


class ShardLocation(Readable, msgspec.Struct, frozen=True):
    """Tokens [token, token + tokens) of an exported file. They are the tokens of a document from its `start` on.

    `file_row` is its row in a file of text, which holds the text of these tokens.
    """

    file: str
    split: str
    token: int
    tokens: int
    start: int
    file_row: int | None = None


class ExportIndex:
    """Searches a complete export."""

    def __init__(self, folder: Folder) -> None:
        frozen = read_frozen(folder)
        if frozen is None:
            raise StoreError(f"{folder.root} is not an export", f"There is no {EXPORT} in it.")
        if not is_complete(folder):
            raise IncompleteStore(f"the export {folder.root} is not complete", "Run the same `tokenmill export` again.")
        self.folder = folder
        self.frozen = frozen
        self.job: ExportJob = frozen.job
        manifest = records.read_manifest(folder, self.job.digest())
        self._manifest = manifest.rows
        columns = ("shard", "start", "documents", "tokens", "cut")
        numbers, self._starts, self._documents, self._tokens, self._cuts = (
            self._manifest[column].to_numpy() for column in columns
        )
        self.is_text = find_format(self.job.format).SPEC.is_text
        if not np.array_equal(numbers, np.arange(len(numbers))):
            raise damaged(folder, manifest_file(manifest.number), "its shards are not numbered from 0")

    def origins(self, name: str, start: int, stop: int) -> Iterator[TokenOrigin]:
        """Yield the origins of tokens [start, stop) of a file, document by document, or of these rows of text."""
        shards = self._shards_of(name)
        self._check_size(shards)
        ends = np.cumsum((self._documents if self.is_text else self._tokens)[shards])
        if not 0 <= start < stop <= int(ends[-1]):
            raise no_tokens(self.folder.path(name), start, stop, int(ends[-1]), "row" if self.is_text else "token")
        if self.is_text:
            yield from self._rows(int(shards[0]), start, stop)
            return
        first, last = np.searchsorted(ends, [start, stop - 1], "right").tolist()
        for shard, end in zip(shards[first : last + 1].tolist(), ends[first : last + 1].tolist(), strict=True):
            yield from self._in_shard(shard, end - int(self._tokens[shard]), start, stop)

    def locations(self, order: SplitAndShuffle, source: int, row: int) -> list[ShardLocation]:
        """Return the locations of a document. The list is empty if `--tail drop` dropped it."""
        columns = np.array([source], np.uint32), np.array([row], np.uint64)
        streams = order.streams(*columns)
        stream = TRAIN if streams is None else int(streams[0])
        wanted: tuple[int, ...] = (int(order.keys(*columns)[0]),) if order.seed is not None else (source, row)
        numbers = np.flatnonzero((self._documents > 0) & (self._streams() == stream))
        shards = numbers[np.argsort(self._starts[numbers], kind="stable")].tolist()
        # The first shard whose last document is not before this one.
        first = bisect.bisect_left(shards, wanted, key=lambda shard: _sort_key(order, self._read(shard), np.max))
        located: list[ShardLocation] = []
        for shard in shards[first:]:
            origins = self._read(shard)
            if _sort_key(order, origins, np.min) > wanted:
                break
            located += self._locations_in(shard, origins, source, row)
        return located

    def _in_shard(self, shard: int, before: int, start: int, stop: int) -> Iterator[TokenOrigin]:
        """Yield the origins of tokens [start, stop) of a file in one shard, which has `before` tokens before it."""
        origins = self._read(shard)
        ends = before + np.cumsum(origins.lengths)
        first, last = np.searchsorted(ends, [max(start, before), min(stop, int(ends[-1])) - 1], "right").tolist()
        for index in (first + np.flatnonzero(origins.lengths[first : last + 1])).tolist():
            begin = int(ends[index] - origins.lengths[index])
            cut = int(self._cuts[shard]) if index == 0 else 0
            token = max(start, begin)
            token_range = cut + token - begin, cut + min(stop, int(ends[index])) - begin
            yield TokenOrigin(token, int(origins.source[index]), int(origins.row[index]), *token_range)

    def _rows(self, shard: int, start: int, stop: int) -> Iterator[TokenOrigin]:
        """Yield the origins of rows [start, stop) of the file of a shard."""
        origins = self._read(shard).slice(start, stop)
        rows = zip(origins.source.tolist(), origins.row.tolist(), origins.lengths.tolist(), strict=True)
        for number, (source, row, length) in enumerate(rows, start):
            yield TokenOrigin(number, source, row, 0, length)

    def _read(self, shard: int) -> DocumentTable:
        """Read the documents of a shard. Raises if their checksum is not the one in the manifest."""
        origins = records.read_origins(self.folder, shard)
        if records.documents_xxh3(origins) != self._manifest["documents_xxh3"][shard].as_py():
            raise records.corrupt(self.folder, shard, "it is not the record that the manifest describes")
        return origins

    def _locations_in(self, shard: int, origins: DocumentTable, source: int, row: int) -> list[ShardLocation]:
        files = self._manifest["files"][shard].as_py()
        same = self._shards_of(files[0]["name"])
        before = int(self._tokens[same[same < shard]].sum())
        starts = np.cumsum(origins.lengths) - origins.lengths
        indices = np.flatnonzero((origins.source == source) & (origins.row == row)).tolist()
        split = self._manifest["split"][shard].as_py()
        return [
            ShardLocation(
                file=self.folder.path(files[0]["name"]),
                split=split,
                token=before + int(starts[index]),
                tokens=int(origins.lengths[index]),
                start=int(self._cuts[shard]) if index == 0 else 0,
                file_row=index if self.is_text else None,
            )
            for index in indices
        ]

    def _streams(self) -> Counts:
        """Return the stream of each shard. Documents that are held out are a stream of their own."""
        if not self.job.holds_out:
            return np.full(len(self._manifest), TRAIN)
        held_out = pc.equal(self._manifest["split"], "val").to_numpy(zero_copy_only=False)
        return np.where(held_out, VAL, TRAIN)

    def _check_size(self, shards: Counts) -> None:
        """Raise if a file has another size than in the manifest. A file that was moved away is not checked."""
        files = [files[0] for files in self._manifest["files"].take(pa.array(shards)).to_pylist()]
        name, size = files[0]["name"], sum(file["bytes"] for file in files)
        if self.folder.exists(name) and self.folder.size(name) != size:
            raise damaged(self.folder, name, f"it has {self.folder.size(name):,} bytes, not {size:,}")

    def _shards_of(self, name: str) -> Counts:
        """Return the shards in a file: one, or all of a split that is one file."""
        files = self._manifest["files"].combine_chunks()
        # Megatron names a pair of files without extension.
        candidates = pa.array([name, f"{name}.bin", f"{name.removesuffix('.idx')}.bin"])
        names = pc.struct_field(files.flatten(), "name")
        named = np.flatnonzero(pc.is_in(names, candidates).to_numpy(zero_copy_only=False))
        if len(named):
            return np.unique(np.searchsorted(files.offsets.to_numpy(), named, "right") - 1)
        first = pc.struct_field(pc.list_element(files.filter(pc.greater(pc.list_value_length(files), 0)), 0), "name")
        raise self._unknown_file(name, pc.unique(first))

    def _unknown_file(self, name: str, files: pa.Array) -> UsageError:
        listed = files.slice(0, MAX_NAMED_FILES).to_pylist()
        more = [f"and {len(files) - len(listed):,} more"] if len(files) > len(listed) else []
        return UsageError(
            f"{name} is not a token file of this export" if name else "no file of the export is named",
            f"export       {self.folder.root} ({self.job.format})",
            *(f"{'files' if index == 0 else '':<12} {file}" for index, file in enumerate(listed)),
            *more,
        )


def no_tokens(where: str, start: int, stop: int, held: int, unit: str = "token") -> UsageError:
    """Return the error for tokens [start, stop), or rows of text, of a store or file that holds fewer."""
    wanted = f"{start:,}" if stop == start + 1 else f"{start:,} to {stop:,}"
    return UsageError(f"there is no {unit} {wanted} in {where}", f"holds        {held:,} {unit}s, from 0")


def in_store(job: ExportJob, origin: TokenOrigin, tokens: int) -> TokenOrigin:
    """Convert an origin to positions in the store, where the document has this many tokens.

    An end token before the document in the export is the document's last token in the store. A range that continues
    after this end token is returned without it.
    """
    if job.end != "prepended" or job.end_token is None:
        return origin
    if origin.start == 0 and origin.stop == 1:
        return replace(origin, start=tokens - 1, stop=tokens)
    skip = origin.start == 0
    return replace(origin, token=origin.token + skip, start=origin.start - 1 + skip, stop=origin.stop - 1)


def _sort_key(order: SplitAndShuffle, origins: DocumentTable, least: Callable[[Any], Any]) -> tuple[int, ...]:
    """Return the least or the greatest sort key of some documents: the shuffle key, or the source and row.

    Packed rows have the documents of a shard in another order.
    """
    if order.seed is not None:
        return (int(least(order.keys(origins.source, origins.row))),)
    source = least(origins.source)
    return int(source), int(least(origins.row[origins.source == source]))
