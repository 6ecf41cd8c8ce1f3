"""Several complete stores that are read as one. Parts, documents and sources are numbered through all of them.

One store is a collection with one member, so every reader of stores goes through here. The order of the members decides
the order of the documents. What identifies a document, its source's content and its row, does not depend on it.
"""

from __future__ import annotations

import bisect
import functools
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.errors import UsageError
from tokenmill.sources.plain_values import TEXT, unify
from tokenmill.storage import Folder, folder_at, resolved
from tokenmill.store import layout, tables
from tokenmill.store.erasures import erased_counts
from tokenmill.store.job import Job, Run
from tokenmill.store.kept import read_kept
from tokenmill.store.listed_parts import ListedParts, ListedStore, with_source_offset
from tokenmill.store.part import PartContent, SkippedRow, check_fits, open_part, part_name, read_summary
from tokenmill.store.run import require_run

# Source numbers have 32 bits in parts and records.
MAX_SOURCES = 1 << 32


@dataclass(frozen=True)
class Member:
    """One store of a collection, and how many parts, documents, tokens and sources the stores before it have.

    Its methods take and return the numbers of units and sources in this store. `digest` is the hash of the checksums of
    its parts.
    """

    folder: Folder
    run: Run
    manifest: pa.Table
    digest: str
    first_part: int = 0
    first_document: int = 0
    first_token: int = 0
    first_source: int = 0

    @property
    def directory(self) -> str:
        """The directory of the store."""
        return self.folder.root

    @property
    def versions(self) -> list[str]:
        """The digest of the parts before each change of the store, and the digest now."""
        return [*(change.before for change in self.run.history), self.digest]

    def manifest_without_erased(self, changes: int) -> pa.Table:
        """The manifest with the documents and tokens that each part has without those erased by the first changes."""
        if not any(change.documents for change in self.run.history[:changes]):
            return self.manifest
        counts = erased_counts(self.directory, self.run.history[:changes], len(self.manifest))
        manifest = self.manifest
        for name, count in zip(("documents", "tokens"), counts, strict=True):
            index = manifest.schema.get_field_index(name)
            manifest = manifest.set_column(index, name, pa.array(manifest[name].to_numpy() - count))
        return manifest

    def request_of(self, content: PartContent, index: int) -> str:
        """The request that erased a document of a part; empty if it is not erased."""
        change = 0 if content.erased is None else int(content.erased[index])
        return self.run.history[change - 1].request if change else ""

    @functools.cached_property
    def sources(self) -> pa.Table:
        """The sources of the store's run."""
        return tables.read_sources(self.folder, self.run)

    def next(self, folder: Folder, run: Run, listing: tables.ManifestListing) -> Member:
        """The member after this one."""
        documents, tokens = (int(np.sum(self.manifest[name].to_numpy())) for name in ("documents", "tokens"))
        return Member(
            folder,
            run,
            *listing,
            self.first_part + len(self.manifest),
            self.first_document + documents,
            self.first_token + tokens,
            self.first_source + self.run.sources,
        )

    def open_part(self, unit: int) -> PartContent:
        """Open the part of a unit. Raises CorruptStore if it is not the part that the manifest lists."""
        summary, content = open_part(self.folder, unit)
        check_fits(self.folder, unit, content, self.run.job.tokenizer.dtype, self.run.sources)
        if not tables.is_listed(self.manifest, summary):
            raise layout.damaged(self.folder, part_name(unit), "it is not the part that the manifest describes")
        return content

    def kept(self, unit: int) -> pa.Table:
        """The kept columns of a unit. Raises CorruptStore if they are not those of the part that the manifest lists."""
        summary = read_summary(self.folder, unit)
        if not tables.is_listed(self.manifest, summary):
            raise layout.damaged(self.folder, part_name(unit), "it is not the part that the manifest describes")
        return read_kept(self.folder, summary)

    def columns(self, names: Sequence[str], start: int, stop: int) -> Iterator[pa.Table]:
        """Yield the kept columns of documents [start, stop) of the collection, for each part that holds some of them.

        A column that the store does not keep is null.
        """
        documents = self.manifest["documents"].to_numpy()
        ends = self.first_document + np.cumsum(documents)
        starts = ends - documents
        is_kept = [name in self.run.job.kept_columns for name in names]
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

    def why_not(self, source: int, row: int) -> str:
        """The reason why a row of a source is not in the store, as recorded in its part."""
        unit = self.unit_of(source, row)
        if unit is None:
            limit = self.run.job.limit_units
            return "no unit has it" + (f": the run is of the first {limit:,} (--limit-units)" if limit else "")
        ranges = [skipped for skipped in read_summary(self.folder, unit).skipped if skipped.source == source]
        return next((rows.reason for rows in ranges if rows.first <= row <= rows.last), "no document starts there")

    def skipped(self) -> Iterator[SkippedRow]:
        """Yield the rows of the sources that are not in the store, part by part."""
        units = self.manifest["unit"].to_numpy()[self.manifest["skipped"].to_numpy() > 0]
        for unit in units.tolist():
            for skipped in read_summary(self.folder, unit).skipped:
                if skipped.source >= self.run.sources:
                    reason = f"it skips rows of source {skipped.source}, of {self.run.sources}"
                    raise layout.damaged(self.folder, part_name(unit), reason)
                yield skipped

    @functools.cached_property
    def _plan(self) -> pa.Table:
        name = layout.table_name(self.folder, layout.PLAN, self.run.plan_sha256)
        columns = ["source", "sources", "stop", "rows"]
        return tables.read_table(self.folder, name, self.run.plan_sha256, tables.PLAN_SCHEMA, columns)


