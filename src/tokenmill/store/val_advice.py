"""Propose a `--val` for a store of few documents: one that holds out some of them, and leaves others for training.

Documents are held out by their hashes, so a fraction of few documents may hold out none of them, or all.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenmill.store import tables
from tokenmill.store.run import require_run

if TYPE_CHECKING:
    from tokenmill.storage import Folder

# With more documents or parts than this, no part is read for an advice.
MAX_DOCUMENTS = 10_000
MAX_PARTS = 100

# A smaller validation split says little about a model: it is one or two windows of a trainer.
TINY_VAL_TOKENS = 2048

# Fractions that are proposed first.
VAL_FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


def val_advice(folder: Folder, positions: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]) -> str:
    """What gives documents to both splits; empty if nothing does.

    Args:
        folder: The store, whose sources decide the advice for a single document.
        positions: The position of each document (see `document_hash.val_positions`).
        lengths: The tokens of each document.
    """
    if len(positions) == 1:
        one = "the store has one document, and a document is in one split only"
        kinds = set(tables.read_sources(folder, require_run(folder))["kind"].unique().to_pylist())
        return f"{one}. Prepare it again with --separator '\\n\\n' and another --out" if kinds == {"text"} else one
    fraction = proposed_fraction(positions, lengths)
    return "" if fraction is None else f"use --val {fraction:.15g}"


def proposed_fraction(positions: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]) -> float | None:
    """A fraction that holds out TINY_VAL_TOKENS if possible, else one document, and not the last one; None without."""
    if len(positions) < 2:
        return None
    order = np.argsort(positions)
    edges, held_out = positions[order], np.cumsum(lengths[order])
    last = int(np.searchsorted(held_out, TINY_VAL_TOKENS))
    last = last if last <= len(edges) - 2 else 0
    usual = (fraction for fraction in VAL_FRACTIONS if edges[last] < fraction <= edges[-1])
    return next(usual, None) or _shortest_between(float(edges[last]), float(edges[last + 1]))


def _shortest_between(low: float, high: float) -> float | None:
    """The number with the fewest digits that is above `low` and not above `high`."""
    for digits in range(1, 16):
        scale = 10.0**digits
        number = (math.floor(low * scale) + 1) / scale
        if low < number <= high:
            return number
    return None
