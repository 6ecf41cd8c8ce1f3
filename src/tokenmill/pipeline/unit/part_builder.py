"""Builds a part: the columns of a unit, batch by batch, and its skipped rows, each with a reason."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import SourceError
from tokenmill.pipeline.unit.columns import unit_columns
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.pipeline.unit.store_unit import quarantined_before, rows_before
from tokenmill.sources.documents import BadRow, Documents, SourceFile
from tokenmill.sources.spelled import Spellings, searched, template_count
from tokenmill.spans import Spans
from tokenmill.storage import Folder
from tokenmill.store import quarantine
from tokenmill.store.job import Job
from tokenmill.store.kept import content_hash, publish_kept
from tokenmill.store.layout import kept_name
from tokenmill.store.part import (
    LENGTH,
    SPARSE,
    PartContent,
    PartSummary,
    SkippedRow,
    TextHash,
    TokenArray,
    publish_part,
    with_checksum,
)
from tokenmill.tokenization.control_tokens import control_tokens
from tokenmill.tokenization.engines.protocol import Encoded


@dataclass(slots=True)
class PartBuilder:
    """Collects the columns of a part. The part does not depend on how the unit was split into batches."""

    job: Job
    task: UnitTask
    with_text: bool
    tokens: list[TokenArray] = field(default_factory=list)
    lengths: list[npt.NDArray[np.int64]] = field(default_factory=list)
    sources: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    rows: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    train: list[Spans] = field(default_factory=list)
    unread_groups: int = 0
    _text: TextHash = field(default_factory=TextHash)
    _folded: int = 0
    _skipped: list[tuple[int, npt.NDArray[np.uint64], str]] = field(default_factory=list)
    _bad: list[quarantine.Quarantined] = field(default_factory=list)
    _documents: int = 0
    _spelled: int = 0
    _control: Spellings = field(init=False)
    _template_count: int = field(init=False)

    def __post_init__(self) -> None:
        # Every conversation has the control tokens of its template.
        self._control = Spellings.of(
            () if self.job.messages or self.job.has_ids else control_tokens(self.job.tokenizer)
        )
        self._template_count = template_count(self._control, self.job.read_options())

    @property
    def text_bytes(self) -> int:
        """The size of the text of the documents so far."""
        return self._text.text_bytes

    def add(self, file: SourceFile, present: Documents, encoded: Encoded) -> None:
        """Add the tokens of some documents, none of which is null, without those that have too few or too many."""
        self._text.update(present)
        if self.job.limits_tokens:
            is_within = self.job.within_limits(np.diff(encoded.offsets))
            self._skipped.append((file.index, present.rows[~is_within], LENGTH))
            self._text.text_bytes -= 0 if self.job.has_ids else present.filter(~is_within).text_bytes()
            present, encoded = present.filter(is_within), encoded.filter(is_within)
        self._search(present.text)
        self.tokens.append(encoded.tokens)
        self.lengths.append(np.diff(encoded.offsets))
        self.sources.append(np.full(len(present.rows), file.index, np.uint32))
        self.rows.append(present.rows)
        if encoded.train is not None:
            self.train.append(encoded.train)

    def _search(self, text: pa.LargeStringArray) -> None:
        """Count the documents that spell a control token where the template does not. Only some are searched."""
        if not self._control.texts:
            return
        chosen = searched(self._documents, len(text))
        self._documents += len(text)
        found = self._control.count(text.take(pa.array(chosen)))
        self._spelled += int(np.count_nonzero(found > self._template_count))

    def fold(self) -> None:
        """Concatenate the arrays that were added one by one: an array for each document takes a kilobyte."""
        for column in (self.tokens, self.lengths, self.sources, self.rows):
            if len(column) - self._folded > 1:
                column[self._folded :] = [np.concatenate(column[self._folded :])]
        if len(self.train) - self._folded > 1:
            self.train[self._folded :] = [Spans.join(self.train[self._folded :])]
        self._folded = len(self.tokens)

    def skip(self, file: SourceFile, documents: Documents) -> None:
        """Record the rows without text, the rows that were removed on purpose and the bad rows of a batch."""
        self._skipped += [(file.index, rows, reason) for reason, rows in documents.reasons().items()]
        self.unread_groups += documents.unread_groups
        for bad in documents.bad:
            self.skip_bad(file, bad)

    def skip_bad(self, file: SourceFile, bad: BadRow) -> None:
        """Record one bad row."""
        self._skipped.append((file.index, np.array([bad.row], np.uint64), bad.reason))
        self._bad.append(quarantine.record(self.task.unit, file, bad, with_text=self.with_text))

    def read_kept(self, limits: WorkerLimits) -> pa.Table | None:
        """Read the columns that the job keeps, for the documents so far; None if it keeps none."""
        if not self.job.keep:
            return None
        source, row = _joined(self.sources, np.uint32), _joined(self.rows, np.uint64)
        options = limits.read_options(self.job)
        return unit_columns(self.task, self.job.keep, source, row, options).values

    def finish(self, kept: pa.Table | None = None) -> BuiltPart:
        """The part, ready to be published, with the columns that are kept. Every planned row is in it or skipped."""
        lengths = _joined(self.lengths, np.int64)
        content = PartContent(
            tokens=_joined(self.tokens, self.job.tokenizer.dtype),
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            source=_joined(self.sources, np.uint32),
            row=_joined(self.rows, np.uint64),
            train=Spans.join(self.train) if self.job.has_spans else None,
        )
        summary = PartSummary(
            unit=self.task.unit,
            job=self.job.digest(),
            documents=len(lengths),
            tokens=len(content.tokens),
            text_bytes=self.text_bytes,
            skipped=skipped_ranges(self._skipped, rows_before(self.job, self.task.unit)),
            slice=self.task.slice,
            text=self._text.hexdigest(),
            kept="" if kept is None else content_hash(kept),
            spelled=self._spelled,
            trained=None if content.train is None else content.train.covered,
            rows=content.row_count if self.job.splits_rows else None,
        )
        _check_rows(self.task, summary.source_rows)
        bad = self._quarantined() if summary.quarantined_rows else []
        return BuiltPart(with_checksum(summary, content), content, bad, kept)

    def _quarantined(self) -> list[quarantine.Quarantined]:
        """The records of the bad rows. The files that a source store was made from are not read for their lines."""
        if self.job.source_store is None:
            return quarantine.with_lines(self._bad, self.task.files)
        order = {file.path: file.index for file in self.task.files}
        return sorted(
            [*quarantined_before(self.job, self.task.unit), *self._bad],
            key=lambda entry: (order[entry.file], entry.position),
        )


@dataclass(frozen=True, slots=True)
class BuiltPart:
    """A part that is not published yet, with its rows in quarantine and the kept columns."""

    summary: PartSummary
    content: PartContent
    bad: list[quarantine.Quarantined]
    kept: pa.Table | None = None

    def publish(self, folder: Folder) -> PartSummary:
        """Publish the kept columns and the rows in quarantine, then the part, which commits all of them."""
        if self.kept is not None:
            publish_kept(folder, kept_name(self.summary.unit), self.kept)
        if self.bad:
            quarantine.publish_entries(folder, quarantine.unit_file(self.summary), self.bad)
        publish_part(folder, self.summary, self.content)
        return self.summary


def _check_rows(task: UnitTask, seen: int) -> None:
    if task.rows is not None and seen != task.rows:
        raise SourceError(
            f"a source has {seen} rows, but its footer says {task.rows}", f"file         {task.files[0].path}"
        )


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def skipped_ranges(
    entries: Sequence[tuple[int, npt.NDArray[np.uint64], str]], before: Sequence[SkippedRow] = ()
) -> tuple[SkippedRow, ...]:
    """Skipped rows in order, with those that a source store lacks. Consecutive ones of one reason become one range.

    A filter may skip every second row, so its rows in a source are one range, with other rows in between. The same
    holds for duplicates, and for documents with too few or too many tokens.
    """
    sparse = [entry for entry in entries if entry[2] in SPARSE]
    exact = _exact_ranges([entry for entry in entries if entry[2] not in SPARSE])
    return tuple(
        sorted((*before, *exact, *_sparse_ranges(sparse)), key=lambda skipped: (skipped.source, skipped.first))
    )


def _sparse_ranges(entries: Sequence[tuple[int, npt.NDArray[np.uint64], str]]) -> Iterator[SkippedRow]:
    for source, reason in dict.fromkeys((source, reason) for source, _, reason in entries):
        rows = np.concatenate([rows for index, rows, why in entries if (index, why) == (source, reason)])
        if len(rows):
            yield SkippedRow(source, int(rows.min()), int(rows.max()), len(rows), reason)


def _exact_ranges(entries: Sequence[tuple[int, npt.NDArray[np.uint64], str]]) -> tuple[SkippedRow, ...]:
    if not entries:
        return ()
    reasons = list(dict.fromkeys(reason for _, _, reason in entries))
    counts = [len(rows) for _, rows, _ in entries]
    row = np.concatenate([rows for _, rows, _ in entries])
    source = np.repeat([source for source, _, _ in entries], counts)
    reason = np.repeat([reasons.index(reason) for _, _, reason in entries], counts)
    order = np.lexsort((row, source))
    row, source, reason = row[order], source[order], reason[order]
    breaks = (np.diff(row) != 1) | (np.diff(source) != 0) | (np.diff(reason) != 0)
    first = np.concatenate([[0], np.flatnonzero(breaks) + 1])
    last = np.append(first[1:], len(row)) - 1
    return tuple(
        SkippedRow(int(source[a]), int(row[a]), int(row[b]), int(b - a + 1), reasons[reason[a]])
        for a, b in zip(first.tolist(), last.tolist(), strict=True)
    )