@dataclass(frozen=True)
class Collection:
    """Complete stores with one tokenizer and the same begin and end tokens, in the order that the user gave."""

    members: tuple[Member, ...]

    @property
    def directories(self) -> list[str]:
        """The directories of the stores."""
        return [member.directory for member in self.members]

    @property
    def name(self) -> str:
        """The directories in one line, for messages and results."""
        return ", ".join(self.directories)

    @property
    def job(self) -> Job:
        """The job of the first store. The others have the same tokenizer and the same begin and end tokens."""
        return self.members[0].run.job

    @property
    def source_count(self) -> int:
        """The number of sources in all stores."""
        return self.members[-1].first_source + self.members[-1].run.sources

    @functools.cached_property
    def digest(self) -> str:
        """The digest of the parts of one store, or of the digests of several."""
        return self.digest_at(self.changes)

    @functools.cached_property
    def manifest(self) -> pa.Table:
        """The manifests of all stores, one after the other. Row i describes part i; `unit` counts in its store."""
        return self._joined([member.manifest for member in self.members])

    def manifest_without_erased(self, changes: Sequence[int]) -> pa.Table:
        """The same with the counts of each part without the documents that the first changes of its store erased."""
        pairs = zip(self.members, changes, strict=True)
        return self._joined([member.manifest_without_erased(count) for member, count in pairs])

    @property
    def changes(self) -> list[int]:
        """The number of changes of each store."""
        return [len(member.run.history) for member in self.members]

    def digest_at(self, changes: Sequence[int]) -> str:
        """The digest that the stores had after so many changes of each."""
        digests = [member.versions[count] for member, count in zip(self.members, changes, strict=True)]
        if len(digests) == 1:
            return digests[0]
        # A store's sources are numbered after those of the stores before it, also sources without a document.
        counts = "".join(f" {member.run.sources}" for member in self.members)
        return hashlib.sha256(("".join(digests) + counts).encode()).hexdigest()

    @property
    def identity(self) -> str:
        """The digest that the stores had before any change. Positions of documents and tokens follow from it."""
        return self.digest_at([0] * len(self.members))

    @staticmethod
    def _joined(manifests: list[pa.Table]) -> pa.Table:
        names = [name for name in manifests[0].column_names if all(name in one.column_names for one in manifests)]
        return manifests[0] if len(manifests) == 1 else pa.concat_tables([one.select(names) for one in manifests])

    @functools.cached_property
    def sources(self) -> pa.Table:
        """The sources of all stores, one after the other."""
        sources = [member.sources for member in self.members]
        return sources[0] if len(sources) == 1 else pa.concat_tables(sources).unify_dictionaries()

    @functools.cached_property
    def parts(self) -> ListedParts:
        """The parts as workers open them."""
        return self.parts_without_erased([0] * len(self.members))

    def parts_without_erased(self, changes: Sequence[int]) -> ListedParts:
        """The parts as workers open them, without the documents that the first changes of each store erased."""
        stores = [
            ListedStore(member.directory, member.digest, len(member.manifest), run.sources, run.sources_sha256, count)
            for member, count in zip(self.members, changes, strict=True)
            for run in [member.run]
        ]
        return ListedParts(tuple(stores), self.job.tokenizer.dtype)

    def of_part(self, part: int) -> Member:
        """The store that holds a part."""
        return self._last_before("first_part", part)

    def of_document(self, document: int) -> Member:
        """The store that holds a document."""
        return self._last_before("first_document", document)

    def of_source(self, source: int) -> Member:
        """The store that holds a source."""
        return self._last_before("first_source", source)

    def open_part(self, part: int) -> PartContent:
        """Open a part by its number in the collection. The source numbers in it are those of the collection."""
        member = self.of_part(part)
        return with_source_offset(member.open_part(part - member.first_part), member.first_source)

    @property
    def kept_columns(self) -> list[str]:
        """The columns that any of the stores keeps."""
        return list(dict.fromkeys(name for member in self.members for name in member.run.job.kept_columns))

    def columns(self, names: Sequence[str], start: int, stop: int) -> pa.Table:
        """The kept columns of documents [start, stop). Raises UsageError for a column that no store keeps."""
        kept = self.kept_columns
        unknown = [name for name in names if name not in kept]
        if unknown:
            raise UsageError(
                f"the store does not keep the column {unknown[0]!r}",
                f"kept         {', '.join(kept) or 'none'}",
                "`tokenmill prepare --keep NAMES` keeps columns.",
            )
        parts = [part for member in self.members for part in member.columns(names, start, stop)]
        columns = {name: unify([chunk for part in parts for chunk in part[name].chunks]) for name in names}
        return pa.table({name: pa.chunked_array(arrays or [pa.nulls(0, TEXT)]) for name, arrays in columns.items()})

    def _last_before(self, first: str, number: int) -> Member:
        firsts = [getattr(member, first) for member in self.members]
        return self.members[bisect.bisect_right(firsts, number) - 1]


