"""Sources that are no files: rows of Python, and pipes. They are found in files, or copied to the spool of a store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tokenmill.errors import UsageError
from tokenmill.executors.progress import Reporter
from tokenmill.humanize import count
from tokenmill.pipeline.datasets import hf_datasets
from tokenmill.pipeline.rows.pipes import is_pipe, shown_pipe, stream_of_pipes
from tokenmill.pipeline.rows.spool import OpenRows, spool_rows
from tokenmill.pipeline.rows.stream import stream_of
from tokenmill.sources import Discovery, SplitChoice, discover
from tokenmill.sources.ignored import IgnoredBuilder
from tokenmill.storage import Folder
from tokenmill.store.chain import read_head
from tokenmill.store.job import read_run
from tokenmill.store.reader import Store
from tokenmill.store.spool import ARROW
from tokenmill.store.tables import read_sources


class Spooled(list[Any]):
    """Stands for the rows of a spool that is there already, as the sources of a call."""


@dataclass(frozen=True, slots=True)
class GivenRows:
    """Rows that a call was given in place of paths. `files` hold them, each with its split; else they are copied."""

    what: str
    open: OpenRows
    files: Sequence[tuple[str, str | None]] = ()

    @property
    def needs_spool(self) -> bool:
        """Whether the rows have to be copied before they are read."""
        return not self.files

    def require_one_store(self, *, tokenizers: int, is_shared: bool) -> None:
        """Refuse what a spool cannot serve: several stores, ranks, and machines that do not have it."""
        advice = "Write the rows to files first, such as Parquet or JSON Lines, and give these."
        if self.needs_spool and tokenizers > 1:
            raise UsageError(f"rows from {self.what} are prepared with one tokenizer", advice)
        if self.needs_spool and is_shared:
            raise UsageError(f"rows from {self.what} cannot be shared by ranks, or by the nodes of a cluster", advice)

    def discover(self, folder: Folder | None, report: Reporter, *, force: bool = False) -> Discovery:
        """The files of the rows. Those that are in no file are copied to the spool of the store in `folder`."""
        if self.files:
            return _discovery(self.files, ARROW)
        if folder is None:
            raise UsageError(f"plan reads only files, not {self.what}", "Write the rows to a file, or use prepare.")
        spool = spool_rows(folder, self.open, self.what, report, force=force)
        run = read_run(folder)
        if run is not None and (spool.dropped or read_head(folder).number):
            # The files are gone, or an erasure wrote them again: they are known as they were.
            return Discovery(read_sources(folder, run).drop_columns("identity"), IgnoredBuilder().build([]))
        return _discovery([(folder.path(file.name), file.split) for file in spool.files], spool.kind)


def rows_of_call(sources: Any, stdin: str | None, splits: SplitChoice) -> GivenRows | None:
    """The rows that are given as sources; None if these are paths of files. Nothing is read."""
    if isinstance(sources, Spooled):
        return GivenRows("a writer", lambda: None)
    if isinstance(sources, str | os.PathLike | Store):
        sources = [sources]
    if not isinstance(sources, list | tuple) or (
        sources and not any(isinstance(each, str | os.PathLike | Store) for each in sources)
    ):
        _refuse_stdin(stdin)
        return _of_objects(sources, splits)
    paths = [os.fspath(each) for each in sources if isinstance(each, str | os.PathLike)]
    if len(paths) < len(sources) and not any(isinstance(each, Store) for each in sources):
        raise UsageError(
            "sources has to be a path, a list of paths, or rows",
            f"given        {', '.join(type(each).__name__ for each in sources)}",
        )
    pipes = [path for path in paths if is_pipe(path)]
    if not pipes:
        _refuse_stdin(stdin)
        return None
    if len(pipes) < len(sources):
        other = next(path for path in paths if path not in pipes)
        raise UsageError(
            "pipes and files cannot be sources of one run",
            f"pipe         {pipes[0]}",
            f"file         {other}",
            "Give the files to the pipe, too, or prepare two stores: exports and loaders read them as one.",
        )
    splits.refuse_without(splits=False, configs=False)

    def open_pipes() -> Mapping[str | None, Any] | None:
        stream = stream_of_pipes(pipes, stdin)
        return None if stream is None else {None: stream}

    return GivenRows(", ".join(map(shown_pipe, pipes)), open_pipes)


def _refuse_stdin(stdin: str | None) -> None:
    if stdin is not None:
        raise UsageError("--stdin has no effect: no source is a pipe", "Standard input is the source -.")


def _of_objects(rows: Any, splits: SplitChoice) -> GivenRows:
    what = f"a {type(rows).__name__}"
    datasets = hf_datasets.splits(rows)
    if datasets is None:
        splits.refuse_without(splits=False, configs=False)
        stream = stream_of(rows)
        return GivenRows(what, lambda: {None: stream})
    splits.refuse_without(splits=None not in datasets, configs=False)
    if None not in datasets:
        names = [str(name) for name in datasets]
        lines = [f"{name:<12} {_rows_text(dataset)}" for name, dataset in datasets.items()]
        wanted = splits.wanted(what, names, lines)
        datasets = {name: datasets[name] for name in wanted or names}
    files = {name: hf_datasets.files_in_place(dataset) for name, dataset in datasets.items()}
    if all(files.values()):
        in_place = [(path, name) for name, paths in files.items() for path in paths]
        return GivenRows(what, lambda: None, in_place)
    return GivenRows(what, lambda: {name: hf_datasets.row_stream(dataset) for name, dataset in datasets.items()})


def _rows_text(dataset: Any) -> str:
    return count(len(dataset), "row") if hasattr(dataset, "__len__") else "streamed"


def _discovery(files: Sequence[tuple[str, str | None]], kind: str) -> Discovery:
    found = discover([path for path, _ in files], kind)
    splits = [split for _, split in files]
    if all(split is None for split in splits):
        return found
    column = pa.array(splits, pa.string()).dictionary_encode()
    return Discovery(found.table.append_column("split", column), found.ignored)
