"""Checks one unit: its part against its checksum, its documents against the reference engine. Runs in a worker."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.chat.renderer import REASONS
from tokenmill.errors import CorruptStore, SourceError
from tokenmill.pipeline.unit.columns import unit_columns
from tokenmill.pipeline.unit.documents import WorkerLimits, left_out, loaded_tokenizer, rendered, unit_rows
from tokenmill.pipeline.unit.encode import encode_documents
from tokenmill.pipeline.unit.part_builder import skipped_ranges
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.pipeline.unit.store_unit import rows_before
from tokenmill.sources.bad_rows import READER_REASONS, TOO_LONG
from tokenmill.sources.documents import Documents, RowArray, SourceFile
from tokenmill.sources.line_numbers import place
from tokenmill.spans import Spans
from tokenmill.storage import folder_at
from tokenmill.store.chain import FIRST, StoreVersion, head_at
from tokenmill.store.job import Job
from tokenmill.store.kept import content_hash, nulled, read_kept
from tokenmill.store.part import (
    INTENDED,
    LENGTH,
    PartContent,
    PartSummary,
    SkippedRow,
    TextHash,
    check_content,
    check_part,
    open_part,
)
from tokenmill.tokenization import document_hash
from tokenmill.tokenization.engines.protocol import CannotEncode, Encoded

# The key of the document hash that decides which documents are compared.
SAMPLE_KEY = 1


class Verified(msgspec.Struct, frozen=True):
    """A part whose checksum is right, and how many of its documents were encoded again.

    `copies` documents have the tokens of an erased document.
    """

    summary: PartSummary
    compared: int = 0
    copies: int = 0


@dataclass(frozen=True, slots=True)
class Verify:
    """The function that checks one part: its checksum, and a fraction of its documents against the reference.

    `version` is that of the store. `check_erased` compares the erased documents of a part with the
    records, and returns how many others have the tokens of an erased one. The documents of `not_compared` units are not
    read again.
    """

    directory: str
    job: Job
    fraction: float
    limits: WorkerLimits
    version: StoreVersion = FIRST
    check_erased: Callable[[int, PartContent], int] | None = None
    not_compared: frozenset[int] = frozenset()

    def __call__(self, task: UnitTask) -> Verified:
        """Raise an error that names the part or the document that is wrong."""
        folder = folder_at(self.directory)
        head = head_at(self.directory, self.version)
        summary = check_part(folder, task.unit, self.job, head)
        if self.job.keep:
            read_kept(folder, summary, self.job.keep, head)
        _, content = open_part(folder, task.unit, head)
        copies = 0 if self.check_erased is None else self.check_erased(task.unit, content)
        if self.fraction <= 0 or task.unit in self.not_compared:
            return Verified(summary, copies=copies)
        if not has_kept(task, self.job, summary, content, self.limits):
            raise _different(task, task.files[0], "the kept columns are not those of the sources")
        # Erased documents are not compared: their text may be gone from the sources, too.
        is_erased = np.zeros(len(content.row), np.bool_) if content.erased is None else content.erased > 0
        erased = content.select(is_erased)
        content = content.select(~is_erased) if is_erased.any() else content
        compared = documents_seen = rows_skipped = 0
        rows = dict[int, list[RowArray]]()
        quarantined = _quarantined(summary)
        lists = left_out(self.directory, self.job)
        for file, documents in unit_rows(task, self.limits.read_options(self.job), lists):
            skipped = quarantined.get(file.index, [])
            _refuse_unreadable(file, documents, skipped)
            is_left = ~np.isin(documents.rows, erased.row[erased.source == file.index])
            readable = documents.filter(is_left).without_nulls()
            readable = rendered(self.directory, file, _without(readable, skipped), self.job, self.limits)
            present, others = _split_by_length(self.job, file, readable, content, documents_seen)
            stored = content.slice(documents_seen, documents_seen + len(present.rows))
            compared += self._compare(task, file, present, stored) + self._compare_others(task, file, others)
            documents_seen += len(present.rows)
            rows_skipped += len(documents.bad) + documents.skipped_rows
            rows.setdefault(file.index, []).append(documents.rows)
        # A row of a stream may be several documents.
        rows_skipped += sum(before.rows for before in rows_before(self.job, task.unit))
        rows_seen = rows_skipped + sum(len(np.unique(np.concatenate(each))) for each in rows.values())
        if (documents_seen, rows_seen) != (len(content.row), summary.source_rows):
            raise _different(
                task,
                task.files[0],
                f"{summary.documents} documents and {summary.skipped_rows} skipped rows; "
                f"the sources have {documents_seen} and {rows_seen - documents_seen}",
            )
        return Verified(summary, compared, copies)

    def _compare(self, task: UnitTask, file: SourceFile, present: Documents, stored: PartContent) -> int:
        """Compare a batch with the stored tokens. Returns how many documents were encoded again."""
        if not np.array_equal(stored.row, present.rows) or (stored.source != file.index).any():
            raise _different(task, file, "the part's rows are not the source's rows")
        outside = np.flatnonzero(~self.job.within_limits(np.diff(stored.offsets)))
        if len(outside):
            raise _different(task, file, f"{place(file.kind, present.rows[outside[0]])} has too few or too many tokens")
        chosen, expected = self._encode_sample(task, file, present)
        for position, index in enumerate(chosen):
            if not np.array_equal(stored.document(int(index)), expected.document(position)):
                raise _different(
                    task, file, f"{place(file.kind, present.rows[index])} has other tokens than the reference gives"
                )
            if not _are_equal(stored.train, int(index), expected.train, position):
                raise _different(task, file, f"{place(file.kind, present.rows[index])} is trained on other tokens")
        return len(chosen)

    def _compare_others(self, task: UnitTask, file: SourceFile, others: Documents) -> int:
        """Check that documents were left out for their number of tokens. Returns how many were encoded again."""
        chosen, expected = self._encode_sample(task, file, others)
        missing = np.flatnonzero(self.job.within_limits(np.diff(expected.offsets)))
        if len(missing):
            raise _different(task, file, f"{place(file.kind, others.rows[chosen[missing[0]]])} is missing")
        return len(chosen)

    def _encode_sample(
        self, task: UnitTask, file: SourceFile, documents: Documents
    ) -> tuple[npt.NDArray[np.int64], Encoded]:
        """The positions of the documents in the sample, and their tokens by the reference."""
        keys = document_hash.document_keys(
            SAMPLE_KEY, np.full(len(documents.rows), file.index, np.uint32), documents.rows
        )
        chosen = np.flatnonzero(document_hash.in_sample(keys, self.fraction))
        tokenizer = loaded_tokenizer(self.directory, self.job, "reference")
        try:
            sample = documents.filter(np.isin(np.arange(len(keys)), chosen))
            return chosen, encode_documents(file, sample, self.job, tokenizer)
        except CannotEncode as failure:
            row = documents.rows[chosen[failure.position]]
            raise _different(
                task, file, f"{place(file.kind, row)} is not in quarantine, but {failure.headline}"
            ) from failure


@dataclass(frozen=True, slots=True)
class CompareText:
    """The function that compares the text of a unit's documents with the text that its part was made from."""

    directory: str
    job: Job
    limits: WorkerLimits
    version: StoreVersion = FIRST

    def __call__(self, task: UnitTask) -> bool:
        """Whether the part was made from this text, row for row, and is as it was written. No engine is needed."""
        folder = folder_at(self.directory)
        try:
            summary, content = open_part(folder, task.unit, head_at(self.directory, self.version))
            check_content(folder, summary, content)
        except CorruptStore:
            return False
        # Rows that only an engine finds to be bad.
        by_engine = _quarantined(summary, besides=READER_REASONS.union(REASONS))
        text, seen, skipped = TextHash(), 0, list[tuple[int, RowArray, str]]()
        lists = left_out(self.directory, self.job)
        for file, documents in unit_rows(task, self.limits.read_options(self.job), lists):
            readable, excluded = documents.without_nulls(), by_engine.get(file.index, [])
            encoded = rendered(self.directory, file, _without(readable, excluded), self.job, self.limits)
            present, others = _split_by_length(self.job, file, encoded, content, seen)
            stored = content.slice(seen, seen + len(present.rows))
            if not np.array_equal(stored.row, present.rows) or (stored.source != file.index).any():
                return False
            text.update(encoded)
            seen += len(present.rows)
            skipped.append((file.index, others.rows, LENGTH))
            skipped += [(file.index, rows, reason) for reason, rows in documents.reasons().items()]
            skipped += [(file.index, np.array([bad.row], np.uint64), bad.reason) for bad in encoded.bad]
            skipped += [(file.index, _between(readable.rows, rows), rows.reason) for rows in excluded]
        is_same = summary.text == text.hexdigest() and seen == summary.documents
        is_same = is_same and has_kept(task, self.job, summary, content, self.limits)
        ranges = skipped_ranges([entry for entry in skipped if len(entry[1])], rows_before(self.job, task.unit))
        return is_same and ranges == summary.skipped


