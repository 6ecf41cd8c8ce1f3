"""Find the files a run reads by path, directory or glob, in a natural, stable order. The extension decides the kind."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

import msgspec
import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources.documents import WHOLE, SourceFile
from tokenmill.sources.foreign import unsupported
from tokenmill.sources.ignored import Ignored, IgnoredBuilder
from tokenmill.sources.splits import Declaration, Source, SplitChoice, SplitSearch
from tokenmill.storage.digest import Hasher
from tokenmill.token_files import megatron, recognize

EXTENSIONS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    **{f"{name}{codec}": "jsonl" for name in (".jsonl", ".ndjson") for codec in ("", ".gz", ".zst")},
    ".json.gz": "jsonl",
    ".json.zst": "jsonl",
    **{f".txt{codec}": "text" for codec in ("", ".gz", ".zst")},
}
# A .json or .csv in a directory is often metadata (datasets saves state.json): it is read only if a path or a
# glob names it.
EXPLICIT_EXTENSIONS = {
    ".json": "jsonl",
    **{f"{name}{codec}": "csv" for name in (".csv", ".tsv") for codec in ("", ".gz", ".zst")},
}

# Files of tokens, some of which may be something else. A directory's are read if it holds no text.
TOKENS = "tokens"
TOKEN_EXTENSIONS = dict.fromkeys((*recognize.EXTENSIONS, megatron.INDEX), TOKENS)

# How much of a file's start goes into its identity.
IDENTITY_BYTES = 4096

RUN = "run.json"
# The names of the files and directories of a store.
_STORE_NAMES = re.compile(
    r"run\.json|sources(-[0-9a-f]+)?\.parquet|plan(-[0-9a-f]+)?\.parquet|manifest\.parquet|log(-\d+)?\.jsonl|log"
    r"|quarantine\.jsonl|quarantine|parts|kept|deny|tokenizer|drivers|rows|spool|engine-mismatch\.json|rechecked"
)
# A directory with a `run.json` is a store if it contains at least this many names of a store.
MIN_STORE_NAMES = 3


@dataclass(frozen=True, slots=True)
class Discovery:
    """The sources, one row each (path, kind, size, fingerprint), and what was found but is not read.

    If a source has a split, the table has a column `split`, which is null for sources without one. `notes` are about
    splits.
    """

    table: pa.Table
    ignored: Ignored
    notes: tuple[str, ...] = ()


def kind_of(path: str) -> str | None:
    """The kind of source for a file's extension, which may be in upper or lower case."""
    parts = os.path.basename(path).lower().rsplit(".", 2)[1:]
    return EXTENSIONS.get(f".{'.'.join(parts)}") or EXTENSIONS.get(f".{parts[-1]}") if parts else None


def discover(
    patterns: Sequence[str], kind: str | None = None, out: str | None = None, splits: SplitChoice | None = None
) -> Discovery:
    """The sources that paths, directories and globs name: in the order of the arguments, natural order inside each.

    The extension decides the kind, and a file is read once even if several paths or links lead to it. If `kind` is
    given, it applies to every file, and no path is removed. Token stores and `out`, the store of the run, are skipped.
    Without `splits`, splits do not matter; otherwise a dataset with several splits is refused unless they are chosen.
    """
    search = _SourceSearch(StoreGuard(out), kind, None if splits is None else SplitSearch(splits))
    for pattern in patterns:
        search.add(pattern)
    if not search.sources:
        raise _nothing_found("no source given", search.ignored.build([]))
    paths = [file.path for file, _, _ in search.sources]
    notes = () if search.splits is None else search.splits.finish()
    return Discovery(_table(search.sources), search.ignored.build(paths), notes)


