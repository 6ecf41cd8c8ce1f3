"""`tokenmill.report`: one HTML page about one store or several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tokenmill.analysis.html import render
from tokenmill.analysis.html.destination import page_destination
from tokenmill.analysis.statistics import Statistics
from tokenmill.api.parameters import Stores, StrPath, path_text, store_paths
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
    directory: Stores,
    *,
    out: StrPath | None = None,
    by: str | Sequence[str] = (),
    workers: int | None = None,
    memory: str | int | None = None,
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> ReportResult:
    """Write one HTML page that shows what a complete store holds and how its run went.

    The page needs no network and no script. It replaces an older page, but no file of another kind.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`. Several stores share one page.
        out: The path of the page. Default: `report.html` in the store, or in the last of several.
        by: Columns of text, numbers or booleans. Tokens are counted by their values; with `"host:url"`, by the hosts of
            the URLs in the column `url`. A column that the store does not keep is read from the sources again.
        workers: The number of worker processes. Default: one per core.
        memory: The memory budget of a machine, such as `"8GB"`. Default: 70 % of the available memory.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        executor: Running workers to use instead of new ones.
    """
    directories = store_paths(directory)
    folder, name = page_destination(directories, path_text(out))
    statistics = stats(directories, by=by, workers=workers, memory=memory, reporter=reporter, executor=executor)
    folder.create()
    with folder.publish(name) as file:
        file.write(render(statistics).encode())
    return ReportResult(folder.path(name), statistics)