def has_kept(task: UnitTask, job: Job, summary: PartSummary, content: PartContent, limits: WorkerLimits) -> bool:
    """Whether the columns that a part was committed with are those that its sources have now."""
    if not job.keep:
        return True
    options = limits.read_options(job)
    values = unit_columns(task, job.keep, content.source, content.row, options).values
    return content_hash(values if content.erased is None else nulled(values, content.erased)) == summary.kept


def _split_by_length(
    job: Job, file: SourceFile, documents: Documents, content: PartContent, seen: int
) -> tuple[Documents, Documents]:
    """The documents that a part has to have at `seen`, and those that it lacks because of their number of tokens."""
    if not job.limits_tokens:
        return documents, documents.filter(np.zeros(len(documents.rows), np.bool_))
    stored = content.slice(seen, seen + len(documents.rows))
    is_stored = np.isin(documents.rows, stored.row[stored.source == file.index])
    return documents.filter(is_stored), documents.filter(~is_stored)


def _are_equal(stored: Spans | None, index: int, expected: Spans | None, position: int) -> bool:
    """Whether a document is trained on the expected tokens."""
    if stored is None or expected is None:
        return stored is expected
    return np.array_equal(stored.document(index), expected.document(position))


def _between(rows: RowArray, skipped: SkippedRow) -> RowArray:
    return rows[(rows >= skipped.first) & (rows <= skipped.last)]


