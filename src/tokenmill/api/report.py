"""`tokenmill.report`: one HTML page about a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tokenmill.analysis.html import render
from tokenmill.analysis.html.destination import page_destination
from tokenmill.analysis.statistics import Statistics
from tokenmill.api.stats import stats
from tokenmill.humanize import Readable

if TYPE_CHECKING:
    from tokenmill.executors import progress
    from tokenmill.executors.outcomes import Pool


class ReportResult(Readable, msgspec.Struct, frozen=True):
    """The path of the page, and the statistics in it."""

    path: str
    statistics: Statistics


def report(  # noqa: PLR0913 - the options of the command, by their names
    directory: str,
    *,
    out: str | None = None,
    by: str | Sequence[str] = (),
    workers: int | None = None,
    memory: str | int | None = None,
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> ReportResult:
    """Write one HTML page that shows what a complete store holds and how its run went, to `out` or into the store.

    The page needs no network and no script. It replaces an older page, but no file of another kind. `stats` explains
    `by` and its cost.
    """
    folder, name = page_destination(directory, out)
    statistics = stats(directory, by=by, workers=workers, memory=memory, reporter=reporter, executor=executor)
    folder.create()
    with folder.publish(name) as file:
        file.write(render(statistics).encode())
    return ReportResult(folder.path(name), statistics)
