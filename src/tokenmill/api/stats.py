"""Take stock of a store: a parallel pass over its parts, and one over each column of its sources that is asked for."""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tokenmill.analysis import PRELOAD, duplicates, totals
from tokenmill.analysis.by_column import CountValues, ValueCounts
from tokenmill.analysis.count_parts import CountParts, TokenRange
from tokenmill.analysis.history import read_history
from tokenmill.analysis.provenance import provenance, skipped_rows
from tokenmill.analysis.statistics import Duplicates, Statistics
from tokenmill.errors import CorruptStore, SourceError, StoreError, UsageError
from tokenmill.executors.fan_out import PATIENT, FanOut
from tokenmill.executors.messages import describe_death, raised_again, work_failed
from tokenmill.executors.outcomes import Died, Done, Item, Pool, Value
from tokenmill.executors.session import LOCAL, open_executor
from tokenmill.humanize import size
from tokenmill.pipeline import plan as planning
from tokenmill.pipeline.resources import Resources, plan_resources
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.listed_parts import ListedParts
from tokenmill.tokenizers.token_bytes import token_bytes_lookup

if TYPE_CHECKING:
    from tokenmill.executors import progress
    from tokenmill.storage import Folder

MAX_IDS = 1 << 23
"""Largest vocabulary whose ids are counted: many times those there are."""

DOCUMENT_WEIGHT = 32
"""What a document costs beside its tokens, in tokens."""

MIN_STRETCH, MAX_STRETCH = 4 << 20, 128 << 20
STRETCHES_PER_WORKER = 16
MAX_RANGE_BYTES = 256 << 20
UNITS_PER_BATCH = 16
BATCH_BYTES = 4 << 20
KINDS = {kind.__name__: kind for kind in (CorruptStore, SourceError, StoreError, UsageError)}


