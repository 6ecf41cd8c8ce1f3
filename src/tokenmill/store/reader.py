"""The store as a reader sees it: documents and tokens by position, zero-copy from the memory-mapped parts."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.storage import folder_at
from tokenmill.store import layout, tables
from tokenmill.store.job import Job
from tokenmill.store.part import PartContent, SkippedRow, TokenArray, check_fits, open_part, part_name, read_summary
from tokenmill.store.run import read_vocabulary, require_run

OPEN_PARTS = 64


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a store: its tokens, the source and row they come from, and the kind of that source.

    In a source of text or JSON Lines the row is the byte at which the document starts.
    """

    tokens: TokenArray
    source: str
    row: int
    kind: str = "parquet"


class Store:
    """A complete token store. `store[i]` is document i, `store.tokens(a, b)` any stretch of the token stream."""

    def __init__(self, directory: str) -> None:
        self._folder = folder_at(directory)
        self.run = require_run(self._folder)
        self.manifest = tables.require_manifest(self._folder, self.run)
        self._document_ends = np.cumsum(self.manifest["documents"].to_numpy())
        self._token_ends = np.cumsum(self.manifest["tokens"].to_numpy())
        self._part = functools.lru_cache(maxsize=OPEN_PARTS)(self._open_part)

    @property
    def directory(self) -> str:
        """Where the store is."""
        return self._folder.root

    @property
    def job(self) -> Job:
        """The job that made the store."""
        return self.run.job

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of the tokens: uint16 or uint32."""
        return np.dtype(self.job.tokenizer.dtype)

    @property
    def token_count(self) -> int:
        """How many tokens the store holds, begin and end tokens included."""
        return int(self._token_ends[-1]) if len(self._token_ends) else 0

    def __len__(self) -> int:
        return int(self._document_ends[-1]) if len(self._document_ends) else 0

    def __getitem__(self, position: int) -> TokenArray:
        part, place = self._find(position)
        return self._part(part).document(place)

    def __iter__(self) -> Iterator[TokenArray]:
        for content in self.parts():
            for place in range(len(content.row)):
                yield content.document(place)

    def __repr__(self) -> str:
        return f"<Store {self.directory}: {len(self):,} documents, {self.token_count:,} tokens ({self.dtype})>"

    def document(self, position: int) -> Document:
        """Document number `position`, with where it comes from."""
        part, place = self._find(position)
        content = self._part(part)
        path, kind = (self.sources[name][int(content.source[place])].as_py() for name in ("path", "kind"))
        return Document(content.document(place), path, int(content.row[place]), kind)

    def at(self, token: int) -> tuple[int, int]:
        """The document that a token of the whole stream is in, and which of its tokens it is."""
        if not 0 <= token < self.token_count:
            raise IndexError(f"token {token} of a store of {self.token_count}")
        part = int(np.searchsorted(self._token_ends, token, side="right"))
        offsets = self._part(part).offsets
        token -= self._tokens_before(part)
        place = int(np.searchsorted(offsets, token, side="right")) - 1
        return self._documents_before(part) + place, token - int(offsets[place])

    def start_of(self, position: int) -> int:
        """The token of the whole stream that document number `position` starts with."""
        part, place = self._find(position)
        return self._tokens_before(part) + int(self._part(part).offsets[place])

    def find(self, source: int, row: int) -> int | None:
        """The number of the document that is this row of the source with this number; None if there is none.

        The plan tells which part would hold it, and only that is opened.
        """
        part = self._part_of(source, row) if 0 <= row < 1 << 64 else None
        if part is None:
            return None
        content = self._part(part)
        low, high = np.searchsorted(content.source, [source, source + 1]).tolist()
        place = low + int(np.searchsorted(content.row[low:high], np.uint64(row)))
        return self._documents_before(part) + place if place < high and int(content.row[place]) == row else None

    def why_not(self, source: int, row: int) -> str:
        """Why a row of a source is not in the store, as far as its part tells."""
        part = self._part_of(source, row)
        if part is None:
            limit = self.job.limit_units
            return "no unit has it" + (f": the run is of the first {limit:,} (--limit-units)" if limit else "")
        skipped = [each for each in read_summary(self._folder, part).skipped if each.source == source]
        return next((each.reason for each in skipped if each.first <= row <= each.last), "no document starts there")

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Tokens [start, stop) of the whole stream: a view if they are in one part, else a copy."""
        start, stop, _ = slice(start, stop).indices(self.token_count)
        if start >= stop:
            return np.empty(0, self.dtype)
        first = int(np.searchsorted(self._token_ends, start, side="right"))
        last = int(np.searchsorted(self._token_ends, stop - 1, side="right"))
        pieces = [self._stretch(part, start, stop) for part in range(first, last + 1)]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def parts(self) -> Iterator[PartContent]:
        """The parts in order, each with its columns as views of the memory map."""
        for part in range(len(self.manifest)):
            yield self._part(part)

    @functools.cached_property
    def sources(self) -> pa.Table:
        """The sources of the run: path, kind, size, fingerprint, identity."""
        return tables.read_sources(self._folder, self.run)

    def skipped(self) -> Iterator[SkippedRow]:
        """The rows of the sources that are not in the store, part by part."""
        units = self.manifest["unit"].to_numpy()[self.manifest["skipped"].to_numpy() > 0]
        for unit in units:
            for skipped in read_summary(self._folder, int(unit)).skipped:
                if skipped.source >= self.run.sources:
                    reason = f"it skips rows of source {skipped.source}, of {self.run.sources}"
                    raise layout.damaged(self._folder, part_name(int(unit)), reason)
                yield skipped

    def vocabulary(self) -> bytes:
        """The vocabulary that the store was made with."""
        return read_vocabulary(self._folder, self.job.tokenizer)

    def _open_part(self, part: int) -> PartContent:
        summary, content = open_part(self._folder, part)
        check_fits(self._folder, part, content, self.job.tokenizer.dtype, self.run.sources)
        if not tables.is_listed(self.manifest, summary):
            raise layout.damaged(self._folder, part_name(part), "it is not the part that the manifest describes")
        return content

    def _find(self, position: int) -> tuple[int, int]:
        count = len(self)
        if not -count <= position < count:
            raise IndexError(f"document {position} of a store of {count}")
        position %= count
        part = int(np.searchsorted(self._document_ends, position, side="right"))
        return part, position - self._documents_before(part)

    def _part_of(self, source: int, row: int) -> int | None:
        """The part of the slice of the source that the row is in: the only one with the source, or told by the plan."""
        first, sources, stop, rows = (self._plan[name] for name in ("source", "sources", "stop", "rows"))
        starts = first.to_numpy().astype(np.int64)
        low = int(np.searchsorted(starts + sources.to_numpy(), source, side="right"))
        high = int(np.searchsorted(starts, source, side="right"))
        if high - low < 2:  # a compressed file is one slice, too, and its rows are not counted in bytes of the file
            return low if low < high else None
        counted = rows.slice(low, high - low)  # where rows are not counted, a row is the byte that it starts at
        ends = np.cumsum(counted.to_numpy()) if not counted.null_count else stop.slice(low, high - low).to_numpy()
        part = low + int(np.searchsorted(ends, row, side="right"))
        return part if part < high else None

    @functools.cached_property
    def _plan(self) -> pa.Table:
        name = layout.table_name(self._folder, layout.PLAN, self.run.plan_sha256)
        columns = ["source", "sources", "stop", "rows"]
        return tables.read_table(self._folder, name, self.run.plan_sha256, tables.PLAN_SCHEMA, columns)

    def _documents_before(self, part: int) -> int:
        return int(self._document_ends[part - 1]) if part else 0

    def _tokens_before(self, part: int) -> int:
        return int(self._token_ends[part - 1]) if part else 0

    def _stretch(self, part: int, start: int, stop: int) -> TokenArray:
        before = self._tokens_before(part)
        return self._part(part).tokens[max(start - before, 0) : stop - before]
