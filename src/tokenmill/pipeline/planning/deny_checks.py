"""Compare a deny list with the sources of a run: paths that changed, and names that nothing is read of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import JobChanged
from tokenmill.humanize import count
from tokenmill.store.deny import parse_list, read_rules

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenmill.storage import Folder
    from tokenmill.store.job import Job


def refuse_denied_paths(folder: Folder, job: Job, before: pa.Table, now: pa.Table) -> None:
    """Refuse sources whose paths changed so that the deny list names other rows of them by number."""
    if isinstance(job.deny, msgspec.UnsetType):
        return
    rules = read_rules(folder, job.deny)
    if not rules.rows or len(before) != len(now):
        return
    for old, new in zip(before["path"].to_pylist(), now["path"].to_pylist(), strict=True):
        if rules.rows_of(old).tolist() != rules.rows_of(new).tolist():
            raise JobChanged(
                "the deny list names rows of a source by its path, and the path changed",
                f"before       {old}",
                f"now          {new}",
                "Move the source back, or make a new store with a list that has the new path.",
            )


def deny_notes(content: bytes, sources: pa.Table) -> tuple[str, ...]:
    """What the user should know about a deny list: the sources that it names and that are not read."""
    named = parse_list(content)
    read: set[str] = set()
    for path in sources["path"].to_pylist() if named.rows else ():
        read.update(named.sources_at(path))
    unread = sorted({*named.rows} - read)
    if not unread:
        return ()
    shown = ", ".join(unread[:3]) + (" ..." if len(unread) > 3 else "")
    return (f"--deny names {count(len(unread), 'source')} of which nothing is read: {shown}",)
