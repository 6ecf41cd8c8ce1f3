"""What a store tells of itself without a look at its tokens: rows that were left out, the job, checksums."""

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

if TYPE_CHECKING:
    from tokenmill.storage import Folder

NAMED_ROWS = 20


def skipped_rows(folder: Folder, manifest: pa.Table, reasons: Counter[str], notices: list[str]) -> SkippedRows:
    """The rows that are no documents, by reason, and the first of those in quarantine, as far as they can be read."""
    rows, bad = (int(np.sum(manifest[name].to_numpy())) for name in ("skipped", "quarantined"))
    first: list[BadRowReason] = []
    try:
        for each in islice(quarantine.read(folder), NAMED_ROWS if bad else 0):
            first.append(BadRowReason(each.file, each.row, each.reason, each.detail))  # noqa: PERF401 - the next may be damaged
    except StoreError as error:
        notices.append(f"not all rows in quarantine are named: {error.headline}")
    return SkippedRows(rows, bad, _ranked(reasons), first)


def _ranked(reasons: Counter[str]) -> dict[str, int]:
    """Reasons, the most frequent first, and the rest together; workers have told of them in any order."""
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    found, rest = dict(ranked[:NAMED_ROWS]), sum(rows for _, rows in ranked[NAMED_ROWS:])
    return {**found, OTHER_REASONS: found.get(OTHER_REASONS, 0) + rest} if rest else found


def provenance(folder: Folder, run: layout.Run) -> Provenance:
    """How it was made."""
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