def _quarantined(summary: PartSummary, besides: Collection[str] = ()) -> dict[int, list[SkippedRow]]:
    """The rows in quarantine by source, without those whose reason is in `besides`."""
    rows: dict[int, list[SkippedRow]] = {}
    for skipped in summary.skipped:
        if skipped.reason not in INTENDED and skipped.reason not in besides:
            rows.setdefault(skipped.source, []).append(skipped)
    return rows


def _without(documents: Documents, skipped: list[SkippedRow]) -> Documents:
    kept = np.ones(len(documents.rows), np.bool_)
    for rows in skipped:
        kept &= (documents.rows < rows.first) | (documents.rows > rows.last)
    return documents if kept.all() else documents.filter(kept)


def _refuse_unreadable(file: SourceFile, documents: Documents, skipped: list[SkippedRow]) -> None:
    """Raise if a document of the store is too long for the memory of this machine."""
    for row in documents.bad:
        if row.reason == TOO_LONG and not any(rows.first <= row.row <= rows.last for rows in skipped):
            raise SourceError(
                "a document is too long to check in the available memory",
                f"file         {file.path}",
                f"found at     {place(file.kind, row.row)}",
                f"size         {row.detail}",
            )


def _different(task: UnitTask, file: SourceFile, what: str) -> CorruptStore:
    where = f"file         {file.path}"
    advice = "Run the same `tokenmill prepare` with --repair: it makes such parts again."
    return CorruptStore(f"part {task.unit} does not match its sources", where, f"found        {what}", advice)
