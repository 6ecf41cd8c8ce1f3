"""The directories of a run, and the files that are written again if the store has lost them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import CorruptStore
from tokenmill.store import layout
from tokenmill.store.deny import deny_name, read_content
from tokenmill.store.run import read_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenmill.pipeline.planning.request import PrepareRequest
    from tokenmill.storage import Folder
    from tokenmill.store.job import Run


def create_directories(folder: Folder, run: Run) -> None:
    """Make the directories of what workers publish."""
    folder.create(layout.PARTS)
    if run.job.kept_columns:
        folder.create(layout.KEPT)
    if any(not isinstance(blake3, msgspec.UnsetType) for blake3 in (run.job.deny, run.job.dedup)):
        folder.create(layout.DENY)


def publish_files(folder: Folder, files: Mapping[str, bytes]) -> None:
    """Publish files by their names."""
    for name, data in files.items():
        with folder.publish(name) as file:
            file.write(data)


def write_vocabulary(folder: Folder, run: Run, request: PrepareRequest) -> None:
    """Publish the vocabulary again if the store has lost it. It is that of the run: its hash is part of the job."""
    try:
        read_vocabulary(folder, run.job.tokenizer)
    except CorruptStore:
        folder.create(layout.TOKENIZER)
        publish_files(folder, {f"{layout.TOKENIZER}/{run.job.tokenizer.file}": request.vocabulary.content})


def write_deny_list(folder: Folder, run: Run, request: PrepareRequest) -> None:
    """Publish the list of denied rows again if the store has lost it. Its hash is part of the job."""
    if isinstance(run.job.deny, msgspec.UnsetType):
        return
    try:
        read_content(folder, run.job.deny)
    except CorruptStore:
        folder.create(layout.DENY)
        publish_files(folder, {deny_name(run.job.deny): request.deny})