def stats(  # noqa: PLR0913 - the options of the command, by their names
    directory: str,
    *,
    by: str | Sequence[str] = (),
    workers: int | None = None,
    memory: str | int | None = None,
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> Statistics:
    """Count what a complete store holds: tokens, lengths, sources, vocabulary, duplicates, and the course of its run.

    With `by`, the sources are read again, that column only, and tokens are counted by its values. What tells equal
    documents takes up to 36 bytes for each document in the directory for temporary files, and is removed at the end.
    """
    folder = folder_at(directory)
    run = layout.require_run(folder)
    if run.job.tokenizer.vocabulary_size > MAX_IDS:
        raise UsageError(f"a vocabulary of {run.job.tokenizer.vocabulary_size:,} ids is too large to be counted")
    columns = list(dict.fromkeys([by] if isinstance(by, str) else by))
    manifest = layout.require_manifest(folder, run)
    sources = layout.read_sources(folder, run)
    with _scratch() as scratch, open_executor(LOCAL, PRELOAD, executor, reporter) as (pool, report):
        means = plan_resources(workers, memory, most_workers=max(run.units, 1), room=pool.room)
        pool.start(means.workers, means.worker_bytes)
        crew = FanOut(pool, report, means.workers, np.dtype(run.job.tokenizer.dtype).itemsize)
        census = _Census(folder, run, manifest, sources, crew, means, scratch)
        values = {column: census.by_column(column) for column in columns}  # first: a column may not be there
        census.count_parts()
        found = census.find_duplicates()
    return census.figures(found, values)


@contextmanager
def _scratch() -> Iterator[str]:
    """A directory of our own that is gone afterwards, whatever happens."""
    with tempfile.TemporaryDirectory(prefix="tokenmill-census-", ignore_cleanup_errors=True) as directory:
        yield directory


@dataclass
class _Census:
    """One store that is counted."""

    folder: Folder
    run: layout.Run
    manifest: pa.Table
    sources: pa.Table
    crew: FanOut
    means: Resources
    scratch: str
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.parts = ListedParts.of(self.folder, self.run, self.manifest)
        self.tally = totals.Totals(self.run.job.tokenizer.vocabulary_size, self.run.sources)
        self.documents, self.tokens = (self.manifest[name].to_numpy() for name in ("documents", "tokens"))
        self.stretches = _stretches(self.tokens + DOCUMENT_WEIGHT * self.documents, self.means.workers)
        self.ranges = self._ranges()

    def count_parts(self) -> None:
        """One pass over all parts."""
        scratch = self.scratch if self.ranges else None
        function = CountParts(self.folder.root, self.run.job, self.parts, scratch, self.ranges)
        self.crew.begin("count", int(self.tokens.sum()))
        for done in _each(self.crew, function, self.stretches, lambda it: f"parts {it.start} to {it.stop - 1}"):
            self.tally.add(done.value)
            self.crew.advance(int(self.tokens[done.item.start : done.item.stop].sum()))
        totals = int(self.documents.sum()), int(self.tokens.sum())
        if (self.tally.document_count, self.tally.token_count) != totals:
            headline = f"the parts of {self.folder.root} do not hold what its manifest says"
            raise CorruptStore(headline, "`tokenmill verify` tells which.")

    def find_duplicates(self) -> Duplicates | None:
        """Compare the hashes that the pass has written."""
        if not self.ranges:
            return None
        function = duplicates.CountDuplicates(self.scratch, len(self.stretches), self.ranges)
        found = duplicates.DuplicateCounts()
        for done in _each(self.crew, function, range(self.ranges), lambda it: f"hashes {it} of {self.ranges}"):
            found = duplicates.join(found, done.value)
        return totals.duplicate_figures(found, self.sources["path"])

    def by_column(self, column: str) -> ValueCounts:
        """Count tokens by the values of a column. What is too much is folded in the order of units, always the same."""
        function = CountValues(self.folder.root, self.run.job, self.parts, column, BATCH_BYTES)
        plan = layout.read_plan(self.folder, self.run)
        tasks = planning.tasks(plan, self.sources, range(self.run.units))
        counts, is_said = ValueCounts(), False
        self.crew.begin(f"by {column}", int(self.tokens.sum()))
        while some := list(islice(tasks, UNITS_PER_BATCH * self.means.workers)):
            if counts.missing and not counts.is_known and not is_said:
                self.crew.report.say(f"no source so far has the column {column!r}: the others are looked at")
                is_said = True
            found: dict[int, ValueCounts] = {}
            for done in _each(self.crew, function, some, lambda it: f"unit {it.unit}"):
                found[done.item.unit] = done.value
                self.crew.advance(int(self.tokens[done.item.unit]))
            for unit in sorted(found):
                counts.join(found[unit])
        counts.require_column()
        return counts

    def _ranges(self) -> int:
        """In how many ranges hashes are sorted; 0 if there is no room for them."""
        needed = int(self.documents.sum()) * duplicates.RECORD.itemsize
        free = shutil.disk_usage(self.scratch).free
        if needed > 0.9 * free:
            self.notices.append(
                f"duplicates were not looked for: they take {size(needed)} of temporary files, and"
                f" {size(free)} are free in {tempfile.gettempdir()}; TMPDIR names another place"
            )
            return 0
        at_once = min(self.means.worker_bytes // (2 * duplicates.SORTING_FACTOR), MAX_RANGE_BYTES)
        least = self.means.workers if needed > 1 << 22 else 1
        return max(math.ceil(needed / at_once), least)

    def figures(self, found: Duplicates | None, values: dict[str, ValueCounts]) -> Statistics:
        """All that was found out."""
        total, text_bytes = self.tally.token_count, self.tally.text_bytes
        spec = self.run.job.tokenizer
        lookup = token_bytes_lookup(spec, layout.read_vocabulary(self.folder, spec))
        return Statistics(
            directory=self.folder.root,
            documents=self.tally.document_count,
            tokens=total,
            text_bytes=text_bytes,
            bytes_per_token=round(text_bytes / total, 4) if total else None,
            bytes_per_token_bins=self.tally.ratios.tolist() if self.tally.faithful else None,
            lengths=totals.length_figures(self.tally.lengths),
            vocabulary=totals.vocabulary_figures(self.tally.tokens, lookup),
            sources=totals.source_figures(self.tally, self.sources["path"]),
            columns=[totals.value_figures(it, each, faithful=self.tally.faithful) for it, each in values.items()],
            duplicates=found,
            skipped=skipped_rows(self.folder, self.manifest, self.tally.skipped, self.notices),
            history=read_history(self.folder, self.notices),
            origin=provenance(self.folder, self.run),
            notices=self.notices,
        )


def _each(
    crew: FanOut, function: Callable[[Item], Value], items: Iterable[Item], describe: Callable[[Item], str]
) -> Iterator[Done[Item, Value]]:
    """What is done, as it comes. The first thing that cannot be done ends it: figures of the rest would be none."""
    for outcome in crew.pool.run(function, items, PATIENT):
        if isinstance(outcome, Done):
            yield outcome
        elif not isinstance(outcome, Died):
            if outcome.explained and outcome.kind in KINDS:
                raise raised_again(outcome, KINDS[outcome.kind])
            raise work_failed([outcome], describe)
        elif outcome.final:
            raise work_failed([outcome], describe)
        else:
            crew.deaths += 1
            crew.report.say(f"{describe_death(outcome, describe(outcome.item))}; it is tried again")


def _stretches(weights: np.ndarray, workers: int) -> list[TokenRange]:
    """Parts that are counted together: enough for all workers, and few enough to be held."""
    if not len(weights):
        return []
    wanted = min(max(int(weights.sum()) // (STRETCHES_PER_WORKER * workers), MIN_STRETCH), MAX_STRETCH)
    group = (np.cumsum(weights) - weights) // wanted
    starts = np.flatnonzero(np.diff(group, prepend=-1)).tolist()
    return [
        TokenRange(number, start, stop)
        for number, (start, stop) in enumerate(zip(starts, [*starts[1:], len(weights)], strict=True))
    ]
