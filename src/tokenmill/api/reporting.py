"""Write the report of a store: its figures as one page of HTML, in the store or wherever it is wanted."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tokenmill.api.statistics import stats
from tokenmill.census.figures import Statistics
from tokenmill.errors import UsageError
from tokenmill.reports import render
from tokenmill.storage import Folder, folder_at, scheme

if TYPE_CHECKING:
    from tokenmill.api import progress
    from tokenmill.executors.outcomes import Pool

REPORT = "report.html"


class Reported(msgspec.Struct, frozen=True):
    """Where the page is, and the figures that are in it."""

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
) -> Reported:
    """Write one page of HTML that shows what a complete store holds and how its run went: to `out`, or into the store.

    The page needs no network and no script. What `by` does, and what it costs, `stats` tells.
    """
    folder, name = _place(directory, out)
    found = stats(directory, by=by, workers=workers, memory=memory, reporter=reporter, executor=executor)
    folder.create()
    with folder.publish(name) as file:
        file.write(render(found).encode())
    return Reported(folder.path(name), found)


def _place(directory: str, out: str | None) -> tuple[Folder, str]:
    """The folder that the page goes to, and its name there."""
    if out is None:
        return folder_at(directory), REPORT
    where, name = os.path.split(out)
    if not name or (not scheme(out) and os.path.isdir(out)):
        raise UsageError(
            f"--out is the name of a file, and {out} is a directory", f"Write {os.path.join(out, REPORT)}."
        )
    return folder_at(where or "."), name
