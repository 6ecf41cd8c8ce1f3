"""The directories of a run, and the files that are written again if the store has lost them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import CorruptStore, JobChanged
from tokenmill.humanize import count
from tokenmill.store import layout
from tokenmill.store.deny import deny_name, parse_list, read_content
from tokenmill.store.run import read_vocabulary

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenmill.pipeline.request import PrepareRequest
    from tokenmill.storage import Folder
    from tokenmill.store.job import Job, Run


def create_directories(folder: Folder, run: Run) -> None:
    """Make the directories of what workers publish."""
    folder.create(layout.PARTS)
    if run.job.kept_columns:
        folder.create(layout.KEPT)
    if not isinstance(run.job.deny, msgspec.UnsetType):
        folder.create(layout.DENY)


def write_vocabulary(folder: Folder, run: Run, request: PrepareRequest) -> None:
    """Publish the vocabulary again if the store has lost it. It is that of the run: its hash is part of the job."""
    try:
        read_vocabulary(folder, run.job.tokenizer)
    except CorruptStore:
        folder.create(layout.TOKENIZER)
        with folder.publish(f"{layout.TOKENIZER}/{run.job.tokenizer.file}") as file:
            file.write(request.vocabulary.content)


def write_deny_list(folder: Folder, run: Run, request: PrepareRequest) -> None:
    """Publish the list of denied rows again if the store has lost it. Its hash is part of the job."""
    if isinstance(run.job.deny, msgspec.UnsetType):
        return
    try:
        read_content(folder, run.job.deny)
    except CorruptStore:
        folder.create(layout.DENY)
        with folder.publish(deny_name(run.job.deny)) as file:
            file.write(request.deny)


def refuse_denied_paths(folder: Folder, job: Job, before: pa.Table, now: pa.Table) -> None:
    """Refuse sources whose paths changed so that the deny list names other rows of them by number."""
    if isinstance(job.deny, msgspec.UnsetType):
        return
    rules = parse_list(read_content(folder, job.deny))
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
