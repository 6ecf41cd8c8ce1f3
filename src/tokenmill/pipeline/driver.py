"""One call's work on a frozen run: give out the units that have no part, take what comes back.

A unit that kills two workers, or raises what nobody expected, is set aside; when all others are done, it is done
document by document (see isolation) until the documents that are to blame are known.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from tokenmill.errors import (
    BadDocument,
    CorruptStore,
    LimitReached,
    MemoryShortage,
    StorageError,
    StoreError,
    TokenizerError,
)
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.outcomes import Died, Done, Executor, Failed, RetryPolicy
from tokenmill.humanize import count
from tokenmill.pipeline import isolation, plan
from tokenmill.pipeline.adoption import check_parts, remove_parts
from tokenmill.pipeline.check_parts import ANY_SLICE, InvalidPart
from tokenmill.pipeline.commit import Committed
from tokenmill.pipeline.events import RunEvents
from tokenmill.pipeline.isolate import Isolate, IsolatedUnit
from tokenmill.pipeline.manifest import ManifestBuilder
from tokenmill.pipeline.messages import BadRowCounts, bad_document, run_failed, too_many_bad
from tokenmill.pipeline.tokenize import Tokenize
from tokenmill.store import layout, quarantine
from tokenmill.tokenizers.engines.protocol import CannotEncode
from tokenmill.tokenizers.tokenizer import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt
    import pyarrow as pa

    from tokenmill.errors import RunFailed
    from tokenmill.executors.progress import Reporter
    from tokenmill.pipeline.freeze import FrozenRun
    from tokenmill.pipeline.plan import UnitTask
    from tokenmill.pipeline.ranks import RankShare
    from tokenmill.pipeline.resources import Resources
    from tokenmill.pipeline.units import WorkerLimits
    from tokenmill.storage import Folder
    from tokenmill.store.job import Job

FAILURES_WITHOUT_SUCCESS = 10
MAX_FAILURES = 100
MAX_COLLECTIONS = 5
"""How often parts may turn out to be missing or damaged when the manifest is written."""

MAX_ASIDE = 100
"""How many units may wait to be done document by document before that is done."""

ENDING_ERRORS = (StoreError, StorageError, TokenizerError, BadDocument, LimitReached, MemoryShortage)
"""Errors after which no other unit is begun: a store that cannot be written, a network, a tokenizer, a bad document, a
limit of the system."""

PREFETCH_UNITS = 2
"""How many units a worker holds beyond the one it is at, where a network is in between: one comes, one goes."""

LISTING_SECONDS = 30.0
MEETING_SECONDS = 1.0
OWN_SECONDS = 300.0
"""How often the parts are listed: now and then, more often when another machine is at the same place, and seldom
while a rank is at its own units: hundreds of ranks may list a million parts."""

LISTING_SHARE = 20
"""No more than so small a share of the time is spent on that."""

TOGETHER = RetryPolicy(max_crashes=2, max_kills=10)
APART = RetryPolicy(max_crashes=1, max_kills=10)
EARLY = 2
"""How far over the limit the bad documents have to be before a run is given up while it goes on."""

MIN_ROW_BYTES = 64
"""A row of a source that does not tell its rows is taken to be at least so long: so many more there may be."""


@dataclass
class Driver:
    """The units of a run on their way to parts."""

    folder: Folder
    frozen: FrozenRun
    engine: str
    means: Resources
    limits: WorkerLimits
    max_bad: float
    report: Reporter
    share: RankShare | None = None
    repair: bool = False
    retry_quarantine: bool = False
    failures: list[Failed[UnitTask] | Died[UnitTask]] = field(default_factory=list)
    seconds: float = 0.0
    _aside: dict[int, IsolatedUnit] = field(default_factory=dict)
    _given: set[int] = field(default_factory=set)
    _sighted: set[int] = field(default_factory=set)
    _all_given: bool = False
    _met: bool = False
    _listing_seconds: float = 0.0
    _hungry: bool = False
    _planned_bytes_done: int = 0
    _recheck: bool = False
    _collections: int = 0

    def __post_init__(self) -> None:
        self.sizes = np.zeros(0, np.int64)
        self._restart()
        self._listed = time.monotonic()
        self.is_far = bool(pc.any(pc.match_substring(self.frozen.sources["path"], "://")).as_py())
        self.is_shared = self.folder.is_remote or self.share is not None
        self._together = replace(
            TOGETHER,
            prefetch=PREFETCH_UNITS if self.is_far or self.folder.is_remote else 0,
            should_stop=self._others_are_done,
        )
        rank = None if self.share is None else self.share.rank
        self.chronicle = RunEvents(self.folder, self.report, self.means.workers, rank)
        self._planned_bytes = int(self.frozen.plan["text_bytes"].to_numpy().sum())
        self._planned_rows = pc.sum(self.frozen.plan["rows"]).as_py() or 0

    def _restart(self) -> None:
        """Count as done what is done in the store, and nothing else."""
        self.manifest = ManifestBuilder(self.folder, self.frozen.run, self.frozen.plan, self.frozen.sources)
        self.committed = self._done_units()
        self.earlier = np.flatnonzero(self.committed)
        self._planned_bytes_done = 0

    def _done_units(self) -> npt.NDArray[np.bool_]:
        """The units that have a part; one that the reference engine made or confirmed, while the store is suspect."""
        units = self.frozen.run.units
        done = layout.committed_units(self.folder, units)
        return done & layout.rechecked_units(self.folder, units) if self._recheck else done

    def take_stock(self, executor: Executor) -> None:
        """Find the units whose parts cannot be used, and remove those parts, so that `run` makes them again.

        Where several machines share a store, the one that writes the manifest checks the parts (see `collect`).
        """
        self._look_for_mismatch()
        if self._is_complete(executor) or not len(self.earlier):
            return
        if self.is_shared and not self.repair and not self.retry_quarantine:
            return
        unusable = self._unusable(executor, self.earlier, content_too=self.repair)
        self._do_again(unusable, "damaged or made from other sources")
        if self.retry_quarantine:
            self._do_again(self.manifest.quarantined_units(), "with rows in quarantine")

    def _is_complete(self, executor: Executor) -> bool:
        """Whether the store has a manifest, and the very parts that it lists; else the manifest is gone now.

        Parts are compared by size, and by what they state about themselves where no network is in between.
        """
        if not self.folder.exists(layout.MANIFEST):
            return False
        try:
            manifest = layout.require_manifest(self.folder, self.frozen.run)
        except CorruptStore as error:
            self._refuse_old_format(error.details[0])
            layout.withdraw_manifest(self.folder)
            self.chronicle.warn(f"the manifest is written again ({error.details[0].removeprefix('reason').strip()})")
            return False
        sizes = layout.part_sizes(self.folder, self.frozen.run.units)
        listed = manifest["bytes"].to_numpy() if "bytes" in manifest.column_names else np.maximum(sizes, 0)
        wrong = np.flatnonzero(sizes != listed).tolist()
        if not self.is_shared or self.repair:
            wrong = sorted({*wrong, *self._unlisted(executor, manifest, np.flatnonzero(sizes >= 0))})
        bad = quarantine.units_to_check(self.frozen.run, manifest) if not wrong else []
        unrecorded = quarantine.unrecorded(self.folder, bad)
        if not wrong and not unrecorded and not self.repair and not self.retry_quarantine:
            if self.frozen.run.format == layout.FORMAT and not quarantine.is_gathered(self.folder, bad):
                quarantine.gather(self.folder, self.committed)
                self.chronicle.warn(f"{quarantine.TOGETHER} was damaged: written again")
            return True
        self._refuse_old_format(*([f"missing      {count(len(wrong), 'part')}, first: {wrong[0]}"] if wrong else []))
        if wrong:
            self._do_again(wrong, "missing, cut off or not the manifest's")
        if unrecorded:
            self._do_again(unrecorded, "whose records of bad rows are lost")
        return False

    def _refuse_old_format(self, *found: str) -> None:
        """Refuse to change a store of an older format; `found` is what would have to be changed."""
        if self.frozen.run.format < layout.FORMAT:
            raise StoreError(
                f"{self.folder.root} is a store of format {self.frozen.run.format}, and cannot be changed",
                *found,
                "Prepare it again with another --out.",
            )

    def _unlisted(self, executor: Executor, manifest: pa.Table, units: npt.NDArray[np.int64]) -> list[int]:
        """The units whose parts are not those of the manifest, by what they state about themselves."""
        crew = FanOut(executor, self.report, self.means.workers)
        parts = ((unit, ANY_SLICE) for unit in units.tolist())
        listed = check_parts(crew, self.folder, self.frozen.run.job, parts)
        checksums = manifest["sha256"]
        return sorted(
            part.unit for part in listed if isinstance(part, InvalidPart) or part.sha256 != checksums[part.unit].as_py()
        )

    def _unusable(self, executor: Executor, units: npt.NDArray[np.int64], *, content_too: bool = False) -> list[int]:
        """The units whose parts are damaged, gone, or made from something else; the others are collected."""
        crew = FanOut(executor, self.report, self.means.workers)
        invalid = self.manifest.add_from_parts(crew, units, content_too=content_too)
        for part in invalid:
            self.chronicle.log("invalid part", unit=part.unit, reason=part.reason)
        self.sizes = layout.part_sizes(self.folder, self.frozen.run.units)
        return sorted({*(part.unit for part in invalid), *self.manifest.truncated(self.sizes)})

    def _do_again(self, units: list[int], why: str) -> None:
        """Remove the parts of some units, after the manifest, and count them as missing."""
        if not units:
            return
        remove_parts(self.folder, units)
        self.committed[units] = False
        self.earlier = np.setdiff1d(self.earlier, units)
        self.manifest.discard(units)
        named = f"unit {units[0]}" if len(units) == 1 else f"units {units[0]} ... {units[-1]}"
        self.chronicle.warn(f"{count(len(units), 'part')} {why} ({named}): made again")

    def _look_for_mismatch(self) -> bool:
        """Distrust every part of the fast engine if it has failed an audit in this store, here or elsewhere.

        From then on a unit is done when the reference engine has made its part or found it equal.
        """
        mismatch = None if self._recheck else layout.read_mismatch(self.folder)
        if mismatch is None:
            return False
        self._recheck, self.engine = True, REFERENCES[self.frozen.run.job.tokenizer.kind].name
        self._restart()
        left = int((~self.committed).sum())
        if left:
            layout.withdraw_manifest(self.folder)
            self.chronicle.warn(
                f"{mismatch.engine} failed an audit: {count(left, 'unit')} compared with {self.engine}, and made again "
                "where they differ"
            )
        return True

    def collect(self, executor: Executor) -> bool:
        """Complete the rows of the manifest from the parts of other calls; False if units have to be done again."""
        self._collections += 1
        if self._look_for_mismatch() and not self.committed.all():
            return False
        unusable = self._unusable(executor, np.flatnonzero(~self.manifest.collected))
        if not unusable:
            unusable = quarantine.unrecorded(self.folder, self.manifest.quarantined_units())
        if not unusable:
            return True
        if self._collections > MAX_COLLECTIONS:
            raise StoreError(
                f"parts of {self.folder.root} keep disappearing or changing while the run goes on",
                f"first        unit {unusable[0]}",
                "Find out which process removes or overwrites them, then run the same command again.",
            )
        self._do_again(unusable, "missing, damaged or made from other sources")
        return False

    def run(self, executor: Executor) -> None:
        """Do every unit that has no part yet; raise RunFailed if some could not be done."""
        missing, workers = int((~self.committed).sum()), self.means.workers
        if not self._collections:
            units = len(self.committed)
            self.chronicle.log("start", units=units, missing=missing, workers=workers, engine=self.engine)
        if not missing:
            return
        started = time.monotonic()
        try:
            self._do_missing(executor)
            while not self.failures and self._look_for_mismatch() and not self.committed.all():
                self._do_missing(executor)
        finally:
            self.chronicle.flush()
            self.seconds += time.monotonic() - started
        if self.failures and self.is_shared:
            self._take_from_others()  # what could not be done here may have been done elsewhere
        left = int((~self.committed).sum())
        if self.failures and left:
            raise run_failed(self.failures, left, len(self.committed), self.chronicle.log_path)
        if left:
            raise self._given_up(self._rows_read(), so_far=True)

    def _do_missing(self, executor: Executor) -> None:
        there = self.progress()[1]
        self.report.begin("tokenize", self._planned_bytes, there, self.means.workers)
        while len(self._untried()) and not self._hopeless():
            self._give_out(executor, self.engine)
            while self._aside and not self._hopeless():
                self._isolate(executor, self.engine)
            if not self.failures and self._look_for_mismatch():
                self.report.begin("recheck", self._planned_bytes, self.progress()[1], self.means.workers)

    def progress(self) -> tuple[int, int]:
        """How many units have a part, and how many bytes were planned for them, as far as this driver knows."""
        return int(self.committed.sum()), int(self.frozen.plan["text_bytes"].to_numpy()[self.committed].sum())

    def check_bad(self) -> None:
        """Raise RunFailed if more of all rows are bad than may be; call it when the manifest knows all of them."""
        if self.manifest.quarantined > self.max_bad * self.manifest.rows:
            raise self._given_up(self.manifest.rows)

    def _given_up(self, rows: int, *, so_far: bool = False) -> RunFailed:
        found = BadRowCounts(self._bad_reasons(), rows, self.frozen.run.job.column, so_far)
        return too_many_bad(self.folder, found, self.max_bad, self.chronicle.log_path)

    def _give_out(self, executor: Executor, engine: str) -> None:
        """Give out the missing units until they are done, too many are in trouble, or the engine is given up."""
        function: Callable[[UnitTask], Any] = Tokenize(*self._work(engine))
        for outcome in executor.run(function, self._tasks(engine), self._together):
            if not isinstance(outcome, Died) or outcome.final:
                self._given.discard(outcome.item.unit)
            if isinstance(outcome, Done):
                self._take(outcome.item, outcome.value, outcome, engine)
            elif self._is_for_isolation(outcome.item, outcome, "its documents will be tried one by one"):
                self._aside[outcome.item.unit] = IsolatedUnit(outcome.item)

    def _work(self, engine: str) -> tuple[str, Job, str, WorkerLimits, str, bool]:
        """What the functions that do a unit need to know."""
        frozen = self.frozen
        return self.folder.root, frozen.run.job, engine, self.limits, frozen.reference_version, self._recheck

    def _isolate(self, executor: Executor, engine: str) -> None:
        """Give each unit that was set aside one more attempt; alone, if memory has run out before."""
        function = Isolate(*self._work(engine))
        terms = replace(APART, workers=1) if self._hungry else APART
        patients = itertools.takewhile(lambda _: not self._hopeless(), list(self._aside.values()))
        for outcome in executor.run(function, patients, terms):
            patient = outcome.item
            if isinstance(outcome, Done) and outcome.value is not None:
                self._take(patient.task, outcome.value, outcome, engine)
            elif isinstance(outcome, Done):
                self._aside[patient.task.unit] = isolation.after_probe(patient)
            elif self._is_for_isolation(patient.task, outcome, "the document is being isolated") and (
                terms.workers == 1 or not isolation.is_memory(outcome)  # else it is tried again, alone
            ):
                self._conclude(patient, outcome)

    def _is_for_isolation(self, task: UnitTask, trouble: Failed[Any] | Died[Any], then: str) -> bool:
        """Take note of what went wrong with a unit; whether one of its documents may be to blame for it."""
        self._hungry |= isolation.is_memory(trouble)
        if isinstance(trouble, Failed):
            suspicious = not trouble.explained or trouble.is_a(CannotEncode)
            self.chronicle.failed(task, trouble, then)
        else:
            suspicious = trouble.final and not trouble.end.by_others
            given_up = trouble.final and not suspicious
            self.chronicle.died(task, trouble, "given up" if given_up else then if trouble.final else "tried again")
        if not suspicious and (isinstance(trouble, Failed) or trouble.final):
            self._fail(task, trouble)
        return suspicious

    def _conclude(self, patient: IsolatedUnit, trouble: Failed[Any] | Died[Any]) -> None:
        """Decide what becomes of a unit that did not get through in isolation."""
        after = isolation.after_trouble(patient, trouble)
        if after is None:
            self._fail(patient.task, trouble)
        elif len(after.left_out) == len(patient.left_out):
            self._aside[patient.task.unit] = after
        elif self.limits.on_bad == "fail":
            self._fail(patient.task, bad_document(patient.task, after.left_out[-1], trouble.worker))
        else:
            self._aside[patient.task.unit] = after
            self.chronicle.left_out(patient.task, after.left_out[-1])

    def _fail(self, task: UnitTask, trouble: Failed[Any] | Died[Any]) -> None:
        self._aside.pop(task.unit, None)
        self.failures.append(replace(trouble, item=task))

    def _take(self, task: UnitTask, committed: Committed, done: Done[Any, Any], engine: str) -> None:
        self._aside.pop(task.unit, None)
        if self.committed[task.unit]:
            return  # another machine's part was found meanwhile
        self.committed[task.unit] = True
        self._met |= committed.found
        self.manifest.add(committed.summary)
        self._planned_bytes_done += task.text_bytes
        if committed.engine != engine:
            self.engine = committed.engine
        self.chronicle.committed(task, committed, done)

    def _untried(self) -> npt.NDArray[np.int64]:
        """The units that have no part, have not failed and are not set aside."""
        tried = [failure.item.unit for failure in self.failures]
        return np.setdiff1d(np.flatnonzero(~self.committed), [*tried, *self._aside])

    def _tasks(self, engine: str) -> Iterator[UnitTask]:
        self._all_given = False
        for task in plan.tasks(self.frozen.plan, self.frozen.sources, self._in_turn(self._untried())):
            stuck = len(self._aside) >= (MAX_ASIDE if self.chronicle.step.units else FAILURES_WITHOUT_SUCCESS)
            if self.engine != engine or stuck or self._hopeless():
                return
            self._given.add(task.unit)
            yield task
        self._all_given = True

    def _in_turn(self, units: npt.NDArray[np.int64]) -> Iterator[int]:
        """Units in their order. Where other machines may be at the same store, each begins somewhere else.

        A rank has its own units to begin with; then it takes those of others that have no part yet, in any order, so
        that a slow one does not hold up the end.
        """
        if not self.is_shared:
            yield from units.tolist()
        elif self.share is None:
            yield from self._meeting_others(units)
        else:
            own = self.share.stripes(len(self.committed))[units]
            yield from self._not_done(units[own], OWN_SECONDS)
            self._take_from_others()
            rest = units[~own][~self.committed[units[~own]]]
            yield from self._not_done(np.random.default_rng().permutation(rest), MEETING_SECONDS)

    def _not_done(self, units: npt.NDArray[np.int64], seconds: float) -> Iterator[int]:
        """Units in this order, without those that others have done: their parts are looked for now and then."""
        for unit in units.tolist():
            self._look_at_others(seconds)
            if not self.committed[unit]:
                yield unit

    def _meeting_others(self, units: npt.NDArray[np.int64]) -> Iterator[int]:
        """The same from a random place on, for drivers that do not know of each other.

        Whoever comes upon a unit that another one has just done would go on beside him: he goes somewhere else.
        """
        self._met = True
        while len(units):
            self._look_at_others(MEETING_SECONDS if self._met else LISTING_SECONDS)
            if self._met:
                units = units[~self.committed[units]]
                units = np.roll(units, -secrets.randbelow(max(len(units), 1)))
                self._met = False
            elif self.committed[units[0]]:
                units = units[1:]
            else:
                yield int(units[0])
                units = units[1:]

    def _others_are_done(self) -> bool:
        """Whether others have done all that is still under way here: then there is nothing to wait for."""
        if not self.is_shared or not self._all_given:
            return False
        self._look_at_others(MEETING_SECONDS, given_too=True)
        return bool(self.committed.all())

    def _look_at_others(self, seconds: float, *, given_too: bool = False) -> None:
        """List the parts, if that was done some time ago: longer, if listing takes long."""
        if time.monotonic() - self._listed > max(seconds, LISTING_SHARE * self._listing_seconds):
            self._take_from_others(given_too=given_too)

    def _take_from_others(self, *, given_too: bool = False) -> None:
        """Note which units have got their parts from another machine since the parts were last listed.

        The part of a unit that is under way here may be this driver's own, whose outcome has not arrived yet. With
        `given_too` it counts as another machine's when a second listing finds it and there is still no outcome.
        """
        started = time.monotonic()
        there = self._done_units()
        new = np.flatnonzero(there & ~self.committed)
        under_way = self._given.intersection(new.tolist())
        new = np.setdiff1d(new, list(under_way - self._sighted if given_too else under_way))
        self._sighted = under_way
        self.committed[new] = True
        self._aside = {unit: patient for unit, patient in self._aside.items() if not there[unit]}
        self.earlier = np.append(self.earlier, new)
        text_bytes = int(self.frozen.plan["text_bytes"].to_numpy()[new].sum())
        self._planned_bytes_done += text_bytes
        self.report.advance(text_bytes, self.chronicle.step)
        self._listed = time.monotonic()
        self._listing_seconds = self._listed - started

    def _hopeless(self) -> bool:
        failed = len(self.failures)
        if any(isinstance(failure, Failed) and failure.error_class in ENDING_ERRORS for failure in self.failures):
            return True
        nothing_works = failed >= FAILURES_WITHOUT_SUCCESS and not self.chronicle.step.units
        return failed >= MAX_FAILURES or nothing_works or self._too_many_bad()

    def _too_many_bad(self) -> bool:
        """Whether twice as many documents are bad as may be, even if all that are left are good."""
        if not self.manifest.quarantined and not self._aside:
            return False
        bad = self.manifest.quarantined + sum(len(patient.left_out) for patient in self._aside.values())
        return bad > EARLY * self.max_bad * self._most_rows()

    def _bad_reasons(self) -> Counter[str]:
        """How many rows are bad, for each reason, those of units that are not done yet included."""
        verdicts = (verdict for patient in self._aside.values() for verdict in patient.left_out)
        return self.manifest.bad_reasons() + Counter(verdict.reason for verdict in verdicts)

    def _rows_read(self) -> int:
        """How many rows this call has come to: of units that are not done yet, those that it knows of."""
        aside = (max(patient.task.rows or 0, len(patient.left_out)) for patient in self._aside.values())
        return self.manifest.rows + sum(aside)

    def _most_rows(self) -> float:
        """How many rows all units have at most: counted where the sources tell it."""
        if not self.frozen.plan["rows"].null_count:
            return self._planned_rows
        return self.manifest.rows + (self._planned_bytes - self._planned_bytes_done) / MIN_ROW_BYTES
