"""`finish`: complete a store whose parts are all there."""

from __future__ import annotations

import os
import time

import msgspec

from tokenmill.executors import progress
from tokenmill.executors.fan_out import check_executor, open_executor
from tokenmill.executors.outcomes import Pool
from tokenmill.humanize import Readable
from tokenmill.options import PrepareOptions, StrPath
from tokenmill.pipeline.driving.finish import refuse_missing_parts, write_manifest
from tokenmill.pipeline.driving.row_limits import RowLimits
from tokenmill.pipeline.planning.request import BadDocumentPolicy
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.state import Operation, State, enter
from tokenmill.store.tables import manifest_totals
from tokenmill.system.arguments import checked

PRELOAD = ("tokenmill.pipeline.unit.tokenize",)


class FinishResult(Readable, msgspec.Struct, frozen=True):
    """A store that is complete. `written_now` tells whether its manifest was written by this call."""

    directory: str
    units: int
    documents: int
    tokens: int
    text_bytes: int
    skipped_rows: int
    quarantined: int
    written_now: bool
    seconds: float


@checked
def finish(  # noqa: PLR0913 - the options of the command, by their names
    directory: StrPath,
    *,
    max_bad: str | float = "0.1%",
    max_skipped: str | float = "1%",
    workers: int | None = None,
    on: str = "local",
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> FinishResult:
    """Write the manifest if every unit has its part; raise IncompleteStore if not. A complete store stays as it is.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`.
        max_bad: The maximum fraction of bad documents, such as `0.001` or `"0.1%"`. More are an error.
        max_skipped: The maximum fraction of rows without text, such as `0.01` or `"1%"`. More are an error.
        workers: The number of worker processes. Default: one per core.
        on: Where workers run: `"local"`, `"ray"` (the cluster of this machine), or `"ray://HOST:PORT"`.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        executor: Running workers to use instead of new ones.
    """
    policy = BadDocumentPolicy.parse(PrepareOptions(max_bad=max_bad, max_skipped=max_skipped))
    check_executor(on)
    started = time.monotonic()
    folder = folder_at(os.fspath(directory))
    found, is_written = enter(folder, Operation.FINISH), False
    run = found.run
    if found.state is State.PARTIAL:
        refuse_missing_parts(folder, run)
        with open_executor(on, PRELOAD, executor, reporter) as session:
            is_written = write_manifest(folder, run, RowLimits(policy.max_bad, policy.max_skipped), workers, session)
        layout.remove_stale_temporaries(folder)
        found = enter(folder, Operation.READ)
    totals = manifest_totals(found.manifest)
    return FinishResult(
        directory=folder.root,
        units=run.units,
        documents=totals["documents"],
        tokens=totals["tokens"],
        text_bytes=totals["text_bytes"],
        skipped_rows=totals["skipped"],
        quarantined=totals["quarantined"],
        written_now=is_written,
        seconds=round(time.monotonic() - started, 3),
    )
