"""One complete store of a collection: its parts, kept columns, sources and skipped rows, by its own numbers."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.chat.rendering import text_renderer
from tokenmill.errors import SourceError
from tokenmill.sources import file_at, read_documents, split_file
from tokenmill.sources.documents import ReadOptions, Slice, SourceFile
from tokenmill.sources.line_numbers import place
from tokenmill.sources.plain_values import TEXT
from tokenmill.storage import Folder
from tokenmill.store import layout, tables
from tokenmill.store.chain import Head, claimed_documents
from tokenmill.store.duplicates import read_duplicates
from tokenmill.store.job import Run
from tokenmill.store.kept import matching, read_kept
from tokenmill.store.manifest import is_listed
from tokenmill.store.part import (
    DUPLICATE,
    SPARSE,
    PartContent,
    PartSummary,
    SkippedRow,
    check_fits,
    open_part,
    read_summary,
)
from tokenmill.store.spool import current_sources
from tokenmill.store.state import StoreState


@dataclass(frozen=True)
class Member:
    """One store of a collection, and how many parts, documents, tokens and sources the stores before it have.

    Its methods take and return the numbers of units and sources in this store. The manifest is that of the head: the
    parts after the last change.
    """

    folder: Folder
    run: Run
    manifest: pa.Table
    head: Head
    first_part: int = 0
    first_document: int = 0
    first_token: int = 0
    first_source: int = 0

    @property
    def directory(self) -> str:
        """The directory of the store."""
        return self.folder.root

    def manifest_without_erased(self, changes: int) -> pa.Table:
        """The manifest with the documents and tokens that each part has without those erased by the first changes."""
        if not any(change.documents for change in self.head.history[:changes]):
            return self.manifest
        erased, manifest = claimed_documents(self.folder, self.head, upto=changes), self.manifest
        unit, tokens = erased["unit"].to_numpy(), erased["tokens"].to_numpy()
        counts = (np.bincount(unit, each, len(manifest)).astype(np.int64) for each in (np.ones(len(unit)), tokens))
        for name, count in zip(("documents", "tokens"), counts, strict=True):
            index = manifest.schema.get_field_index(name)
            manifest = manifest.set_column(index, name, pa.array(manifest[name].to_numpy() - count))
        return manifest

    def request_of(self, content: PartContent, index: int) -> str:
        """The request that erased a document of a part; empty if it is not erased."""
        return "" if content.erased is None else self.head.request_of(int(content.erased[index]))

    @functools.cached_property
    def sources(self) -> pa.Table:
        """The sources of the store's run, as they are to be read now."""
        sources = tables.read_sources(self.folder, self.run)
        return current_sources(self.folder, sources) if self.head.number else sources

    @classmethod
    def of(cls, found: StoreState, *first: int) -> Member:
        """The member that a complete store is, after stores with so many parts, documents, tokens and sources."""
        return cls(found.folder, found.run, found.manifest, found.head, *first)

    def next(self, found: StoreState) -> Member:
        """The member after this one."""
        documents, tokens = (int(np.sum(self.manifest[name].to_numpy())) for name in ("documents", "tokens"))
        return Member.of(
            found,
            self.first_part + len(self.manifest),
            self.first_document + documents,
            self.first_token + tokens,
            self.first_source + self.run.sources,
        )

    def open_part(self, unit: int) -> PartContent:
        """Open the part of a unit. Raises CorruptStore if it is not the part that the manifest lists."""
        summary, content = open_part(self.folder, unit, self.head)
        check_fits(self.folder, summary, content, self.run.job.tokenizer.dtype, self.run.sources)
        self._check_listed(summary)
        return content

    def kept(self, unit: int) -> pa.Table:
        """The kept columns of a unit. Raises CorruptStore if they are not those of the part that the manifest lists."""
        return read_kept(self.folder, self._summary(unit), self.run.job.keep, self.head)

    def matching(self, unit: int, where: str) -> npt.NDArray[np.bool_]:
        """Whether the kept columns of each document of a unit satisfy a condition."""
        return matching(self.folder, self._summary(unit), where, self.head)

    def _summary(self, unit: int) -> PartSummary:
        summary = read_summary(self.folder, unit, self.head)
        self._check_listed(summary)
        return summary

    def _check_listed(self, summary: PartSummary) -> None:
        if not is_listed(self.manifest, summary):
            file = self.head.part_file(summary.unit)
            raise layout.damaged(self.folder, file, "it is not the part that the manifest describes")

    def columns(self, names: Sequence[str], start: int, stop: int) -> Iterator[pa.Table]:
        """Yield the kept columns of documents [start, stop) of the collection, for each part that holds some of them.

        A column that the store does not keep is null.
        """
        documents = self.manifest["documents"].to_numpy()
        ends = self.first_document + np.cumsum(documents)
        starts = ends - documents
        is_kept = [name in self.run.job.keep for name in names]
        for unit in np.flatnonzero((starts < stop) & (ends > start)).tolist():
            first, last = max(start - int(starts[unit]), 0), min(stop, int(ends[unit])) - int(starts[unit])
            values = self.kept(unit).slice(first, last - first) if any(is_kept) else None
            missing = pa.chunked_array([pa.nulls(last - first, TEXT)])
            found = zip(names, is_kept, strict=True)
            yield pa.table({name: values[name] if values is not None and has else missing for name, has in found})

    def unit_of(self, source: int, row: int) -> int | None:
        """The unit that holds a row of a source: the only unit of the source, or the one that the plan assigns."""
        first, sources, stop, rows = (self._plan[name] for name in ("source", "sources", "stop", "rows"))
        starts = first.to_numpy().astype(np.int64)
        low = int(np.searchsorted(starts + sources.to_numpy(), source, side="right"))
        high = int(np.searchsorted(starts, source, side="right"))
        if high - low < 2:  # also a compressed file, whose rows are not byte positions in the file
            return low if low < high else None
        counted = rows.slice(low, high - low)  # if rows are not counted, a row is its start byte
        ends = np.cumsum(counted.to_numpy()) if not counted.null_count else stop.slice(low, high - low).to_numpy()
        unit = low + int(np.searchsorted(ends, row, side="right"))
        return unit if unit < high else None

    def slice_of(self, unit: int) -> Slice | None:
        """The slice of its source that a unit reads; None if the unit consists of whole sources."""
        start, stop = (self._plan[name][unit].as_py() for name in ("start", "stop"))
        return None if stop is None else Slice(start, stop)

    def why_not(self, source: int, row: int) -> str:
        """The reason why a row of a source is not in the store, as recorded in its part."""
        unit = self.unit_of(source, row)
        if unit is None:
            trial = self.run.trial
            return "no unit has it" + (f": the store is a trial, {trial}" if trial else "")
        dedup = self.run.job.dedup
        if dedup is not None and row in read_duplicates(self.folder, dedup).of(source):
            return DUPLICATE
        skipped = [rows for rows in read_summary(self.folder, unit, self.head).skipped if rows.reason != DUPLICATE]
        matching = [rows for rows in skipped if rows.source == source and rows.first <= row <= rows.last]
        exact = [rows.reason for rows in matching if rows.reason not in SPARSE]
        reasons = exact or [rows.reason for rows in matching]  # a filter has wide ranges, with other rows in between
        return " or ".join(dict.fromkeys(reasons)) or "no document starts there"

    def skipped(self) -> Iterator[SkippedRow]:
        """Yield the rows of the sources that are not in the store, part by part."""
        units = self.manifest["unit"].to_numpy()[self.manifest["skipped"].to_numpy() > 0]
        for unit in units.tolist():
            for skipped in read_summary(self.folder, unit, self.head).skipped:
                if skipped.source >= self.run.sources:
                    reason = f"it skips rows of source {skipped.source}, of {self.run.sources}"
                    raise layout.damaged(self.folder, self.head.part_file(unit), reason)
                yield skipped

    @functools.cached_property
    def _plan(self) -> pa.Table:
        return tables.read_plan(self.folder, self.run).slice(0, self.run.units)