def open_collection(directories: Sequence[str], *, is_repeated: bool = False) -> Collection:
    """Open complete stores. Refuses stores that cannot be read as one: the error names the difference.

    With `is_repeated`, a store may be given several times; each is a member of its own.
    """
    members: list[Member] = []
    for folder in map(folder_at, directories):
        run = require_run(folder)
        if members:
            _refuse_different(members[0], folder, run)
        if not is_repeated and any(resolved(member.directory) == resolved(folder.root) for member in members):
            raise UsageError(f"the store {folder.root} is given twice", "Name each store once.")
        # Parts are compared by their SHA-256, which covers the XXH3. Reading a million texts takes a second.
        listing = tables.require_listing(folder, run, skipped=["xxh3"])
        members.append(members[-1].next(folder, run, listing) if members else Member(folder, run, *listing))
    collection = Collection(tuple(members))
    if collection.source_count >= MAX_SOURCES:
        raise UsageError(f"the stores have {collection.source_count:,} sources", f"maximum      {MAX_SOURCES - 1:,}")
    return collection


def _refuse_different(first: Member, folder: Folder, run: Run) -> None:
    """Refuse a store with other tokens than the first one: another vocabulary, begin token or end token."""
    compared = ("tokenizer", "split pattern", "--bos", "--eot")
    changes = [change for change in first.run.job.differences(run.job) if change[0] in compared]
    if not changes:
        return
    names = {"tokenizer": (first.run.job.tokenizer.name, run.job.tokenizer.name)}
    lines = []
    for name, *values in changes:
        shown = [f"{known} ({value})" for known, value in zip(names.get(name, ("", "")), values, strict=True)]
        lines.append(f"{name:<13} {' and '.join(shown if name in names else values)}")
    raise UsageError(
        f"the stores have another {changes[0][0]}, so they cannot be read together",
        f"stores        {first.directory} and {folder.root}",
        *lines,
        f"`tokenmill prepare SOURCE --like {first.directory} --out DIR` makes a store that can.",
    )
