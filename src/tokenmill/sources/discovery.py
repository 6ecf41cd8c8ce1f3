"""Which files a run reads: found by path, directory or glob, told apart by their ending, in a natural, stable order."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources.documents import SourceFile

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
    """The sources, one row each (path, kind, size, fingerprint), and the files in directories that are none."""

    table: pa.Table
    ignored: list[str]


def kind_of(path: str) -> str | None:
    """The kind of source that a file's ending tells, in upper or lower case."""
    parts = os.path.basename(path).lower().rsplit(".", 2)[1:]
    return ENDINGS.get(f".{'.'.join(parts)}") or ENDINGS.get(f".{parts[-1]}") if parts else None


def discover(patterns: Sequence[str], kind: str | None = None) -> Discovery:
    """The sources that paths, directories and globs name: arguments as given, natural order inside each.

    They are of the kind given, or of the one that their ending tells.
    """
    files: list[storage.FileInfo] = []
    kinds: list[str] = []
    ignored: list[str] = []
    for pattern in patterns:
        named, found = storage.find(pattern)
        known_before = len(files)
        for file in sorted(found, key=lambda file: natural_key(file.path)):
            found_kind = kind or (_kind_of_named(file.path) if named else kind_of(file.path))
            if found_kind is None:
                ignored.append(file.path)
            else:
                files.append(file)
                kinds.append(found_kind)
        if len(files) == known_before:
            raise _nothing_found(f"no source in {pattern}", ignored)
    if not files:
        raise _nothing_found("no source given", ignored)
    _check_named_once(file.path for file in files)
    return Discovery(_table(files, kinds), ignored)


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


def _nothing_found(headline: str, ignored: list[str]) -> SourceError:
    details = [f"known        {' '.join(ENDINGS)}"]
    if ignored:
        details.append(f"ignored      {len(ignored)} other files, such as {ignored[0]}")
    return SourceError(headline, *details, "Name files, directories or globs that hold text.")


def _check_named_once(paths: Iterable[str]) -> None:
    repeated = next(_repeated(paths), None)
    if repeated is not None:
        raise SourceError(
            "a source is named twice",
            f"file         {repeated}",
            "Every document is tokenized once: name each file by one argument only.",
        )


def _repeated(paths: Iterable[str]) -> Iterator[str]:
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            yield path
        seen.add(path)


def _table(files: list[storage.FileInfo], kinds: list[str]) -> pa.Table:
    try:
        paths = pa.array([file.path for file in files], pa.string())
    except UnicodeEncodeError as error:
        raise SourceError("the name of a file is not valid UTF-8", f"file         {error.object!r}") from error
    columns = {
        "path": paths,
        "kind": pa.array(kinds, pa.string()).dictionary_encode(),
        "size": pa.array([file.size for file in files], pa.int64()),
        "fingerprint": pa.array([file.fingerprint for file in files], pa.string()),
    }
    return pa.table(columns)