class _SourceSearch:
    """Collects the sources of all arguments; a file that an earlier argument named is not taken again."""

    def __init__(self, guard: StoreGuard, kind: str | None, splits: SplitSearch | None) -> None:
        self.sources: list[tuple[storage.FileInfo, str, str | None]] = []
        self.splits = splits
        self.ignored = IgnoredBuilder()
        self._guard = guard
        self._kind = kind
        self._first_paths: dict[storage.Identity, str] = {}

    def add(self, pattern: str) -> None:
        """Add the sources that a path, directory or glob names. Raises SourceError if it finds no source."""
        listing = storage.find(pattern, self._guard)
        self._guard.refuse_store(listing)
        self.ignored.special += listing.special
        self.ignored.stores += listing.skipped
        self.ignored.repeated += listing.linked
        self.ignored.hidden += listing.hidden
        stores = len(self.ignored.stores)
        declared = Declaration() if self.splits is None else self.splits.declaration(listing)
        sources = self._of_known_kind(listing, declared.endings)
        if not sources and len(self.ignored.stores) == stores:
            raise _nothing_found(f"no source in {pattern}", self.ignored.build([]))
        split_of: dict[str, str | None] = {}
        if self.splits is not None:
            chosen = self.splits.choose(listing, sources, declared)
            sources, split_of = [source for source, _ in chosen], {file.path: split for (file, _), split in chosen}
        added = sources if self._kind else self._without_repeated(sources)
        self.sources += [(file, kind, split_of.get(file.path)) for file, kind in added]

    def _of_known_kind(self, listing: storage.Listing, endings: tuple[str, ...]) -> list[Source]:
        """The files of a listing that are sources, in natural order, each with its kind.

        A directory's file of a kind that is often metadata is a source if a card spells one of its `endings`.
        """
        sources, tokens = list[Source](), list[Source]()
        belonging = {path for file in listing.files for path in recognize.companions(file.path)}
        for file in sorted(listing.files, key=lambda file: natural_key(file.path)):
            if listing.is_named and self._guard.is_written_by_run(file.path):
                self.ignored.stores.append(file.path)
                continue
            if file.path in belonging:
                continue
            kind = self._kind or (_kind_of_named(file.path) if listing.is_named else kind_of(file.path))
            if kind is None and endings and file.path.endswith(endings):
                kind = _explicit_kind(file.path)
            if kind is not None:
                sources.append((file, kind))
            elif _ending_kind(file.path, TOKEN_EXTENSIONS):
                tokens.append((file, TOKENS))
            else:
                self.ignored.files.append(file.path)
        if sources:  # a directory of text may hold models and arrays, too
            self.ignored.files += [file.path for file, _ in tokens]
        return [(_with_tokens(file), kind) for file, kind in sources or tokens]

    def _without_repeated(self, sources: list[Source]) -> list[Source]:
        """The files that no earlier argument named. Of several paths to a file, the first that is not a link counts."""
        paths: dict[storage.Identity, str] = {}
        for file, _ in sorted(sources, key=lambda pair: pair[0].is_link):
            paths.setdefault(_identity_key(file), file.path)
        unique = []
        for file, kind in sources:
            key = _identity_key(file)
            first = self._first_paths.get(key, paths[key])
            if key not in self._first_paths and first == file.path:
                unique.append((file, kind))
            else:
                self.ignored.repeated.append((file.path, first))
        self._first_paths.update(paths | self._first_paths)
        return unique


def _identity_key(file: storage.FileInfo) -> storage.Identity:
    return file.path if file.identity is None else file.identity


def with_identities(table: pa.Table, on_progress: Callable[[int], None] = lambda _: None) -> pa.Table:
    """The table with one more column, `identity`: a hash of the size and the first bytes of each file.

    The identity does not depend on the path. It decides which documents are held out for validation, so these stay the
    same when sources are added, moved or renamed. `on_progress` receives the number of files done.
    """
    with storage.Threads(8) as pool:  # threads suffice, because this mostly waits for reads
        columns = (table[name].to_pylist() for name in ("path", "size", "fingerprint"))
        identities = []
        for identity in pool.map(_identity, *columns):
            identities.append(identity)
            on_progress(len(identities))
    return table.append_column("identity", pa.array(identities, pa.uint64()))


def _identity(path: str, size: int, fingerprint: str) -> int:
    start = storage.read_start(storage.FileInfo(path, size, fingerprint), IDENTITY_BYTES)
    return int.from_bytes(Hasher(size.to_bytes(8, "little") + start).digest(length=8), "little")


def splits_of(table: pa.Table) -> list[str | None]:
    """The split of each row of the sources table; None for a source without one."""
    if "split" not in table.column_names:
        return [None] * len(table)
    return list(table["split"].cast(pa.string()).to_pylist())


def file_at(table: pa.Table, index: int) -> SourceFile:
    """One row of the sources table."""
    return files_between(table, index, index + 1)[0]


def files_between(table: pa.Table, start: int, stop: int) -> list[SourceFile]:
    """Rows [start, stop) of the sources table."""
    rows = table.slice(start, stop - start)
    names = [name for name in ("path", "kind", "size", "fingerprint", "identity", "head") if name in table.column_names]
    columns = [rows.column(name).to_pylist() for name in names]
    rests = [_rest(table, index) for index in range(start, start + len(rows))] if names[-1] == "head" else repeat(())
    values = zip(*columns, rests, strict=False)
    return [
        SourceFile(index, **dict(zip((*names, "rest"), value, strict=True)))
        for index, value in enumerate(values, start)
    ]


