"""What the modules that drive a run share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from tokenmill.humanize import count
from tokenmill.pipeline.driving.events import RunEvents, RunLog
from tokenmill.store.manifest import log_run

if TYPE_CHECKING:
    from tokenmill.executors.outcomes import Pool
    from tokenmill.executors.progress import Reporter
    from tokenmill.pipeline.planning.freeze import FrozenRun
    from tokenmill.pipeline.planning.ranks import RankShare
    from tokenmill.pipeline.unit.documents import WorkerLimits
    from tokenmill.storage import Folder
    from tokenmill.store.job import Run


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


def make_events(  # noqa: PLR0913, PLR0917 - a run, and what this call uses
    folder: Folder, run: Run, report: Reporter, pool: Pool, workers: int, rank_share: RankShare | None
) -> RunEvents:
    """The events of a run on this pool. On a cluster the number of workers changes, so progress shows it."""
    log = RunLog(folder, log_run(run), None if rank_share is None else rank_share.rank)
    if pool.room.machine_bytes is not None:
        return RunEvents(log, report, workers)
    return RunEvents(
        log, report, workers, lambda: f"{count(pool.workers, 'worker')} on {count(len(pool.nodes), 'node')}"
    )
