"""Compares the free space of a disk, quota included, with what a run will write, before its first unit.

A bound that costs nothing is compared first. Only where that does not fit, units are sampled, and the disk has to have
room for the upper end of the estimate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.errors import TRY_AGAIN, StoreError
from tokenmill.executors.outcomes import Executor
from tokenmill.humanize import size
from tokenmill.pipeline.driving.context import RunContext
from tokenmill.pipeline.planning.estimate import Footprint
from tokenmill.pipeline.planning.sample import Measure, estimate_units
from tokenmill.storage import free_bytes

# A sample that takes longer is skipped: a document that hangs is found when its unit is tokenized.
MAX_SAMPLE_SECONDS = 30.0

# What a unit takes beside its documents: the frame of its part, its line in the log, the rest of a block of the disk.
UNIT_BYTES = 8 << 10

# A token for each byte, and documents of 16 bytes with an end token each: hardly any corpus has more.
MAX_TOKENS_PER_BYTE = 1.25
MAX_DOCUMENTS_PER_BYTE = 1 / 16


@dataclass(frozen=True, slots=True)
class DiskNeeds:
    """What a run writes: stores, of which the missing units are made, and exports of the whole store."""

    stores: tuple[Footprint, ...]
    exports: tuple[Footprint, ...] = ()


def check_room(
    context: RunContext, engine: str, missing: npt.NDArray[np.int64], executor: Executor, needs: DiskNeeds
) -> None:
    """Raise StoreError if the disk may have no room for the missing units and the exports."""
    folder = context.folder
    free = free_bytes(folder)
    if free is None or not len(missing):
        return
    planned = context.frozen.plan["text_bytes"].to_numpy()
    missing_bytes, all_bytes = int(planned[missing].sum()), int(planned.sum())
    tokens, documents = MAX_TOKENS_PER_BYTE * missing_bytes, MAX_DOCUMENTS_PER_BYTE * missing_bytes
    whole = all_bytes / max(missing_bytes, 1)
    if _bytes(needs.stores, tokens, documents) + whole * _bytes(needs.exports, tokens, documents) <= free:
        return
    seconds = min(context.limits.document_seconds, MAX_SAMPLE_SECONDS)
    measure = Measure(folder.root, context.frozen.run.job, engine, context.limits, seconds)
    plan, sources = context.frozen.plan, context.frozen.sources
    expected = estimate_units(executor, measure, plan, sources, missing, workers=context.workers, skip_failures=True)
    if expected is None:
        return  # the units will report why they cannot be read
    parts = expected.disk_bytes(needs.stores).high + UNIT_BYTES * len(missing) * len(needs.stores)
    exported = whole * expected.disk_bytes(needs.exports).high
    if parts + exported > free:
        raise too_small(folder.root, free, parts + exported, f", {size(exported)} of it for --to" * bool(exported))


def _bytes(footprints: tuple[Footprint, ...], tokens: float, documents: float) -> int:
    return sum(footprint.bytes(tokens, documents) for footprint in footprints)


def too_small(path: str, free: int, needed: float, more: str = "") -> StoreError:
    """The error for a disk that may have no room for what is about to be written."""
    return StoreError(
        "the disk is too small",
        f"at           {path}",
        f"free         {size(free)}",
        f"needed       up to {size(needed)}{more}",
        "Free some space and run the same command again, choose another --out, or skip this check with --force.",
        exit_code=TRY_AGAIN,
    )
