"""Several complete stores that are read as one. Parts, documents and sources are numbered through all of them.

One store is a collection with one member, so every reader of stores goes through here. The order of the members decides
the order of the documents. What identifies a document, its source's content and its row, does not depend on it.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tokenmill.errors import UsageError
from tokenmill.humanize import did_you_mean
from tokenmill.sources.plain_values import TEXT, unify
from tokenmill.storage import Folder, folder_at, resolved
from tokenmill.storage.digest import hash_of
from tokenmill.store.job import Job, Run
from tokenmill.store.listed_parts import ListedParts, ListedStore, with_source_offset
from tokenmill.store.member import Member
from tokenmill.store.part import PartContent
from tokenmill.store.state import Operation, enter

# Source numbers have 32 bits in parts and records.
MAX_SOURCES = 1 << 32


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
        return self._digest_of([member.head.digest for member in self.members])

    @property
    def identity(self) -> str:
        """The digest that the stores had before any change. Positions of documents and tokens follow from it."""
        return self._digest_of([member.head.identity for member in self.members])

    def _digest_of(self, digests: Sequence[str]) -> str:
        if len(digests) == 1:
            return digests[0]
        # A store's sources are numbered after those of the stores before it, also sources without a document.
        counts = "".join(f" {member.run.sources}" for member in self.members)
        return hash_of(("".join(digests) + counts).encode())

    @functools.cached_property
    def manifest(self) -> pa.Table:
        """The manifests of all stores, one after the other. Row i describes part i; `unit` counts in its store."""
        return _join([member.manifest for member in self.members])

    def manifest_without_erased(self, changes: Sequence[int]) -> pa.Table:
        """The same with the counts of each part without the documents that the first changes of its store erased."""
        pairs = zip(self.members, changes, strict=True)
        return _join([member.manifest_without_erased(count) for member, count in pairs])

    @property
    def changes(self) -> list[int]:
        """The number of changes of each store."""
        return [member.head.number for member in self.members]

    @functools.cached_property
    def sources(self) -> pa.Table:
        """The sources of all stores, one after the other."""
        sources = [member.sources for member in self.members]
        return (
            sources[0]
            if len(sources) == 1
            else pa.concat_tables(sources, promote_options="default").unify_dictionaries()
        )

    def parts_without_erased(self, changes: Sequence[int], conditions: Sequence[str | None] = ()) -> ListedParts:
        """The parts as workers open them, without the documents that the first changes of each store erased.

        `conditions` has a condition on kept columns for each store, or None for all of its documents.
        """
        stores = [
            ListedStore(
                member.directory,
                member.head.digest,
                member.head.version,
                len(member.manifest),
                run.sources,
                run.sources_blake3,
                count,
                where,
                run.job.keep,
            )
            for member, count, where in zip(self.members, changes, conditions or [None] * len(changes), strict=True)
            for run in [member.run]
        ]
        return ListedParts(tuple(stores), self.job.tokenizer.dtype)

    def of_part(self, part: int) -> Member:
        """The store that holds a part."""
        return _last_before(self.members, "first_part", part)

    def of_document(self, document: int) -> Member:
        """The store that holds a document."""
        return _last_before(self.members, "first_document", document)

    def of_source(self, source: int) -> Member:
        """The store that holds a source."""
        return _last_before(self.members, "first_source", source)

    def open_part(self, part: int) -> PartContent:
        """Open a part by its number in the collection. The source numbers in it are those of the collection."""
        member = self.of_part(part)
        return with_source_offset(member.open_part(part - member.first_part), member.first_source)

    @property
    def kept_columns(self) -> list[str]:
        """The columns that any of the stores keeps."""
        return list(dict.fromkeys(name for member in self.members for name in member.run.job.keep))

    def columns(self, names: Sequence[str], start: int, stop: int) -> pa.Table:
        """The kept columns of documents [start, stop). Raises UsageError for a column that no store keeps."""
        check_kept(self, names)
        parts = [part for member in self.members for part in member.columns(names, start, stop)]
        columns = {name: unify([chunk for part in parts for chunk in part[name].chunks]) for name in names}
        return pa.table({name: pa.chunked_array(arrays or [pa.nulls(0, TEXT)]) for name, arrays in columns.items()})


def _last_before(members: Sequence[Member], first: str, number: int) -> Member:
    """The last member whose first part, document or source has at most this number."""
    return members[bisect.bisect_right([getattr(member, first) for member in members], number) - 1]


def _join(manifests: list[pa.Table]) -> pa.Table:
    names = [name for name in manifests[0].column_names if all(name in one.column_names for one in manifests)]
    return manifests[0] if len(manifests) == 1 else pa.concat_tables([one.select(names) for one in manifests])


def open_collection(directories: Sequence[str], *, is_repeated: bool = False) -> Collection:
    """Open complete stores. Refuses stores that cannot be read as one: the error names the difference.

    With `is_repeated`, a store may be given several times; each is a member of its own.
    """
    members: list[Member] = []
    for folder in map(folder_at, directories):
        # Parts are compared by their BLAKE3, which covers the XXH3. Reading a million texts takes a second.
        found = enter(folder, Operation.READ, skipped=["xxh3"])
        if members:
            _refuse_different(members[0], folder, found.run)
        if not is_repeated and any(resolved(member.directory) == resolved(folder.root) for member in members):
            raise UsageError(f"the store {folder.root} is given twice", "Name each store once.")
        members.append(members[-1].next(found) if members else Member.of(found))
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


def trial_notes(stores: Collection) -> list[str]:
    """A note for each store that holds only the first units of its sources."""
    return [f"{each.directory} is a trial: {each.run.trial}" for each in stores.members if each.run.trial]


def check_kept(stores: Collection, names: Sequence[str]) -> None:
    """Raise UsageError for a column that no store keeps."""
    kept = stores.kept_columns
    unknown = [name for name in names if name not in kept]
    if unknown:
        raise UsageError(
            f"the store does not keep the column {unknown[0]!r}",
            f"kept         {', '.join(kept) or 'none'}",
            *did_you_mean(unknown[0], kept),
            "`tokenmill prepare --keep NAMES` keeps columns.",
        )
