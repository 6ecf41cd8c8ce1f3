"""Keyed hashes of documents: 64 pseudorandom bits, the same on every machine, computed on whole columns.

A sample, a split or an order that uses them depends on the document and the key only. It does not depend on the
process, on the order of processing, or on how the corpus was split.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]

_STRIDE = np.uint64(0x9E3779B97F4A7C15)

# The key of the hash that chooses the validation split. It is no option: exports and loaders hold out the same
# documents.
VAL_KEY = 2

# The key of the hash that chooses which documents get their prefix. It is no option: the same ones with any rate.
PREFIX_KEY = 3

# Makes the hash by which documents are rearranged differ from that of other uses of the same seed.
FIM_KEY = 0x66696D0000000000

# Makes the hash that chooses documents for an export by recipe differ from that of other uses of the same seed.
SELECTION_KEY = 0x7265636970650000


def mix(values: Keys) -> Keys:
    """The finalizer of SplitMix64 (Steele, Lea, Flood): a permutation of the 64-bit numbers that scatters neighbors."""
    mixed = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def document_keys(key: int, source: npt.NDArray[np.unsignedinteger], row: npt.NDArray[np.uint64]) -> Keys:
    """One hash for each (source, row) under a key."""
    keyed = mix(np.atleast_1d(np.uint64(key & 0xFFFFFFFFFFFFFFFF)) + _STRIDE)
    base = mix(keyed + source.astype(np.uint64) * _STRIDE)
    return mix(mix(base + row * _STRIDE) + base)


def in_sample(keys: Keys, fraction: float) -> npt.NDArray[np.bool_]:
    """Whether each document is in a sample of this fraction of all documents."""
    return _as_fractions(keys) < fraction


def _as_fractions(keys: Keys) -> npt.NDArray[np.float64]:
    """Each hash as a number from 0 to 1."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def fractions(keys: Keys, draw: int) -> npt.NDArray[np.float64]:
    """A number from 0 to 1 for each document, independent for each `draw`."""
    return _as_fractions(mix(keys + np.full(1, draw, np.uint64) * _STRIDE))


def val_positions(
    identities: npt.NDArray[np.uint64], source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]
) -> npt.NDArray[np.float64]:
    """The position of each document: validation splits of larger fractions hold it out."""
    return _as_fractions(document_keys(VAL_KEY, identities[source], row))


def held_out(
    identities: npt.NDArray[np.uint64], source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64], fraction: float
) -> npt.NDArray[np.bool_]:
    """Whether each document is in a validation split of this fraction. `identities` are those of all sources.

    The identity of a source does not change when sources are added or moved, so neither does the split.
    """
    return in_sample(document_keys(VAL_KEY, identities[source], row), fraction)


def selection_keys(
    identities: npt.NDArray[np.uint64], source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64], seed: int
) -> Keys:
    """The hashes by which an export by recipe takes a part of the documents. Copies of a source have the same."""
    return document_keys(seed ^ SELECTION_KEY, identities[source], row)
