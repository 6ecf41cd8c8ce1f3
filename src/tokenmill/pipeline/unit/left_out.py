"""Leave out the rows that `--deny` and `--dedup` name, while the documents of a unit are read. Runs in a worker."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from tokenmill.sources import read_columns
from tokenmill.sources.documents import Documents, ReadOptions, RowArray, Slice, SourceFile
from tokenmill.storage import folder_at
from tokenmill.store.deny import DenyList, read_deny_list
from tokenmill.store.duplicates import DuplicateRows, read_duplicates
from tokenmill.store.job import Job
from tokenmill.store.part import DENIED, DUPLICATE


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The lists of rows that a run leaves out. None stands for a list that it does not have."""

    deny: DenyList | None = None
    duplicates: DuplicateRows | None = None

    def rows(self, file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> dict[str, RowArray]:
        """The rows of a slice that the lists name, in order, by the reason why they are left out."""
        rows = {} if self.duplicates is None else {DUPLICATE: self.duplicates.of(file.index)}
        if self.deny is not None:
            denied = [self.deny.rows_of(file.path)]
            if self.deny.columns:
                batches = read_columns(file, file_slice, self.deny.columns, options)
                denied += [batch.rows[self.deny.matches(batch.values)] for batch in batches]
            rows[DENIED] = np.unique(np.concatenate(denied))
        return rows


NOTHING = LeftOut()


def left_out(directory: str, job: Job) -> LeftOut:
    """The lists of a run. A worker keeps them."""
    return LeftOut(
        read_deny_list(directory, job.deny) if job.deny else None,
        None if job.dedup is None else _duplicates(directory, job.dedup),
    )


@functools.lru_cache(maxsize=1)
def _duplicates(directory: str, blake3: str) -> DuplicateRows:
    return read_duplicates(folder_at(directory), blake3)


def without_rows(documents: Documents, rows: dict[str, RowArray]) -> Documents:
    """The documents without these rows, which are listed instead, by the reason why they are left out."""
    for reason, numbers in rows.items():
        is_left_out = np.isin(documents.rows, numbers)
        if is_left_out.any():
            skipped = documents.skipped | {reason: documents.rows[is_left_out]}
            documents = replace(documents.filter(~is_left_out), skipped=skipped)
    return documents
