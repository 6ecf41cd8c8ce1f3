"""Leave out the rows that `--deny` names, while the documents of a unit are read. Runs in a worker."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.sources import read_columns
from tokenmill.sources.documents import Documents, ReadOptions, RowArray, Slice, SourceFile
from tokenmill.store.deny import DenyList, read_deny_list
from tokenmill.store.part import DENIED

if TYPE_CHECKING:
    from tokenmill.store.job import Job


def deny_list(directory: str, job: Job) -> DenyList | None:
    """The list of a run, or None if it has none."""
    return None if isinstance(job.deny, msgspec.UnsetType) else read_deny_list(directory, job.deny)


def denied_rows(
    file: SourceFile, file_slice: Slice | None, deny: DenyList | None, options: ReadOptions
) -> RowArray | None:
    """The rows of a slice that the list names, in order; None if there is no list."""
    if deny is None:
        return None
    rows = [deny.rows_of(file.path)]
    if deny.columns:
        batches = read_columns(file, file_slice, deny.columns, options)
        rows += [batch.rows[deny.matches(batch.values)] for batch in batches]
    return np.unique(np.concatenate(rows))


def without_denied(documents: Documents, denied: RowArray | None) -> Documents:
    """The documents without the rows that are denied, which are listed instead."""
    if denied is None or not len(denied):
        return documents
    is_denied = np.isin(documents.rows, denied)
    if not is_denied.any():
        return documents
    text, skipped = documents.text.filter(pa.array(~is_denied)), {DENIED: documents.rows[is_denied]}
    return replace(documents, text=text, rows=documents.rows[~is_denied], skipped=documents.skipped | skipped)
