"""Write the report of a store: its figures as one page of HTML, in the store or wherever it is wanted."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tokenmill.analysis.html import render
from tokenmill.analysis.statistics import Statistics
from tokenmill.api.stats import stats
from tokenmill.errors import UsageError
from tokenmill.storage import Folder, absolute, folder_at, resolved, scheme

if TYPE_CHECKING:
    from tokenmill.executors import progress
    from tokenmill.executors.outcomes import Pool

REPORT = "report.html"
PAGE = ".html"
NO_PAGE = f"it is there already, and its name does not end in {PAGE}"


class ReportResult(msgspec.Struct, frozen=True):
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
) -> ReportResult:
    """Write one page of HTML that shows what a complete store holds and how its run went: to `out`, or into the store.

    The page needs no network and no script. It replaces an older page, and nothing that is not called so.
    What `by` does, and what it costs, `stats` tells.
    """
    folder, name = _place(directory, out)
    found = stats(directory, by=by, workers=workers, memory=memory, reporter=reporter, executor=executor)
    folder.create()
    with folder.publish(name) as file:
        file.write(render(found).encode())
    return ReportResult(folder.path(name), found)


def _place(directory: str, out: str | None) -> tuple[Folder, str]:
    """The folder that the page goes to, and its name there; nothing that is no page is ever replaced by it."""
    store = folder_at(directory)
    if out is None:
        folder, name = store, REPORT
    elif not os.path.basename(out) or (not scheme(out) and os.path.isdir(out)):
        raise UsageError(
            f"--out is the name of a file, and {out} is a directory", f"Write {os.path.join(out, REPORT)}."
        )
    else:
        where, name = os.path.split(_followed(store, absolute(out)))
        folder = folder_at(where)
    _refuse_store(store, folder, name)
    _refuse_other(folder, name)
    return folder, name


def _followed(store: Folder, path: str) -> str:
    """Where a link leads to, as writing to it would. One in a store is not followed: others may have made it."""
    if scheme(path) or resolved(os.path.dirname(path)) == resolved(store.root):
        return path
    return resolved(path) if os.path.islink(path) else path


def _refuse_store(store: Folder, folder: Folder, name: str) -> None:
    """A store has its own files: a page may be beside them, and nowhere further inside."""
    within = resolved(folder.root), resolved(store.root)
    if f"{within[0]}/".startswith(f"{within[1]}/") and not (within[0] == within[1] and _is_page(name)):
        raise UsageError(
            "the page would be among the files of the store",
            f"file         {folder.path(name)}",
            f"Give --out another name, such as {store.path(REPORT)}.",
        )


def _refuse_other(folder: Folder, name: str) -> None:
    """What is there already is replaced only if it is a file, and called a page."""
    path = folder.path(name)
    if folder.is_remote:
        reason = "" if _is_page(name) or not folder.exists(name) else NO_PAGE
    elif not os.path.lexists(path):
        reason = ""
    elif not stat.S_ISREG(os.lstat(path).st_mode):
        reason = "it is no regular file"
    else:
        reason = "" if _is_page(name) else NO_PAGE
    if reason:
        raise UsageError(
            "--out would replace something that is no page",
            f"file         {path}",
            f"reason       {reason}",
            "Remove it, or give --out another name.",
        )


def _is_page(name: str) -> bool:
    return name.lower().endswith(PAGE)
