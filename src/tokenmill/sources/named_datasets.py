"""Resolve dataset names to addresses, and compare the files at these addresses with the catalog.

Planning refuses a run whose files or rows differ from the catalog, before hours of work. The rows are compared once
more when all units are done, before the store is marked complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from tokenmill.errors import USAGE, RunFailed, SourceError, UsageError
from tokenmill.humanize import count
from tokenmill.sources import catalog
from tokenmill.sources.catalog import Catalog, DatasetSelection
from tokenmill.sources.documents import Slices
from tokenmill.storage.addresses import HUB, OBJECT_STORES, check, scheme, shown
from tokenmill.storage.globs import matches
from tokenmill.storage.hub.address import HubAddress, parse

DEFAULT_COLUMN = "text"
# The name of a dataset or, given by mistake, of its repository.
DATASET_OR_REPOSITORY = re.compile(r"[\w-]+(/[\w.-]+)?")
# The URL of a file or a folder on the Hub's web pages.
HUB_PAGE = re.compile(r"https?://[^/]+/datasets/([^/]+/[^/]+)/(?:resolve|blob|raw|tree)/([^/]+)/?([^?]*)(\?.*)?")


@dataclass(frozen=True, slots=True)
class ResolvedSources:
    """The sources of a call as paths and addresses, their text column, and the datasets among them.

    `limited` means that the run reads only some units.
    """

    sources: list[str]
    column: str = DEFAULT_COLUMN
    datasets: tuple[DatasetSelection, ...] = ()
    limited: bool = False
    notes: list[str] = field(default_factory=list)

    def check_plan(self, sources: pa.Table, slices: Sequence[Slices]) -> None:
        """Compare files and rows with the catalog. Raises SourceError, or adds a note if the run is limited."""
        for dataset in self.datasets:
            files, rows = _count_matching(sources["path"].to_pylist(), slices, dataset.address)
            if dataset.files in (None, files) and (rows is None or dataset.rows in (None, rows)):
                continue
            if not self.limited:
                raise _mismatch_error(dataset, files, rows)
            self.notes.append(_mismatch_note(dataset, files, rows))

    def expected_rows(self) -> int | None:
        """The rows of a complete run; None unless all sources are datasets with a known number of rows."""
        rows = [dataset.rows for dataset in self.datasets]
        if self.limited or not rows or len(rows) != len(self.sources) or None in rows:
            return None
        return sum(number or 0 for number in rows)

    def check_end(self, rows: int) -> None:
        """Raise RunFailed if the rows of all parts, skipped rows included, are not the expected number."""
        expected = self.expected_rows()
        if expected not in (None, rows):
            raise RunFailed(
                f"the parts hold {count(rows, 'row')}, and {expected:,} are expected",
                *(f"dataset      {dataset.title}" for dataset in self.datasets),
                *(f"at           {dataset.address}" for dataset in self.datasets),
                "Committed work is kept. To read the files as they are, run it again with that address as the SOURCE.",
            )


def resolve_sources(
    sources: str | os.PathLike[str] | Sequence[str],
    version: str | int | None = None,
    column: str | None = None,
    *,
    limited: bool = False,
) -> ResolvedSources:
    """Replace the names of datasets by the addresses of their files.

    A path that has the name of a dataset is read as a path, and a note says so.
    """
    given = [os.fspath(sources)] if isinstance(sources, str | os.PathLike) else [os.fspath(item) for item in sources]
    resolved: list[str] = []
    datasets: list[DatasetSelection] = []
    notes: list[str] = []
    version = None if version is None else str(version)
    for source in given:
        _refuse_unknown_scheme(source)
        known = catalog.load() if DATASET_OR_REPOSITORY.fullmatch(source) else catalog.Catalog({})
        if os.path.exists(source):
            notes += [f"{source} is a local path, so the dataset of that name is not read"] * (source in known.entries)
            resolved.append(source)
        elif source in known.entries:
            datasets.append(known.choose(source, version))
            resolved.append(datasets[-1].address)
        else:
            _refuse_mistyped(known, source)
            resolved.append(source)
    if version is not None and not datasets:
        advice = "`tokenmill datasets` lists the datasets and their versions."
        raise UsageError(f"--version {version} needs the name of a dataset", *notes, advice)
    return ResolvedSources(resolved, column or _common_column(datasets), tuple(datasets), limited, notes)


def _count_matching(paths: Sequence[str], slices: Sequence[Slices], address: str) -> tuple[int, int | None]:
    """The number of files at a dataset's address, and of their rows, or None if a file does not declare its rows."""
    parsed = parse(address)
    rows = [file.rows for path, file in zip(paths, slices, strict=True) if _is_at_address(path, parsed)]
    declared = [int(counts.sum()) for counts in rows if counts is not None]
    return len(rows), sum(declared) if len(declared) == len(rows) else None


def _is_at_address(path: str, address: HubAddress) -> bool:
    """Whether a file is at an address. The file's path has a commit where the address may have a branch."""
    if scheme(path) != HUB:
        return False
    file = parse(path)
    same = file.repository == address.repository and (file.revision == address.revision or not address.is_pinned)
    return same and matches(file.path, address.path)


def _common_column(datasets: list[DatasetSelection]) -> str:
    columns = {dataset.column for dataset in datasets}
    if len(columns) > 1:
        raise UsageError(
            "the datasets have their text in different columns",
            *(f"{dataset.name:<12} {dataset.column}" for dataset in datasets),
            "Prepare them one by one, or give --column.",
        )
    return columns.pop() if columns else DEFAULT_COLUMN


def _refuse_unknown_scheme(source: str) -> None:
    """Raise UsageError for an address that cannot be read, before any source is accessed."""
    check(source)
    kind = scheme(source)
    if kind in ("", HUB, *OBJECT_STORES):
        return
    page = HUB_PAGE.fullmatch(source)
    advice = "Download it first, and name the file."
    if page and "@" not in source:
        advice = f"Write hf://datasets/{page[1]}@{page[2]}/{page[3]}"
    schemes = " ".join(f"{name}://" for name in (*OBJECT_STORES, HUB))
    raise UsageError(f"{kind}:// is not known", f"given        {shown(source)}", f"known        {schemes}", advice)


def _refuse_mistyped(known: Catalog, source: str) -> None:
    nearest = known.nearest(source)
    if nearest is not None:
        raise SourceError(
            f"no such file or directory: {source}",
            f"looked for   {os.path.abspath(source)}",
            f"Did you mean the dataset {nearest}? Its versions: {catalog.versions_text(known.entries[nearest])}",
            exit_code=USAGE,
        )


def _mismatch_error(dataset: DatasetSelection, files: int, rows: int | None) -> SourceError:
    return SourceError(
        f"the files of {dataset.title} are not as expected",
        f"found        {_amount(files, rows)}",
        f"expected     {_amount(dataset.files, dataset.rows)}",
        f"at           {dataset.address}",
        "A mirror may not be complete (HF_ENDPOINT). To read the files as they are, give that address as the SOURCE.",
    )


def _mismatch_note(dataset: DatasetSelection, files: int, rows: int | None) -> str:
    if dataset.files not in (None, files):
        return f"{dataset.title} has {count(files, 'file')} here; {dataset.files:,} are expected"
    return f"the files of {dataset.title} hold {count(rows or 0, 'row')}; {dataset.rows:,} are expected"


def _amount(files: int | None, rows: int | None) -> str:
    return " with ".join(count(value, what) for value, what in ((files, "file"), (rows, "row")) if value is not None)
