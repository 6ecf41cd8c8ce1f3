"""What a store records about itself besides tokens: skipped rows, the job, checksums."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from tokenmill.analysis.count_parts import OTHER_REASONS
from tokenmill.analysis.statistics import BadRowReason, Provenance, SkippedRows
from tokenmill.errors import StoreError
from tokenmill.storage.digest import hash_of
from tokenmill.store import layout, quarantine
from tokenmill.store.collection import Collection
from tokenmill.store.member import Member

MAX_LISTED_ROWS = 20


def skipped_rows(stores: Collection, reasons: Counter[str], notices: list[str]) -> SkippedRows:
    """The rows that did not become documents, by reason, and the first quarantined ones that can be read."""
    rows, bad = (int(np.sum(stores.manifest[name].to_numpy())) for name in ("skipped", "quarantined"))
    recorded = itertools.chain.from_iterable(quarantine.read(member.folder, member.head) for member in stores.members)
    first: list[BadRowReason] = []
    try:
        for row in itertools.islice(recorded, MAX_LISTED_ROWS if bad else 0):
            first.append(BadRowReason(row.file, row.reason, row.detail, row.row, row.byte, row.line))  # noqa: PERF401 - keep those before a damaged one
    except StoreError as error:
        notices.append(f"not all rows in quarantine are named: {error.headline}")
    return SkippedRows(rows, bad, _ranked(reasons), first)


def _ranked(reasons: Counter[str]) -> dict[str, int]:
    """The most frequent reasons first, and the rest together. The order of the workers' reports does not matter."""
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    top, rest = dict(ranked[:MAX_LISTED_ROWS]), sum(rows for _, rows in ranked[MAX_LISTED_ROWS:])
    return {**top, OTHER_REASONS: top.get(OTHER_REASONS, 0) + rest} if rest else top


def provenance(stores: Collection) -> Provenance:
    """The job, versions and checksums of a store; of several, those of the first, with the counts of all."""
    runs, run = [member.run for member in stores.members], stores.members[0].run
    job, spec = run.job, run.job.tokenizer
    checksums = {
        "job": job.digest(),
        "tokenizer": spec.sha256,
        "sources": run.sources_blake3,
        "plan": run.plan_blake3,
        "manifest": _manifest_blake3(stores.members[0]),
    }
    for member in stores.members[1:]:
        checksums[f"manifest of {member.directory}"] = _manifest_blake3(member)
    return Provenance(
        tokenizer=spec.name,
        vocabulary_size=spec.vocabulary_size,
        begin=job.begin,
        end=job.end,
        column=job.column,
        separator=job.separator,
        unit_bytes=job.unit_bytes,
        trial=run.trial,
        engine=run.engine,
        versions=run.versions,
        units=sum(run.units for run in runs),
        sources=sum(run.sources for run in runs),
        source_bytes=sum(run.source_bytes for run in runs),
        dtype=spec.dtype,
        checksums=checksums,
    )


def _manifest_blake3(member: Member) -> str:
    return hash_of(member.folder.buffer(layout.MANIFEST))
