"""Counts whole stores: one parallel pass over their parts, and one over each requested column of their sources."""

from __future__ import annotations

import functools
import itertools
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from tokenmill.analysis import duplicates
from tokenmill.analysis.by_column import ColumnChoice, CountValues, ValueCounts
from tokenmill.analysis.count_parts import OTHER_REASONS, CountParts, PartCounts, PartGroup
from tokenmill.analysis.history import read_history
from tokenmill.analysis.statistics import BadRowReason, Duplicates, Provenance, SkippedRows, Statistics
from tokenmill.analysis.totals import (
    breakdown_by_source,
    breakdown_by_store,
    breakdown_by_value,
    summarize_duplicates,
    summarize_lengths,
    summarize_vocabulary,
)
from tokenmill.errors import CorruptStore, SourceError, StoreError, UsageError
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.messages import work_failed
from tokenmill.executors.outcomes import Died, Done, Failed, Item, Value
from tokenmill.humanize import count, size
from tokenmill.pipeline.planning.resources import Resources
from tokenmill.pipeline.unit.plan import tasks
from tokenmill.storage.digest import hash_of
from tokenmill.store import layout, quarantine, tables
from tokenmill.store.collection import Collection, trial_notes
from tokenmill.store.job import read_vocabulary
from tokenmill.store.manifest import ControlTokens, trained_tokens
from tokenmill.store.member import Member
from tokenmill.tokenization.token_bytes import token_bytes_lookup

# The cost of a document besides its tokens, in tokens.
DOCUMENT_WEIGHT = 32
# Limits of a group's weight: few enough groups to keep their counts, and enough of them for all workers.
MIN_GROUP_WEIGHT = 4 << 20
MAX_GROUP_WEIGHT = 128 << 20
GROUPS_PER_WORKER = 16
MAX_RANGE_BYTES = 256 << 20
UNITS_PER_BATCH = 16
BATCH_BYTES = 4 << 20
# Errors of a worker that are raised again with their own class.
RAISED_ALONE = (CorruptStore, SourceError, StoreError, UsageError)
MAX_LISTED_ROWS = 20


