"""Read a complete store: documents and tokens by position, without copies, from memory-mapped parts."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.humanize import Readable
from tokenmill.storage import folder_at
from tokenmill.store import layout, tables
from tokenmill.store.job import Job
from tokenmill.store.part import PartContent, SkippedRow, TokenArray, check_fits, open_part, part_name, read_summary
from tokenmill.store.run import read_vocabulary, require_run

OPEN_PARTS = 64
"""The maximum number of parts that are open at a time."""


@dataclass(frozen=True, slots=True, repr=False)
class Document(Readable):
    """One document of a store: its tokens, the source and row they come from, and the kind of that source.

    In a source of text or JSON Lines the row is the byte at which the document starts.
    """

    tokens: TokenArray
    source: str
    row: int
    kind: str = "parquet"


class Store:
    """A complete token store. `store[i]` is document i; `store.tokens(a, b)` is a range of the token stream."""

    def __init__(self, directory: str) -> None:
        self._folder = folder_at(directory)
        self.run = require_run(self._folder)
        self.manifest = tables.require_manifest(self._folder, self.run)
        self._document_ends = np.cumsum(self.manifest["documents"].to_numpy())
        self._token_ends = np.cumsum(self.manifest["tokens"].to_numpy())
        self._part = functools.lru_cache(maxsize=OPEN_PARTS)(self._open_part)

    @property
    def directory(self) -> str:
        """The directory of the store."""
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
        """The number of tokens in the store, including begin and end tokens."""
        return int(self._token_ends[-1]) if len(self._token_ends) else 0

    def __len__(self) -> int:
        return int(self._document_ends[-1]) if len(self._document_ends) else 0

    def __getitem__(self, position: int) -> TokenArray:
        part, index = self._find(position)
        return self._part(part).document(index)

    def __iter__(self) -> Iterator[TokenArray]:
        for content in self.parts():
            for index in range(len(content.row)):
                yield content.document(index)

    def __repr__(self) -> str:
        return f"<Store {self.directory}: {len(self):,} documents, {self.token_count:,} tokens ({self.dtype})>"

    def document(self, position: int) -> Document:
        """Document number `position`, with its source and row."""
        part, index = self._find(position)
        content = self._part(part)
        path, kind = (self.sources[name][int(content.source[index])].as_py() for name in ("path", "kind"))
        return Document(content.document(index), path, int(content.row[index]), kind)

    def at(self, token: int) -> tuple[int, int]:
        """The document that holds a token of the whole stream, and the index of the token in that document."""
        if not 0 <= token < self.token_count:
            raise IndexError(f"token {token} of a store of {self.token_count}")
        part = int(np.searchsorted(self._token_ends, token, side="right"))
        offsets = self._part(part).offsets
        token -= self._tokens_before(part)
        index = int(np.searchsorted(offsets, token, side="right")) - 1
        return self._documents_before(part) + index, token - int(offsets[index])

    def start_of(self, position: int) -> int:
        """The position in the token stream of the first token of document number `position`."""
        part, index = self._find(position)
        return self._tokens_before(part) + int(self._part(part).offsets[index])

    def find(self, source: int, row: int) -> int | None:
        """The number of the document from this row of this source (by number); None if the store has no such document.

        Only the part that the plan assigns to the row is opened.
        """
        part = self._part_of(source, row) if 0 <= row < 1 << 64 else None
        if part is None:
            return None
        content = self._part(part)
        low, high = np.searchsorted(content.source, [source, source + 1]).tolist()
        index = low + int(np.searchsorted(content.row[low:high], np.uint64(row)))
        return self._documents_before(part) + index if index < high and int(content.row[index]) == row else None

    def why_not(self, source: int, row: int) -> str:
        """The reason why a row of a source is not in the store, as recorded in its part."""
        part = self._part_of(source, row)
        if part is None:
            limit = self.job.limit_units
            return "no unit has it" + (f": the run is of the first {limit:,} (--limit-units)" if limit else "")
        ranges = [skipped for skipped in read_summary(self._folder, part).skipped if skipped.source == source]
        return next((rows.reason for rows in ranges if rows.first <= row <= rows.last), "no document starts there")

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Tokens [start, stop) of the whole stream: a view if they are in one part, else a copy."""
        start, stop, _ = slice(start, stop).indices(self.token_count)
        if start >= stop:
            return np.empty(0, self.dtype)
        first = int(np.searchsorted(self._token_ends, start, side="right"))
        last = int(np.searchsorted(self._token_ends, stop - 1, side="right"))
        arrays = [self._tokens_of(part, start, stop) for part in range(first, last + 1)]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    def parts(self) -> Iterator[PartContent]:
        """Yield the parts in order. Their columns are views of the memory map."""
        for part in range(len(self.manifest)):
            yield self._part(part)

    @functools.cached_property
    def sources(self) -> pa.Table:
        """The sources of the run: path, kind, size, fingerprint, identity."""
        return tables.read_sources(self._folder, self.run)

    def skipped(self) -> Iterator[SkippedRow]:
        """Yield the rows of the sources that are not in the store, part by part."""
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
        """The part that holds a row of a source: the only part of the source, or the part that the plan assigns."""
        first, sources, stop, rows = (self._plan[name] for name in ("source", "sources", "stop", "rows"))
        starts = first.to_numpy().astype(np.int64)
        low = int(np.searchsorted(starts + sources.to_numpy(), source, side="right"))
        high = int(np.searchsorted(starts, source, side="right"))
        if high - low < 2:  # also a compressed file, whose rows are not byte positions in the file
            return low if low < high else None
        counted = rows.slice(low, high - low)  # if rows are not counted, a row is its start byte
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

    def _tokens_of(self, part: int, start: int, stop: int) -> TokenArray:
        before = self._tokens_before(part)
        return self._part(part).tokens[max(start - before, 0) : stop - before]
