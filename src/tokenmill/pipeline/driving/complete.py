"""Brings a frozen run to its manifest: checks the parts, drives the missing units, publishes the manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from tokenmill.errors import StorageError, StoreError
from tokenmill.executors.outcomes import Executor, Pool
from tokenmill.pipeline.driving.context import Companion, RunContext
from tokenmill.pipeline.driving.driver import Driver
from tokenmill.pipeline.driving.heartbeat import Heartbeat
from tokenmill.pipeline.driving.inventory import PartInventory
from tokenmill.pipeline.driving.isolation import Isolation
from tokenmill.pipeline.driving.manifest import ManifestBuilder
from tokenmill.pipeline.driving.metrics import MetricsFile
from tokenmill.pipeline.driving.preflight import DiskNeeds, check_room
from tokenmill.pipeline.driving.row_limits import RowBudget, RowLimits
from tokenmill.pipeline.driving.schedule import CommittedUnits, Schedule
from tokenmill.storage.run_once import FINISHING, run_once
from tokenmill.store import layout, quarantine
from tokenmill.store.rank_summaries import remove_summaries
from tokenmill.store.state import Operation, enter


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    """How many rows may be bad or without text, which parts are made again, and where metrics go."""

    limits: RowLimits
    repair: bool = False
    retry_quarantine: bool = False
    metrics: str | None = None


class RunCompletion:
    """One call's work on a frozen run.

    Args:
        context: The run, its store, and what this call may use.
        engine: The engine to encode with.
        options: How many rows may be bad or without text, and which parts to make again.
        companions: Stores of other tokenizers, whose parts are made from the same read.
    """

    def __init__(
        self, context: RunContext, engine: str, options: CompletionOptions, companions: Sequence[Companion] = ()
    ) -> None:
        frozen, isolation = context.frozen, Isolation()
        self._context = context
        self.manifest = ManifestBuilder(context.folder, frozen.run, frozen.plan, frozen.sources, frozen.head)
        self.committed = CommittedUnits(context, isolation)
        self._inventory = PartInventory(
            context,
            self.manifest,
            self.committed,
            repair=options.repair,
            retry_quarantine=options.retry_quarantine,
        )
        self._metrics = options.metrics
        self._budget = RowBudget(context, self.manifest, isolation, self.committed, options.limits)
        self.driver = Driver(
            context,
            engine,
            self.manifest,
            self.committed,
            Schedule(context, self.committed),
            isolation,
            self._inventory,
            self._budget,
            companions,
        )

    def complete(self, pool: Pool, check_rows: Callable[[int], None], needs: DiskNeeds | None = None) -> pa.Table:
        """Do what is missing and publish the manifest. If that fails, list the rows in quarantine so far.

        Args:
            pool: Runs the units.
            check_rows: Called with the number of rows, skipped ones included, before the manifest is published.
            needs: What the parts and the exports that follow take on the disk, which has to have room for them. None
                skips the check.
        """
        context = self._context
        run, root = context.frozen.run, context.folder.root
        sink = None if self._metrics is None else MetricsFile(self._metrics, run, root)
        heartbeat = Heartbeat(context.folder, context.events, pool, context.rank_share, self.committed.progress, sink)
        with heartbeat:
            try:
                self._inventory.take_stock(pool)
                missing = self.committed.missing()
                if needs is not None:
                    check_room(context, self.driver.engine, missing, pool, needs)
                units, workers, engine = context.frozen.run.units, context.workers, self.driver.engine
                context.events.log.add("start", units=units, missing=len(missing), workers=workers, engine=engine)
                while (manifest := self.attempt(pool, check_rows)) is None:
                    pass
            except BaseException:
                with suppress(StoreError, StorageError):  # the first error is the one to report
                    self._list_quarantine()
                raise
        if context.events.step.deaths and not context.is_shared:
            layout.remove_temporaries(context.folder)  # a worker that died may have been writing a part
        return manifest

    def attempt(self, executor: Executor, check_rows: Callable[[int], None] = lambda _: None) -> pa.Table | None:
        """Do what is missing and publish the manifest, unless another driver did; None if units are to do again."""
        self.driver.run(executor)
        context = self._context
        is_rank = context.rank_share is not None
        if is_rank and self.manifest.rows:
            self.manifest.publish_summaries()
        with self._manifest_turn() as is_ours:
            if not is_ours:
                manifest = enter(context.folder, Operation.READ).manifest
                self.manifest.adopt(manifest)
            elif not self._inventory.collect(executor):
                return None
            self._budget.check()
            check_rows(self.manifest.rows)
            if is_ours:
                manifest = self._inventory.publish()
            if is_rank or not context.folder.is_remote:
                remove_summaries(context.folder)
            return manifest

    def _manifest_turn(self) -> AbstractContextManager[bool]:
        """Yields True if this process should write the manifest, and False if the store has it."""
        folder, report = self._context.folder, self._context.report
        if not self._context.is_shared:
            return nullcontext(not folder.exists(layout.MANIFEST))
        message = "manifest     another machine is writing it"
        is_done = partial(folder.exists, layout.MANIFEST)
        return run_once(folder.locks, FINISHING, is_done, lambda: report.pending(message))

    def _list_quarantine(self) -> None:
        """List the rows in quarantine so far, unless another driver is about to list all of them, or has."""
        folder, lease = self._context.folder, self._context.folder.locks.lease(FINISHING)
        try:
            if (not self._context.is_shared or lease.take()) and not folder.exists(layout.MANIFEST):
                quarantine.gather(folder, layout.committed_units(folder, self._context.frozen.run.units))
        finally:
            lease.release()