def _rest(table: pa.Table, index: int) -> tuple[SourceFile, ...]:
    """The files in which the last document of a file goes on: of these, all but the last continue it to their end."""
    stop = index + 1
    while stop < len(table) and (head := table["head"][stop].as_py()) != 0:
        stop += 1
        if head != WHOLE:
            break
    if stop == index + 1:
        return ()
    following = files_between(table.drop_columns("head"), index + 1, stop)
    heads = table["head"].slice(index + 1, stop - index - 1).to_pylist()
    return tuple(msgspec.structs.replace(file, head=head) for file, head in zip(following, heads, strict=True))


def natural_key(path: str) -> tuple[str, str]:
    """A sort key that compares digits in a path as numbers. The path itself breaks ties."""
    return re.sub("[0-9]+", _sortable_number, path), path


def _sortable_number(match: re.Match[str]) -> str:
    digits = match[0].lstrip("0")
    return f"{len(digits):03}{digits}"


def _kind_of_named(path: str) -> str:
    kind = kind_of(path) or _explicit_kind(path) or _ending_kind(path, TOKEN_EXTENSIONS)
    if kind is None:
        raise unsupported(path, [*EXTENSIONS, *EXPLICIT_EXTENSIONS, *TOKEN_EXTENSIONS])
    return kind


def _explicit_kind(path: str) -> str | None:
    return _ending_kind(path, EXPLICIT_EXTENSIONS)


def _ending_kind(path: str, kinds: dict[str, str]) -> str | None:
    return next((kind for extension, kind in kinds.items() if path.lower().endswith(extension)), None)


def _with_tokens(file: storage.FileInfo) -> storage.FileInfo:
    """The file that holds the tokens: that of an index, if the index is given."""
    if not file.path.endswith(megatron.INDEX):
        return file
    return storage.stat(f"{file.path.removesuffix(megatron.INDEX)}.bin")


def _nothing_found(headline: str, ignored: Ignored) -> SourceError:
    details = [f"supported    {' '.join(EXTENSIONS)}", *(f"note         {note}" for note in ignored.notes())]
    return SourceError(headline, *details, "Name files, directories or globs that hold text.")


def _table(sources: list[tuple[storage.FileInfo, str, str | None]]) -> pa.Table:
    files, kinds, splits = zip(*sources, strict=True)
    try:
        paths = pa.array([file.path for file in files], pa.string())
    except UnicodeEncodeError as error:
        raise SourceError(
            "the name of a file is not valid UTF-8",
            f"file         {error.object!r}",
            "Rename the file, or remove it from the sources.",
        ) from error
    columns = {
        "path": paths,
        "kind": pa.array(kinds, pa.string()).dictionary_encode(),
        "size": pa.array([file.size for file in files], pa.int64()),
        "fingerprint": pa.array([file.fingerprint for file in files], pa.string()),
    }
    if any(split is not None for split in splits):
        columns["split"] = pa.array(splits, pa.string()).dictionary_encode()
    return pa.table(columns)


class StoreGuard:
    """Recognizes token stores during the search: the one at `out`, which may not exist yet, and all others.

    The store of a run may be inside one of its source directories. Its parts, tables and log, and the exports inside
    it, have extensions of sources and appear during the run. The next call would read them as new sources.
    """

    def __init__(self, out: str | None = None) -> None:
        self._out = None if out is None else storage.identity_at(out)

    def is_marker(self, name: str) -> bool:
        """Whether a name is that of a file or directory of a store."""
        return _STORE_NAMES.fullmatch(name) is not None

    def skips(self, directory: storage.Directory) -> bool:
        """Whether a directory is a store or will be the store of this run."""
        is_store = RUN in directory.names and sum(map(self.is_marker, directory.names)) >= MIN_STORE_NAMES
        return is_store or self.is_out(directory.identity)

    def skips_name(self, directory: storage.Directory, name: str) -> bool:
        """Whether a name in a directory belongs to a store. A glob still finds other files in a store's directory."""
        return self.is_marker(name) and self.skips(directory)

    def is_out(self, identity: storage.Identity | None) -> bool:
        """Whether this is the directory of the run's own store."""
        return self._out is not None and identity == self._out

    def is_written_by_run(self, path: str) -> bool:
        """Whether the run itself writes this file. A shell that expands `*` names such files explicitly."""
        directory, _, name = path.rpartition("/")
        return self._out is not None and self.is_marker(name) and self.is_out(storage.identity_at(directory))

    def refuse_store(self, listing: storage.Listing) -> None:
        """Raise SourceError if the searched directory is itself a store."""
        if listing.searched not in listing.skipped:
            return
        if self.is_out(storage.identity_at(listing.searched)):
            raise SourceError(
                "a directory cannot be a source and the store of the same run",
                f"given        {listing.searched}",
                f"Write the store to a directory of its own: --out {os.path.join(listing.searched, 'tokens')}",
            )
        raise SourceError(
            "a token store is not a source",
            f"given        {listing.searched}",
            "A complete store can be the only source. Otherwise prepare each by itself: stores can be read together.",
        )
