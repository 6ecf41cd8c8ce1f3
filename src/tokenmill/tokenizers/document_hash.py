"""Keyed hashes of documents: 64 bits that look random, the same on every machine, computed on whole columns.

What they decide (a sample, a split, an order) depends on the document and the key alone, so it does not matter who
asks, in which order, or how the corpus was cut.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_STRIDE = np.uint64(0x9E3779B97F4A7C15)


def mix(values: Keys) -> Keys:
    """Steele, Lea and Flood's finaliser (SplitMix64): a permutation of the 64-bit numbers that scatters neighbours."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def document_keys(key: int, source: npt.NDArray[np.unsignedinteger], row: npt.NDArray[np.uint64]) -> Keys:
    """One hash for each (source, row) under a key."""
    keyed = mix(np.atleast_1d(np.uint64(key & 0xFFFFFFFFFFFFFFFF)) + _STRIDE)
    base = mix(keyed + source.astype(np.uint64) * _STRIDE)
    return mix(mix(base + row * _STRIDE) + base)


def in_sample(keys: Keys, share: float) -> npt.NDArray[np.bool_]:
    """Which documents fall into a share of them."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53 < share
