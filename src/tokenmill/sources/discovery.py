"""Which files a run reads: found by path, directory or glob, told apart by their ending, in a natural, stable order."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.ignored import Ignored, IgnoredBuilder
from tokenmill.sources.store_guard import StoreGuard

ENDINGS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    **{f"{name}{codec}": "jsonl" for name in (".jsonl", ".ndjson") for codec in ("", ".gz", ".zst")},
    ".json.gz": "jsonl",
    ".json.zst": "jsonl",
    **{f".txt{codec}": "text" for codec in ("", ".gz", ".zst")},
}
# Next to data, a .json is often about it (datasets saves state.json): only who names one means JSON Lines.
NAMED_ENDINGS = {".json": "jsonl"}

IDENTITY_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Discovery:
    """The sources, one row each (path, kind, size, fingerprint), and what was met beside them and is not read."""

    table: pa.Table
    ignored: Ignored


def kind_of(path: str) -> str | None:
    """The kind of source that a file's ending tells, in upper or lower case."""
    parts = os.path.basename(path).lower().rsplit(".", 2)[1:]
    return ENDINGS.get(f".{'.'.join(parts)}") or ENDINGS.get(f".{parts[-1]}") if parts else None


def discover(patterns: Sequence[str], kind: str | None = None, out: str | None = None) -> Discovery:
    """The sources that paths, directories and globs name: arguments as given, natural order inside each.

    They are of the kind that their ending tells, and each file is taken once, whatever paths and links lead to it. If a
    `kind` is given, every path is taken as it is. Token stores are not searched, nor is `out`, the store of the run.
    """
    search = _SourceSearch(StoreGuard(out), kind)
    for pattern in patterns:
        search.add(pattern)
    if not search.files:
        raise _nothing_found("no source given", search.ignored.build([]))
    paths = [file.path for file in search.files]
    return Discovery(_table(search.files, search.kinds), search.ignored.build(paths))


class _SourceSearch:
    """The files that were found so far, and what is left of the next argument when those are known."""

    def __init__(self, guard: StoreGuard, kind: str | None) -> None:
        self.files: list[storage.FileInfo] = []
        self.kinds: list[str] = []
        self.ignored = IgnoredBuilder()
        self._guard = guard
        self._kind = kind
        self._first: dict[storage.Identity, str] = {}

    def add(self, pattern: str) -> None:
        """Take the sources that a path, directory or glob names; raise SourceError if there are none."""
        listing = storage.find(pattern, self._guard)
        self._guard.refuse_store(listing)
        self._note(listing)
        stores = len(self.ignored.stores)
        found = self._of_known_kind(listing)
        if not found and len(self.ignored.stores) == stores:
            raise _nothing_found(f"no source in {pattern}", self.ignored.build([]))
        kept = found if self._kind else self._once(found)
        self.files += [file for file, _ in kept]
        self.kinds += [kind for _, kind in kept]

    def _note(self, listing: storage.Listing) -> None:
        self.ignored.special += listing.special
        self.ignored.stores += listing.skipped
        self.ignored.repeated += listing.linked
        self.ignored.hidden += listing.hidden

    def _of_known_kind(self, listing: storage.Listing) -> list[tuple[storage.FileInfo, str]]:
        """The files of a listing that are sources, in natural order, each with its kind."""
        found = []
        for file in sorted(listing.files, key=lambda file: natural_key(file.path)):
            if listing.is_named and self._guard.is_written_by_run(file.path):
                self.ignored.stores.append(file.path)
                continue
            kind = self._kind or (_kind_of_named(file.path) if listing.is_named else kind_of(file.path))
            if kind is None:
                self.ignored.files.append(file.path)
            else:
                found.append((file, kind))
        return found

    def _once(self, found: list[tuple[storage.FileInfo, str]]) -> list[tuple[storage.FileInfo, str]]:
        """Those that no argument before has named; of several paths to a file the first that is no link."""
        paths: dict[storage.Identity, str] = {}
        for file, _ in sorted(found, key=lambda pair: pair[0].is_link):
            paths.setdefault(_identity_key(file), file.path)
        kept = []
        for file, kind in found:
            key = _identity_key(file)
            first = self._first.get(key, paths[key])
            if key not in self._first and first == file.path:
                kept.append((file, kind))
            else:
                self.ignored.repeated.append((file.path, first))
        self._first.update(paths | self._first)
        return kept


def _identity_key(file: storage.FileInfo) -> storage.Identity:
    return file.path if file.identity is None else file.identity


def with_identities(table: pa.Table, told: Callable[[int], None] = lambda _: None) -> pa.Table:
    """The table with one more column: a number for each file that is the same wherever the file lies.

    It is a hash of the size and the first bytes, and decides which documents are held out for validation: the same ones
    when sources are added, moved or named in another way. How many are known is `told` as they come.
    """
    with ThreadPoolExecutor(8) as pool:  # waiting, more than work
        columns = (table[name].to_pylist() for name in ("path", "size", "fingerprint"))
        identities = []
        for identity in pool.map(_identity, *columns):
            identities.append(identity)
            told(len(identities))
    return table.append_column("identity", pa.array(identities, pa.uint64()))


def _identity(path: str, size: int, fingerprint: str) -> int:
    start = storage.read_start(storage.FileInfo(path, size, fingerprint), IDENTITY_BYTES)
    digest = hashlib.sha256(size.to_bytes(8, "little") + start)
    return int.from_bytes(digest.digest()[:8], "little")


def file_at(table: pa.Table, index: int) -> SourceFile:
    """One row of the table of sources."""
    return files_between(table, index, index + 1)[0]


def files_between(table: pa.Table, start: int, stop: int) -> list[SourceFile]:
    """Rows [start, stop) of the table of sources."""
    rows = table.slice(start, stop - start)
    columns = [rows.column(name).to_pylist() for name in ("path", "kind", "size", "fingerprint")]
    return [SourceFile(start + place, *values) for place, values in enumerate(zip(*columns, strict=True))]


def natural_key(path: str) -> tuple[str, str]:
    """Numbers count as numbers: a longer one comes after a shorter one. The path itself decides between equals."""
    return re.sub("[0-9]+", _sortable_number, path), path


def _sortable_number(match: re.Match[str]) -> str:
    digits = match[0].lstrip("0")
    return f"{len(digits):03}{digits}"


def _kind_of_named(path: str) -> str:
    kind = kind_of(path) or NAMED_ENDINGS.get(os.path.splitext(path.lower())[1])
    if kind is None:
        raise SourceError(
            "the ending of a file does not tell its kind",
            f"file         {path}",
            f"known        {' '.join([*ENDINGS, *NAMED_ENDINGS])}",
            "Rename or convert the file, or leave it out.",
        )
    return kind


def _nothing_found(headline: str, ignored: Ignored) -> SourceError:
    details = [f"known        {' '.join(ENDINGS)}", *(f"note         {note}" for note in ignored.notes())]
    return SourceError(headline, *details, "Name files, directories or globs that hold text.")


def _table(files: list[storage.FileInfo], kinds: list[str]) -> pa.Table:
    try:
        paths = pa.array([file.path for file in files], pa.string())
    except UnicodeEncodeError as error:
        raise SourceError(
            "the name of a file is not valid UTF-8",
            f"file         {error.object!r}",
            "Rename the file, or leave it out.",
        ) from error
    columns = {
        "path": paths,
        "kind": pa.array(kinds, pa.string()).dictionary_encode(),
        "size": pa.array([file.size for file in files], pa.int64()),
        "fingerprint": pa.array([file.fingerprint for file in files], pa.string()),
    }
    return pa.table(columns)