@dataclass
class StoreCounter:
    """Counts complete stores together. Document hashes go to files in `scratch`."""

    stores: Collection
    fan_out: FanOut
    resources: Resources
    scratch: str
    notices: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        vocabulary_size, source_count = self.stores.job.tokenizer.vocabulary_size, self.stores.source_count
        self._totals = PartCounts(np.zeros(vocabulary_size, np.int64), by_source=np.zeros((3, source_count), np.int64))
        manifest = self.stores.manifest_without_erased(self.stores.changes)
        self._parts = self.stores.parts_without_erased(self.stores.changes)
        self._documents, self._tokens = (manifest[name].to_numpy() for name in ("documents", "tokens"))
        changes = [change for member in self.stores.members for change in member.head.history if change.documents]
        self.notices += trial_notes(self.stores)
        self.notices += [f"{count(c.documents, 'document')} erased (request {c.request})" for c in changes]
        self._groups = _group_parts(self._tokens + DOCUMENT_WEIGHT * self._documents, self.resources.workers)
        self._ranges = self._choose_ranges()
        self._values: dict[str, ValueCounts] = {}
        self._duplicates: Duplicates | None = None

    def count(self, columns: list[str]) -> None:
        """Count everything. Columns come first, because a column may be missing."""
        self._values = {column: self._count_column(column) for column in columns}
        self._count_parts()
        self._duplicates = self._count_duplicates()

    def _count_parts(self) -> None:
        """Count all parts, and compare the totals with the manifest."""
        scratch = self.scratch if self._ranges else None
        function = CountParts(self.stores.job, self._parts, scratch, self._ranges)
        self.fan_out.begin("count", int(self._tokens.sum()))
        for done in _results(self.fan_out, function, self._groups, lambda it: f"parts {it.start} to {it.stop - 1}"):
            self._totals.merge(done.value)
            self.fan_out.advance(int(self._tokens[done.item.start : done.item.stop].sum()))
        expected = int(self._documents.sum()), int(self._tokens.sum())
        if (self._totals.document_count, self._totals.token_count) != expected:
            headline = f"the parts of {self.stores.name} do not hold what the manifest says"
            raise CorruptStore(headline, "`tokenmill verify` names it.")

    def _count_duplicates(self) -> Duplicates | None:
        """Compare the hashes that `_count_parts` wrote."""
        if not self._ranges:
            return None
        function = duplicates.CountDuplicates(self.scratch, len(self._groups), self._ranges)
        counts = duplicates.DuplicateCounts()
        for done in _results(self.fan_out, function, range(self._ranges), lambda it: f"hashes {it} of {self._ranges}"):
            counts = duplicates.merge(counts, done.value)
        return summarize_duplicates(counts, self.stores.sources["path"])

    def _count_column(self, column: str) -> ValueCounts:
        """Count tokens by the values of a column. Units are merged in order, so that folding is deterministic."""
        counts = ValueCounts()
        self.fan_out.begin(f"by {column}", int(self._tokens.sum()))
        choice = ColumnChoice.parse(column)
        for member, store in zip(self.stores.members, self._parts.stores, strict=True):
            is_kept, parts = choice.name in member.run.job.keep, replace(self._parts, stores=(store,))
            self._count_member(member, CountValues(self.stores.job, parts, choice, BATCH_BYTES, is_kept), counts)
        counts.require_column()
        return counts

    def _count_member(self, member: Member, function: CountValues, counts: ValueCounts) -> None:
        """Add the values of one store to the counts."""
        tokens = member.manifest["tokens"].to_numpy()
        remaining = tasks(tables.read_plan(member.folder, member.run), member.sources, range(member.run.units))
        is_reported = False
        while batch := list(islice(remaining, UNITS_PER_BATCH * self.resources.workers)):
            if counts.missing and not counts.column_exists and not is_reported:
                name = function.column.name
                self.fan_out.report.say(f"no source so far has the column {name!r}; reading the other sources")
                is_reported = True
            by_unit: dict[int, ValueCounts] = {}
            for done in _results(self.fan_out, function, batch, lambda it: f"unit {it.unit}"):
                by_unit[done.item.unit] = done.value
                self.fan_out.advance(int(tokens[done.item.unit]))
            for unit in sorted(by_unit):
                counts.merge(by_unit[unit])

    def _choose_ranges(self) -> int:
        """The number of ranges that hashes are sorted in. 0 if the disk has no room for them."""
        needed = int(self._documents.sum()) * duplicates.RECORD.itemsize
        free = shutil.disk_usage(self.scratch).free
        if needed > 0.9 * free:
            self.notices.append(
                f"duplicates were not counted: that takes {size(needed)} of temporary files, and"
                f" {size(free)} are free in {tempfile.gettempdir()}; set TMPDIR to another directory"
            )
            return 0
        range_bytes = min(self.resources.worker_bytes // (2 * duplicates.SORTING_FACTOR), MAX_RANGE_BYTES)
        min_ranges = self.resources.workers if needed > 1 << 22 else 1
        return max(math.ceil(needed / range_bytes), min_ranges)

    def statistics(self) -> Statistics:
        """The statistics of what was counted. Needs no workers."""
        totals, spec, members = self._totals, self.stores.job.tokenizer, self.stores.members
        tokens, text_bytes, byte_exact = totals.token_count, totals.text_bytes, totals.byte_exact
        lookup = token_bytes_lookup(spec, read_vocabulary(members[0].folder, spec))
        return Statistics(
            directory=self.stores.name,
            documents=totals.document_count,
            tokens=tokens,
            text_bytes=text_bytes,
            bytes_per_token=round(text_bytes / tokens, 4) if tokens else None,
            bytes_per_token_bins=totals.ratios.tolist() if byte_exact else None,
            lengths=summarize_lengths(totals.lengths),
            vocabulary=summarize_vocabulary(totals.tokens, lookup),
            sources=breakdown_by_source(totals, self.stores.sources["path"]),
            columns=[breakdown_by_value(name, counts, byte_exact=byte_exact) for name, counts in self._values.items()],
            duplicates=self._duplicates,
            skipped=skipped_rows(self.stores, totals.skipped, self.notices),
            history=read_history(members[0].folder, self.notices) if len(members) == 1 else None,
            origin=provenance(self.stores),
            notices=self.notices,
            stores=breakdown_by_store(self.stores),
            control_tokens=functools.reduce(
                ControlTokens.plus, (ControlTokens.of(member.manifest) for member in members)
            ),
            trained_tokens=_trained(members),
        )


def _trained(members: Sequence[Member]) -> int | None:
    """How many tokens of the stores are trained on; None if all are."""
    counts = [trained_tokens(member.manifest) for member in members]
    if all(count is None for count in counts):
        return None
    tokens = (int(member.manifest["tokens"].to_numpy().sum()) for member in members)
    return sum(own if count is None else count for count, own in zip(counts, tokens, strict=True))


def _results(
    fan_out: FanOut, function: Callable[[Item], Value], items: Iterable[Item], describe: Callable[[Item], str]
) -> Iterator[Done[Item, Value]]:
    """Yield results as they arrive. The first failed item raises, because statistics of the rest would be wrong."""

    def on_failure(failure: Failed[Item] | Died[Item]) -> None:
        if isinstance(failure, Failed) and failure.error_class in RAISED_ALONE:
            raise failure.error()
        raise work_failed([failure], describe)

    return fan_out.run(function, items, describe, on_failure)


def _group_parts(weights: np.ndarray, workers: int) -> list[PartGroup]:
    """Divide the parts into groups of about equal weight."""
    if not len(weights):
        return []
    wanted = int(weights.sum()) // (GROUPS_PER_WORKER * workers)
    wanted = min(max(wanted, MIN_GROUP_WEIGHT), MAX_GROUP_WEIGHT)
    numbers = (np.cumsum(weights) - weights) // wanted
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    stops = [*starts[1:], len(weights)]
    return [PartGroup(number, start, stop) for number, (start, stop) in enumerate(zip(starts, stops, strict=True))]


def skipped_rows(stores: Collection, reasons: Counter[str], notices: list[str]) -> SkippedRows:
    """The rows that did not become documents, by reason, and the first quarantined ones that can be read."""
    rows, bad = (int(np.sum(stores.manifest[name].to_numpy())) for name in ("skipped", "quarantined"))
    recorded = itertools.chain.from_iterable(quarantine.read(member.folder, member.head) for member in stores.members)
    first: list[BadRowReason] = []
    try:
        for row in itertools.islice(recorded, MAX_LISTED_ROWS if bad else 0):
            first.append(BadRowReason(row.file, row.reason, row.detail, row.row, row.byte, row.line))  # noqa: PERF401 - keep those before a damaged one
    except StoreError as error:
        notices.append(f"not all rows in quarantine are named: {error.headline}")
    return SkippedRows(rows, bad, _ranked(reasons), first)


def _ranked(reasons: Counter[str]) -> dict[str, int]:
    """The most frequent reasons first, and the rest together. The order of the workers' reports does not matter."""
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    top, rest = dict(ranked[:MAX_LISTED_ROWS]), sum(rows for _, rows in ranked[MAX_LISTED_ROWS:])
    return {**top, OTHER_REASONS: top.get(OTHER_REASONS, 0) + rest} if rest else top


def provenance(stores: Collection) -> Provenance:
    """The run and checksums of a store; of several, the run of the first, with the counts of all."""
    runs = [member.run for member in stores.members]
    run = runs[0]
    checksums = {
        "job": run.job.digest(),
        "tokenizer": run.job.tokenizer.sha256,
        "sources": run.sources_blake3,
        "plan": run.plan_blake3,
        "manifest": _manifest_blake3(stores.members[0]),
    }
    for member in stores.members[1:]:
        checksums[f"manifest of {member.directory}"] = _manifest_blake3(member)
    units, sources, source_bytes = (
        sum(getattr(one, name) for one in runs) for name in ("units", "sources", "source_bytes")
    )
    return Provenance(run, units, sources, source_bytes, checksums)


def _manifest_blake3(member: Member) -> str:
    return hash_of(member.folder.buffer(layout.MANIFEST))
