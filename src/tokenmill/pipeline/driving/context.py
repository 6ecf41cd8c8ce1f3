"""What the modules that drive a run share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow.compute as pc

from tokenmill.executors.outcomes import Pool
from tokenmill.executors.progress import Reporter, Step
from tokenmill.executors.ranks import RankShare
from tokenmill.humanize import count
from tokenmill.pipeline.driving.events import RunEvents, RunLog
from tokenmill.pipeline.planning.freeze import FrozenRun
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.tokenize import Tokenize
from tokenmill.storage import Folder
from tokenmill.store.job import Run
from tokenmill.store.state import read_mismatch
from tokenmill.store.tables import log_run


@dataclass(frozen=True, slots=True)
class RunContext:
    """A frozen run, its store, and the limits and reporters of this call. `workers` is the number started."""

    folder: Folder
    frozen: FrozenRun
    limits: WorkerLimits
    workers: int
    report: Reporter
    events: RunEvents
    rank_share: RankShare | None = None

    @property
    def is_shared(self) -> bool:
        """Whether other drivers may work on the same store."""
        return self.folder.is_remote or self.rank_share is not None

    @property
    def has_remote_sources(self) -> bool:
        """Whether some sources are behind a network."""
        return bool(pc.any(pc.match_substring(self.frozen.sources["path"], "://")).as_py())


@dataclass(frozen=True, slots=True)
class Companion:
    """A store that is made beside another one, from the same read, and the engine of its tokenizer."""

    context: RunContext
    engine: str

    def function(self) -> Tokenize:
        """What a worker needs to make its parts."""
        folder, frozen = self.context.folder, self.context.frozen
        return Tokenize(folder.root, frozen.run.job, self.engine, self.context.limits, frozen.reference_version)


def make_companions(first: RunContext, runs: Iterable[tuple[RunContext, str]]) -> list[Companion]:
    """The companions of the first run, with these runs and engines.

    A store whose fast engine has failed an audit is not one, nor is a store that was started with other units, or one
    from which documents were erased: its parts are not made again.
    """
    return [
        Companion(context, engine)
        for context, engine in runs
        if not context.frozen.head.number
        and read_mismatch(context.folder) is None
        and context.frozen.plan.equals(first.frozen.plan)
    ]


def make_events(  # noqa: PLR0913, PLR0917 - a run, and what this call uses
    folder: Folder, run: Run, report: Reporter, pool: Pool, workers: int, rank_share: RankShare | None
) -> RunEvents:
    """The events of a run on this pool. On a cluster the number of workers changes, so progress shows it."""
    log = RunLog(folder, log_run(run), None if rank_share is None else rank_share.rank)
    if pool.room.machine_bytes is not None:
        return RunEvents(log, report, workers)
    step = Step(workers_text=lambda: f"{count(pool.workers, 'worker')} on {count(len(pool.nodes), 'node')}")
    return RunEvents(log, report, workers, step)
