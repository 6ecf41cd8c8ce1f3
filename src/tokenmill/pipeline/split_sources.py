"""Cut the sources into units, where no file can harm the process of the caller.

The footers of Parquet and Arrow files are parsed by native code, which some damages of a file kill, so workers do it. A
text needs no reading to be cut; of JSON Lines only the first lines of some files are looked at, so that a column which
is not there is refused before any work.
"""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import SourceError, TokenmillError
from tokenmill.executors.fan_out import run_all
from tokenmill.executors.outcomes import Died, Failed, RetryPolicy
from tokenmill.pipeline import plan
from tokenmill.sources import NATIVE_KINDS, file_at, files_between, split_file
from tokenmill.sources.missing_column import NoColumn, check_first_lines, with_other_source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokenmill.executors.outcomes import Executor
    from tokenmill.sources.documents import ReadOptions, Slices, SourceFile

    Files = tuple[SourceFile, ...]

MAX_FILES_PER_BATCH = 64
MIN_CHUNKS = 8
"""Into how many chunks a few files are cut at least, so that all workers get some."""

MAX_LOOKED_AT = 64
"""How many JSON Lines files, spread over all of them, are looked at for the column."""

FILES_IN_MEMORY = 4096
TOGETHER = RetryPolicy(max_crashes=1, max_kills=10)
ALONE = RetryPolicy(max_crashes=2, max_kills=10)


def plan_units(  # noqa: PLR0913 - what is cut, how, by whom, and who looks at it
    sources: pa.Table,
    options: ReadOptions,
    unit_bytes: int,
    limit_units: int | None,
    executor: Executor,
    *,
    check: Callable[[pa.Table, list[Slices]], None] = lambda *_: None,
    told: Callable[[int], None] = lambda _: None,
) -> pa.Table:
    """The plan: the sources as units of about `unit_bytes` of text, in order.

    All slices of all sources are shown to `check`, also where only some units are wanted; how many sources are cut is
    `told` now and then.
    """
    pieces: dict[int, Slices] = {}
    for file in _files(sources, native=False):
        pieces[file.index] = split_file(file, options, unit_bytes)
    having, lacking = _look(sources, options.column)
    splitting = _Splitting(plan.SplitFiles(options, unit_bytes), executor, pieces, told)
    try:
        splitting.run(itertools.islice(_chunks(sources), None if lacking is None else 1))
    except NoColumn as error:
        lacking = error
    if lacking is not None:
        having = having or splitting.first(sources)
        raise lacking if having is None else with_other_source(lacking, having)
    ordered = [pieces[index] for index in range(len(sources))]
    check(sources, ordered)
    return plan.build_plan(ordered, unit_bytes, limit_units)


class _Splitting:
    """Files on their way to slices; what is wrong with the first of those that cannot be cut."""

    def __init__(
        self, function: plan.SplitFiles, executor: Executor, pieces: dict[int, Slices], told: Callable[[int], None]
    ) -> None:
        self._function = function
        self._executor = executor
        self._pieces = pieces
        self._told = told
        self._errors: dict[int, TokenmillError] = {}
        self._deadly: list[Files] = []

    def run(self, chunks: Iterable[Files]) -> None:
        """Cut every file; raise SourceError if one cannot be cut."""
        self._give_out(chunks, TOGETHER)
        deadly, self._deadly = self._deadly, []
        self._give_out(((file,) for chunk in deadly for file in chunk), ALONE)
        if self._errors:
            raise self._errors[min(self._errors)]

    def first(self, sources: pa.Table) -> SourceFile | None:
        """The first file that was parsed, and therefore has the column."""
        return next((file for file in _files(sources, native=True) if file.index in self._pieces), None)

    def _give_out(self, chunks: Iterable[Files], policy: RetryPolicy) -> None:
        wanted = itertools.takewhile(lambda _: not self._errors, chunks)
        for done in run_all(self._executor, self._function, wanted, policy=policy, on_failure=self._fail):
            self._take(done.item, done.value)

    def _fail(self, failure: Failed[Files] | Died[Files]) -> None:
        files = failure.item
        if isinstance(failure, Died) and len(files) > 1:
            self._deadly.append(files)
        else:
            self._errors[files[0].index] = _failure(failure) if isinstance(failure, Failed) else _death(failure)

    def _take(self, files: Files, answer: list[Slices] | TokenmillError) -> None:
        if isinstance(answer, TokenmillError):
            self._errors[files[0].index] = answer
        else:
            self._pieces.update(zip((file.index for file in files), answer, strict=True))
            self._told(len(self._pieces))


def _files(sources: pa.Table, *, native: bool) -> Iterator[SourceFile]:
    """The files that are parsed by native code, or the others; some at a time, as there may be millions."""
    is_native = pc.is_in(sources["kind"].cast(pa.string()), pa.array(NATIVE_KINDS))
    if pc.sum(is_native).as_py() == (0 if native else len(sources)):
        return
    for start in range(0, len(sources), FILES_IN_MEMORY):
        for file in files_between(sources, start, start + FILES_IN_MEMORY):
            if (file.kind in NATIVE_KINDS) == native:
                yield file


def _chunks(sources: pa.Table) -> Iterator[Files]:
    files = _files(sources, native=True)
    size = min(MAX_FILES_PER_BATCH, len(sources) // MIN_CHUNKS + 1)
    while chunk := tuple(itertools.islice(files, size)):
        yield chunk


def _look(sources: pa.Table, column: str) -> tuple[SourceFile | None, NoColumn | None]:
    """A JSON Lines file that has the column, if there are such files; what is wrong with the first that has not."""
    places = np.flatnonzero(pc.equal(sources["kind"].cast(pa.string()), "jsonl").to_numpy())
    if not len(places):
        return None, None
    chosen = places[np.unique(np.linspace(0, len(places) - 1, min(MAX_LOOKED_AT, len(places))).astype(int))]
    files = [file_at(sources, place) for place in chosen.tolist()]
    with ThreadPoolExecutor(8) as pool:  # waiting, more than work
        found = list(pool.map(check_first_lines, files, itertools.repeat(column)))
    having = next((file for file, (has_it, _) in zip(files, found, strict=True) if has_it), None)
    return having, next((error for _, error in found if error is not None), None)


def _failure(failure: Failed[Files]) -> SourceError:
    return SourceError(
        "a source cannot be cut into units",
        f"file         {failure.item[0].path}",
        *([f"or one of    the {len(failure.item) - 1} files after it"] if len(failure.item) > 1 else []),
        f"reason       {failure.kind}: {failure.message or 'no message'}",
    )


def _death(death: Died[Files]) -> SourceError:
    return SourceError(
        "reading the footer of a source kills its reader",
        f"file         {death.item[0].path}",
        f"reason       {death.worker} {death.how}",
        *([f"it said      {death.last_line}"] if death.last_line else []),
        "It is damaged: compare it with its origin.",
    )
