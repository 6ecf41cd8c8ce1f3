"""`upgrade`: bring a store of an older format to the current one."""

from __future__ import annotations

import os
import time

import msgspec
import numpy as np

from tokenmill.api.parameters import StrPath
from tokenmill.executors import progress
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.session import check_executor, open_executor
from tokenmill.exports.job import refuse_export
from tokenmill.humanize import Readable
from tokenmill.pipeline.planning.resources import plan_resources
from tokenmill.pipeline.planning.upgrade import upgrade_store
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.erasing import read_mark, refuse_other
from tokenmill.store.job import STORE_FORMAT
from tokenmill.store.manifest import require_manifest
from tokenmill.store.run import require_run
from tokenmill.store.run_state import manifest_totals
from tokenmill.system.arguments import checked

PRELOAD = ("tokenmill.pipeline.planning.upgrade",)


class UpgradeResult(Readable, msgspec.Struct, frozen=True):
    """A store of a current format. `upgraded` is set if this call changed it."""

    directory: str
    format: int
    upgraded: bool
    units: int
    documents: int
    tokens: int
    seconds: float


@checked
def upgrade(  # noqa: PLR0913 - the options of the command, by their names
    directory: StrPath,
    *,
    workers: int | None = None,
    memory: str | int | None = None,
    on: str = "local",
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> UpgradeResult:
    """Bring a complete store of an older format to the current one. Tokens, exports and states of loaders stay valid.

    Call it again after an interruption: it finishes the upgrade. A store of a current format stays as it is.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`.
        workers: The number of worker processes. Default: one per core.
        memory: The memory budget of a machine, such as `"8GB"`. Default: 70 % of the available memory.
        on: Where workers run: `"local"`, `"ray"` (the cluster of this machine), or `"ray://HOST:PORT"`.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        executor: Running workers to use instead of new ones.
    """
    check_executor(on)
    started = time.monotonic()
    folder = folder_at(os.fspath(directory))
    refuse_export(folder)
    run = require_run(folder)
    is_old = run.format < STORE_FORMAT or read_mark(folder) is not None
    if is_old:
        with open_executor(on, PRELOAD, executor, reporter) as (pool, report), folder.locks.exclusive(layout.LOCK):
            layout.remove_temporaries(folder)
            refuse_other(read_mark(folder), "")
            run = require_run(folder)
            resources = plan_resources(workers, memory, run.units, room=pool.room)
            pool.start(resources.workers, resources.worker_bytes, most_workers=resources.most_workers)
            token_bytes = np.dtype(run.job.tokenizer.dtype).itemsize
            run = upgrade_store(folder, run, FanOut(pool, report, resources.workers, token_bytes))
    totals = manifest_totals(require_manifest(folder, run))
    return UpgradeResult(
        directory=folder.root,
        format=run.format,
        upgraded=is_old,
        units=run.units,
        documents=totals["documents"],
        tokens=totals["tokens"],
        seconds=round(time.monotonic() - started, 3),
    )
