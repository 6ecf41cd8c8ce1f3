"""Sources that are datasets by name: turned into addresses, and compared with what the catalogue knows of them.

A run whose files do not hold what is known is refused when it is planned, before hours of work; the rows are counted
once more when every unit is done, before the store is called complete.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenmill.errors import RunFailed, SourceError, UsageError
from tokenmill.humanize import count
from tokenmill.sources import catalog
from tokenmill.storage.addresses import HUB, OBJECT_STORES, check, scheme, shown
from tokenmill.storage.globs import matches
from tokenmill.storage.hub.address import HubAddress, parse

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tokenmill.sources.catalog import Catalog, DatasetSelection
    from tokenmill.sources.documents import Slices

COLUMN = "text"
PLAIN = re.compile(r"[\w-]+(/[\w.-]+)?")
"""What may be a dataset: its name, or by mistake its repository."""
PAGE = re.compile(r"https?://[^/]+/datasets/([^/]+/[^/]+)/(?:resolve|blob|raw|tree)/([^/]+)/?([^?]*)(\?.*)?")
"""How the Hub's own pages call a file or a folder."""


@dataclass(frozen=True, slots=True)
class ResolvedSources:
    """The sources of a call as paths and addresses, the column of their text, and the datasets among them."""

    sources: list[str]
    column: str = COLUMN
    datasets: tuple[DatasetSelection, ...] = ()
    limited: bool = False
    notes: list[str] = field(default_factory=list)

    def check_plan(self, sources: pa.Table, pieces: Sequence[Slices]) -> None:
        """Compare files and rows with what is known; raise SourceError, or note it if only some units are wanted."""
        for dataset in self.datasets:
            found = _found(sources["path"].to_pylist(), pieces, dataset.address)
            if dataset.files in (None, found[0]) and (found[1] is None or dataset.rows in (None, found[1])):
                continue
            if not self.limited:
                raise _other_files(dataset, found)
            self.notes.append(_note(dataset, found))

    def expected_rows(self) -> int | None:
        """How many rows a complete run has: where datasets are all that is read, and that is known of each."""
        rows = [dataset.rows for dataset in self.datasets]
        if self.limited or not rows or len(rows) != len(self.sources) or None in rows:
            return None
        return sum(each or 0 for each in rows)

    def check_end(self, rows: int) -> None:
        """Compare the rows of all parts, skipped ones included, with what is known; raise RunFailed."""
        expected = self.expected_rows()
        if expected not in (None, rows):
            raise RunFailed(
                f"the parts hold {count(rows, 'row')}, and {expected:,} are expected",
                *(f"dataset      {dataset.title}" for dataset in self.datasets),
                *(f"at           {dataset.address}" for dataset in self.datasets),
                "What is committed stays. To take the files as they are, run it again with that address as the SOURCE.",
            )


def resolve_sources(
    sources: str | os.PathLike[str] | Sequence[str],
    version: str | int | None = None,
    column: str | None = None,
    *,
    limited: bool = False,
) -> ResolvedSources:
    """The sources of a call, in which names of datasets have become the addresses of their files.

    Where a path has the name of a dataset, the path is meant, and a note says so.
    """
    words = [os.fspath(sources)] if isinstance(sources, str | os.PathLike) else [os.fspath(word) for word in sources]
    found: list[str] = []
    datasets: list[DatasetSelection] = []
    notes: list[str] = []
    version = None if version is None else str(version)
    for word in words:
        _refuse_addresses(word)
        known = catalog.load() if PLAIN.fullmatch(word) else catalog.Catalog({})
        if os.path.exists(word):
            notes += [f"{word} is a path here; the dataset of that name is not read"] * (word in known.entries)
            found.append(word)
        elif word in known.entries:
            datasets.append(known.choose(word, version))
            found.append(datasets[-1].address)
        else:
            _refuse_mistyped(known, word)
            found.append(word)
    if version is not None and not datasets:
        raise _version_of_nothing(version, notes)
    return ResolvedSources(found, column or _column(datasets), tuple(datasets), limited, notes)


def _found(paths: Sequence[str], pieces: Sequence[Slices], address: str) -> tuple[int, int | None]:
    """How many of the files a dataset's address means, and how many rows these hold, if they tell it."""
    wanted = parse(address)
    rows = [piece.rows for path, piece in zip(paths, pieces, strict=True) if _is_meant(path, wanted)]
    known = [int(each.sum()) for each in rows if each is not None]
    return len(rows), sum(known) if len(known) == len(rows) else None


def _is_meant(path: str, wanted: HubAddress) -> bool:
    """Whether a file is one of those at an address, in which a branch has become a commit since."""
    if scheme(path) != HUB:
        return False
    file = parse(path)
    same = file.repository == wanted.repository and (file.revision == wanted.revision or not wanted.is_pinned)
    return same and matches(file.path, wanted.path)


def _column(datasets: list[DatasetSelection]) -> str:
    columns = {dataset.column for dataset in datasets}
    if len(columns) > 1:
        raise UsageError(
            "the datasets have their text in different columns",
            *(f"{dataset.name:<12} {dataset.column}" for dataset in datasets),
            "Prepare them one by one, or say --column.",
        )
    return columns.pop() if columns else COLUMN


def _refuse_addresses(word: str) -> None:
    """Refuse what is no address that can be read from, before anything is looked at."""
    check(word)
    kind = scheme(word)
    if kind in ("", HUB, *OBJECT_STORES):
        return
    page = PAGE.fullmatch(word)
    advice = "Download it first, and name the file."
    if page and "@" not in word:
        advice = f"Write hf://datasets/{page[1]}@{page[2]}/{page[3]}"
    known = " ".join(f"{name}://" for name in (*OBJECT_STORES, HUB))
    raise UsageError(f"{kind}:// is not known", f"given        {shown(word)}", f"known        {known}", advice)


def _refuse_mistyped(known: Catalog, word: str) -> None:
    near = known.nearest(word)
    if near is not None:
        raise SourceError(
            f"no such file or directory: {word}",
            f"looked for   {os.path.abspath(word)}",
            f"Did you mean the dataset {near}? Its versions: {catalog.listed(known.entries[near])}",
        )


def _version_of_nothing(version: str, notes: list[str]) -> UsageError:
    return UsageError(
        f"--version {version} goes with the name of a dataset",
        *notes,
        "`tokenmill datasets` lists the datasets and their versions.",
    )


def _other_files(dataset: DatasetSelection, found: tuple[int, int | None]) -> SourceError:
    return SourceError(
        f"the files of {dataset.title} do not hold what is known of it",
        f"found        {_amount(*found)}",
        f"expected     {_amount(dataset.files, dataset.rows)}",
        f"at           {dataset.address}",
        "A mirror may not be complete (HF_ENDPOINT). To take the files as they are, give that address as the SOURCE.",
    )


def _note(dataset: DatasetSelection, found: tuple[int, int | None]) -> str:
    if dataset.files not in (None, found[0]):
        return f"{dataset.title} has {count(found[0], 'file')} here; {dataset.files:,} are expected"
    return f"the files of {dataset.title} hold {count(found[1] or 0, 'row')}; {dataset.rows:,} are expected"


def _amount(files: int | None, rows: int | None) -> str:
    return " with ".join(count(each, what) for each, what in ((files, "file"), (rows, "row")) if each is not None)