# A unit size that no file reaches: a file is split into one slice.
WHOLE_FILE_BYTES = 1 << 62


def read_source_text(member: Member, unit: int, source: int, row: int, number: int = 0) -> str:
    """The text of a row of a source of this store, or of one of its documents. Reads the slice of the unit up to it.

    Raises SourceError if the source is gone, has changed, or has no such document.
    """
    job = member.run.job
    options = job.read_options(with_marks=False, on_bad="quarantine", document_bytes=job.document_bytes)
    file = file_at(member.sources, source)
    file_slice = member.slice_of(unit) or whole_file(file, options)
    for documents in read_documents(file, file_slice, options) if file_slice is not None else ():
        index = int(np.searchsorted(documents.rows, np.uint64(row)))
        if index < len(documents.rows) and int(documents.rows[index]) == row:
            text = str(documents.text[index].as_py())
            chat = None if job.chat is None else msgspec.structs.replace(job.chat, marks={})
            return text if chat is None else text_renderer(chat)(text)[number].text
    raise SourceError(
        "a document is not in its source any more", f"file         {file.path}", f"found at     {place(file.kind, row)}"
    )


def whole_file(file: SourceFile, options: ReadOptions) -> Slice | None:
    """A file as one slice; None if it has no content."""
    slices = split_file(file, options, WHOLE_FILE_BYTES)
    return slices.whole() if len(slices.start) else None
