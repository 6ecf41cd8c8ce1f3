"""Splits the sources into units without risk to the process of the caller.

Native code parses the footers of Parquet and Arrow files, and a damaged footer may kill the process, so workers do it.
Text is split without being read. Of JSON Lines some lines of some files are read, so that a column that none of them
has is refused before any work.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import SourceError, TokenmillError
from tokenmill.executors.fan_out import run_all
from tokenmill.executors.outcomes import Died, Executor, Failed, RetryPolicy
from tokenmill.pipeline.unit import plan
from tokenmill.sources import NATIVE_KINDS, file_at, files_between, split_file
from tokenmill.sources.documents import ReadOptions, Slices, SourceFile
from tokenmill.sources.foreign import refuse_foreign
from tokenmill.sources.missing_column import (
    NoColumn,
    check_first_lines,
    refuse_messages,
    search_lines,
    with_other_source,
)
from tokenmill.sources.text_columns import template_of, text_template
from tokenmill.storage import Threads

Files = tuple[SourceFile, ...]

# How many files a worker splits at a time.
MAX_FILES_PER_BATCH = 64

# Few files are divided into about this many batches, so that all workers get some.
MIN_BATCHES = 8

# In how many JSON Lines files, spread over all of them, the column is looked for.
MAX_FILES_LOOKED_AT = 64

# How many records of files are in memory at a time: there may be millions.
FILES_IN_MEMORY = 4096

# A batch that kills its worker is divided into single files, which get two attempts.
BATCH_POLICY = RetryPolicy(max_crashes=1, max_kills=10)
SINGLE_FILE_POLICY = RetryPolicy(max_crashes=2, max_kills=10)


def plan_units(  # noqa: PLR0913 - what is split, how, by which executor, and two callbacks
    sources: pa.Table,
    options: ReadOptions,
    unit_bytes: int,
    executor: Executor,
    *,
    check: Callable[[pa.Table, list[Slices]], None] = lambda *_: None,
    on_progress: Callable[[int], None] = lambda _: None,
) -> pa.Table:
    """The plan: the sources as units of about `unit_bytes` of text, in order.

    `check` gets the slices of all sources. `on_progress` gets the number of sources that are split so far.
    """
    _refuse_foreign(sources)
    slices: dict[int, Slices] = {}
    for file in _files(sources, native=False):
        slices[file.index] = split_file(file, options, unit_bytes)
        plan.check_required(file, options.required)
    _require_keys(sources, options.required)
    having = _find_text(sources, text_template(options).names)
    if having is not None and options.join is None and not options.messages:
        refuse_messages(having, template_of(options).names)
    splitter = _Splitter(plan.SplitFiles(options, unit_bytes), executor, slices, on_progress)
    try:
        splitter.run(_batches(sources))
    except NoColumn as error:
        having = having or splitter.first(sources)
        if having is None:
            raise
        raise with_other_source(error, having) from error
    ordered = [slices[index] for index in range(len(sources))]
    check(sources, ordered)
    return plan.build_plan(ordered, unit_bytes)


@dataclass
class _Splitter:
    """Splits files in workers, and keeps the errors of files that cannot be split."""

    function: plan.SplitFiles
    executor: Executor
    slices: dict[int, Slices]
    on_progress: Callable[[int], None]
    _errors: dict[int, TokenmillError] = field(default_factory=dict, init=False)
    _fatal: list[Files] = field(default_factory=list, init=False)

    def run(self, batches: Iterable[Files]) -> None:
        """Split every file; raise the error of the first file that cannot be split."""
        self._dispatch(batches, BATCH_POLICY)
        fatal, self._fatal = self._fatal, []
        self._dispatch(((file,) for batch in fatal for file in batch), SINGLE_FILE_POLICY)
        if self._errors:
            raise self._errors[min(self._errors)]

    def first(self, sources: pa.Table) -> SourceFile | None:
        """The first file that was parsed, and therefore has the column."""
        return next((file for file in _files(sources, native=True) if file.index in self.slices), None)

    def _dispatch(self, batches: Iterable[Files], policy: RetryPolicy) -> None:
        until_error = itertools.takewhile(lambda _: not self._errors, batches)
        for done in run_all(self.executor, self.function, until_error, policy=policy, on_failure=self._fail):
            self._take(done.item, done.value)

    def _fail(self, failure: Failed[Files] | Died[Files]) -> None:
        files = failure.item
        if isinstance(failure, Died) and len(files) > 1:
            self._fatal.append(files)
        else:
            self._errors[files[0].index] = _failure(failure) if isinstance(failure, Failed) else _death(failure)

    def _take(self, files: Files, result: list[Slices] | TokenmillError) -> None:
        if isinstance(result, TokenmillError):
            self._errors[files[0].index] = result
        else:
            self.slices.update(zip((file.index for file in files), result, strict=True))
            self.on_progress(len(self.slices))


def _files(sources: pa.Table, *, native: bool) -> Iterator[SourceFile]:
    """The files that native code parses, or the others."""
    is_native = pc.is_in(sources["kind"].cast(pa.string()), pa.array(NATIVE_KINDS))
    if pc.sum(is_native).as_py() == (0 if native else len(sources)):
        return
    for start in range(0, len(sources), FILES_IN_MEMORY):
        for file in files_between(sources, start, start + FILES_IN_MEMORY):
            if (file.kind in NATIVE_KINDS) == native:
                yield file


def _batches(sources: pa.Table) -> Iterator[Files]:
    files = _files(sources, native=True)
    size = min(MAX_FILES_PER_BATCH, len(sources) // MIN_BATCHES + 1)
    while batch := tuple(itertools.islice(files, size)):
        yield batch


def _find_text(sources: pa.Table, names: tuple[str, ...]) -> SourceFile | None:
    """The first JSON Lines file that has one of the columns. Raises NoColumn if no line of a corpus has one.

    Files of other kinds have the text, or raise when they are split. Then lines without a column are skipped rows.
    """
    having, missing = _find_column(sources, names)
    others = ((None, missing), *(_find_column(sources, (name,)) for name in names if having and len(names) > 1))
    error = next((lacking for _, lacking in others if lacking is not None), None)
    if error is not None and pc.all(pc.equal(sources["kind"].cast(pa.string()), "jsonl")).as_py():
        raise error
    return having


def _find_column(
    sources: pa.Table, columns: tuple[str, ...], *, through_lists: bool = True
) -> tuple[SourceFile | None, NoColumn | None]:
    """The first JSON Lines file that has one of the columns, or the error if none has one in the lines looked at."""
    indices = np.flatnonzero(pc.equal(sources["kind"].cast(pa.string()), "jsonl").to_numpy())
    if not len(indices):
        return None, None
    chosen = indices[plan.spread(len(indices), MAX_FILES_LOOKED_AT)]
    files = [file_at(sources, index) for index in chosen.tolist()]
    with Threads(8) as pool:  # mostly waiting
        results = list(pool.map(lambda file: check_first_lines(file, *columns, through_lists=through_lists), files))
    having = next((file for file, (has_it, _) in zip(files, results, strict=True) if has_it), None)
    if having is not None:
        return having, None
    is_all = len(files) == len(indices)
    return search_lines(files, *columns, through_lists=through_lists, is_all=is_all)


def _refuse_foreign(sources: pa.Table) -> None:
    """Raise SourceError if a file that is looked at is not what its name says."""
    is_native = pc.is_in(sources["kind"].cast(pa.string()), pa.array(NATIVE_KINDS))
    indices = np.flatnonzero(~is_native.to_numpy())
    if not len(indices):
        return
    chosen = indices[plan.spread(len(indices), MAX_FILES_LOOKED_AT)]
    with Threads(8) as pool:  # mostly waiting
        list(pool.map(refuse_foreign, [file_at(sources, index) for index in chosen.tolist()]))


def _require_keys(sources: pa.Table, names: tuple[str, ...]) -> None:
    """Raise SourceError if no JSON Lines file that was looked at has a key that is required."""
    for name in names:
        having, missing = _find_column(sources, (name,), through_lists=False)
        if having is None and missing is not None:
            advice = ["The path of such a column cannot go through lists."] if "." in name else []
            raise SourceError(missing.headline, *missing.details[:-1], *advice, plan.REQUIRED_ADVICE)


def _failure(failure: Failed[Files]) -> SourceError:
    return SourceError(
        "a source cannot be cut into units",
        f"file         {failure.item[0].path}",
        *([f"or one of    the {len(failure.item) - 1} files after it"] if len(failure.item) > 1 else []),
        f"reason       {failure.kind}: {failure.message or 'no message'}",
    )


def _death(death: Died[Files]) -> SourceError:
    return SourceError(
        "a worker died while it read the footer of a source",
        f"file         {death.item[0].path}",
        f"reason       {death.worker} {death.end}",
        *([f"last output  {death.last_line}"] if death.last_line else []),
        "The file is probably damaged: compare it with the original.",
    )
