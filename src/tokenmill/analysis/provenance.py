"""What a store records about itself besides tokens: skipped rows, the job, checksums."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tokenmill.analysis.count_parts import OTHER_REASONS
from tokenmill.analysis.statistics import BadRowReason, Provenance, SkippedRows
from tokenmill.errors import StoreError
from tokenmill.store import layout, quarantine
from tokenmill.store.job import Run

if TYPE_CHECKING:
    from tokenmill.storage import Folder

MAX_LISTED_ROWS = 20


def skipped_rows(folder: Folder, manifest: pa.Table, reasons: Counter[str], notices: list[str]) -> SkippedRows:
    """The rows that did not become documents, by reason, and the first quarantined ones that can be read."""
    rows, bad = (int(np.sum(manifest[name].to_numpy())) for name in ("skipped", "quarantined"))
    first: list[BadRowReason] = []
    try:
        for row in islice(quarantine.read(folder), MAX_LISTED_ROWS if bad else 0):
            first.append(BadRowReason(row.file, row.row, row.reason, row.detail))  # noqa: PERF401 - keep those before a damaged one
    except StoreError as error:
        notices.append(f"not all rows in quarantine are named: {error.headline}")
    return SkippedRows(rows, bad, _ranked(reasons), first)


def _ranked(reasons: Counter[str]) -> dict[str, int]:
    """The most frequent reasons first, and the rest together. The order of the workers' reports does not matter."""
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    top, rest = dict(ranked[:MAX_LISTED_ROWS]), sum(rows for _, rows in ranked[MAX_LISTED_ROWS:])
    return {**top, OTHER_REASONS: top.get(OTHER_REASONS, 0) + rest} if rest else top


def provenance(folder: Folder, run: Run) -> Provenance:
    """The job, versions and checksums of a store."""
    job, spec = run.job, run.job.tokenizer
    checksums = {
        "job": job.digest(),
        "tokenizer": spec.sha256,
        "sources": run.sources_sha256,
        "plan": run.plan_sha256,
        "manifest": hashlib.sha256(folder.buffer(layout.MANIFEST)).hexdigest(),
    }
    return Provenance(
        tokenizer=spec.name,
        vocabulary_size=spec.vocabulary_size,
        begin=job.begin,
        end=job.end,
        column=job.column,
        separator=job.separator,
        unit_bytes=job.unit_bytes,
        limit_units=job.limit_units,
        engine=run.engine,
        versions=run.versions,
        units=run.units,
        sources=run.sources,
        source_bytes=run.source_bytes,
        dtype=spec.dtype,
        checksums=checksums,
    )
