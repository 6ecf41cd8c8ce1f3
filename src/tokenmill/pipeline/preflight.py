"""Compares the free space of a disk, quota included, with what a run will write, before its first unit.

A bound that costs nothing is compared first. Only where that does not fit, some text is encoded to know the tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.errors import TRY_AGAIN, StoreError
from tokenmill.executors.fan_out import ignore, run_all
from tokenmill.executors.outcomes import RetryPolicy
from tokenmill.humanize import size
from tokenmill.pipeline import plan
from tokenmill.pipeline.sample import Measure, Sample

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenmill.executors.outcomes import Executor
    from tokenmill.pipeline.driver import Driver

ROW_BYTES = 8 + 4 + 8
"""What a document takes in a part beside its tokens: offset, source, row."""

MAX_SAMPLE_SECONDS = 30.0
"""A sample that takes longer is given up: a document that hangs is the run's business."""

SAMPLED_UNITS = 8
ONE_BY_ONE = RetryPolicy(max_crashes=1, workers=1)


@dataclass(frozen=True, slots=True)
class Density:
    """Tokens and documents for each byte of text."""

    tokens: float
    documents: float


MAX_DENSITY = Density(tokens=1.25, documents=1 / 16)
"""A token for each byte, and documents of 16 bytes with an end token each: hardly any corpus has more."""


def check_room(mill: Driver, executor: Executor, export_bytes: Sequence[int]) -> None:
    """Raise StoreError if the disk has no room for the missing units and the exports.

    `export_bytes` holds the bytes per token of each export.
    """
    free = mill.folder.free_bytes()
    if free is None or mill.committed.all() or sum(_needed(mill, export_bytes, MAX_DENSITY)) <= free:
        return
    density = _measured(mill, executor)
    if density is None:
        return  # the units will say why they cannot be read
    parts, exported = _needed(mill, export_bytes, density)
    if parts + exported > free:
        raise too_small(mill.folder.root, free, parts + exported, f", {size(exported)} of it for --to" * bool(exported))


def too_small(path: str, free: int, needed: int, more: str = "") -> StoreError:
    """The error for a disk that does not hold what is about to be written."""
    return StoreError(
        "the disk is too small",
        f"at           {path}",
        f"free         {size(free)}",
        f"needed       about {size(needed)}{more}",
        "Free some space and run the same command again, choose another --out, or skip this check with --force.",
        exit_code=TRY_AGAIN,
    )


def _needed(mill: Driver, export_bytes: Sequence[int], density: Density) -> tuple[int, int]:
    """The bytes of the parts that are missing, and of the exports of the whole store."""
    text_bytes = mill.frozen.plan["text_bytes"].to_numpy()
    token_bytes = np.dtype(mill.frozen.run.job.tokenizer.dtype).itemsize
    part = density.tokens * token_bytes + density.documents * ROW_BYTES
    exported = density.tokens * sum(export_bytes)
    return int(part * text_bytes[~mill.committed].sum()), int(exported * text_bytes.sum())


def export_token_bytes(dtype: str, shuffle: int | None) -> int:
    """What a token takes while it is exported: a shuffle holds it twice for a while."""
    return np.dtype(dtype).itemsize * (1 if shuffle is None else 2)


def _measured(mill: Driver, executor: Executor) -> Density | None:
    """The density of a little text from units spread over those that are missing; None if none of it can be read."""
    run, missing = mill.frozen.run, np.flatnonzero(~mill.committed)
    chosen = missing[np.unique(np.linspace(0, len(missing) - 1, min(SAMPLED_UNITS, len(missing))).astype(int))]
    options = msgspec.structs.replace(mill.limits.read_options(run.job), on_bad="quarantine")
    seconds = min(mill.limits.document_seconds, MAX_SAMPLE_SECONDS)
    measure = Measure(mill.folder.root, run.job, mill.engine, options, seconds)
    sample = Sample()
    tasks = plan.tasks(mill.frozen.plan, mill.frozen.sources, chosen)
    for done in run_all(executor, measure, tasks, policy=ONE_BY_ONE, on_failure=ignore):
        sample = sample.plus(done.value)
    if not sample.text_bytes:
        return None
    return Density(sample.tokens / sample.text_bytes, sample.documents / sample.text_bytes)
