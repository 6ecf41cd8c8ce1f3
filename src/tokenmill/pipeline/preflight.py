"""Compares the free space of a disk, quota included, with what a run will write, before its first unit.

An upper bound that costs nothing is compared first. Only where that does not fit, a sample is encoded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.errors import TRY_AGAIN, StoreError
from tokenmill.humanize import size
from tokenmill.pipeline.sample import ROW_BYTES, Measure, measure_units
from tokenmill.storage import free_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from tokenmill.executors.outcomes import Executor
    from tokenmill.pipeline.context import RunContext

# A sample that takes longer is skipped: a document that hangs is found when its unit is tokenized.
MAX_SAMPLE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Density:
    """Tokens and documents for each byte of text."""

    tokens: float
    documents: float


# A token for each byte, and documents of 16 bytes with an end token each: hardly any corpus has more.
MAX_DENSITY = Density(tokens=1.25, documents=1 / 16)


def check_room(
    context: RunContext,
    engine: str,
    missing: npt.NDArray[np.int64],
    executor: Executor,
    export_bytes: Sequence[int],
) -> None:
    """Raise StoreError if the disk has no room for the missing units and the exports.

    `export_bytes` holds the bytes per token of each export.
    """
    folder, run = context.folder, context.frozen.run
    free = free_bytes(folder)
    if free is None or not len(missing) or sum(_needed(context, missing, export_bytes, MAX_DENSITY)) <= free:
        return
    seconds = min(context.limits.document_seconds, MAX_SAMPLE_SECONDS)
    measure = Measure(folder.root, run.job, engine, context.limits, seconds)
    plan, sources = context.frozen.plan, context.frozen.sources
    sample = measure_units(executor, measure, plan, sources, missing, skip_failures=True)
    if not sample.text_bytes:
        return  # the units will report why they cannot be read
    density = Density(sample.tokens / sample.text_bytes, sample.documents / sample.text_bytes)
    parts, exported = _needed(context, missing, export_bytes, density)
    if parts + exported > free:
        raise too_small(folder.root, free, parts + exported, f", {size(exported)} of it for --to" * bool(exported))


def too_small(path: str, free: int, needed: int, more: str = "") -> StoreError:
    """The error for a disk that has no room for what is about to be written."""
    return StoreError(
        "the disk is too small",
        f"at           {path}",
        f"free         {size(free)}",
        f"needed       about {size(needed)}{more}",
        "Free some space and run the same command again, choose another --out, or skip this check with --force.",
        exit_code=TRY_AGAIN,
    )


def _needed(
    context: RunContext, missing: npt.NDArray[np.int64], export_bytes: Sequence[int], density: Density
) -> tuple[int, int]:
    """The bytes of the missing parts, and of the exports of the whole store."""
    text_bytes = context.frozen.plan["text_bytes"].to_numpy()
    token_bytes = np.dtype(context.frozen.run.job.tokenizer.dtype).itemsize
    part = density.tokens * token_bytes + density.documents * ROW_BYTES
    exported = density.tokens * sum(export_bytes)
    return int(part * text_bytes[missing].sum()), int(exported * text_bytes.sum())


def export_token_bytes(dtype: str, shuffle: int | None) -> int:
    """What a token takes while it is exported: a shuffle holds it twice for a while."""
    return np.dtype(dtype).itemsize * (1 if shuffle is None else 2)
