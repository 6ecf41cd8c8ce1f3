"""The order in which the grains of a stream are read: a permutation that is computed, never stored.

A balanced Feistel network permutes the numbers below a power of four. Numbers outside the range are permuted again
until they are inside it (cycle walking), which is a permutation of the range. The round function is the finalizer of
SplitMix64, so every bit of an index changes every bit of its image: a rank that takes each eighth index sees no
pattern. All arithmetic is on arrays of uint64.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.choices import Shuffle
from tokenmill.storage.digest import canonical
from tokenmill.tokenization.document_hash import mix

Numbers = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

ROUNDS = 6

# `shuffle="window"` permutes blocks of so many consecutive grains, ...
BLOCK_GRAINS = 256

# ... and the grains within windows of so many blocks. Only the blocks of one window are read at a time.
WINDOW_BLOCKS = 512

# Positions whose grains are computed together: one array operation costs as much for one position as for hundreds.
POSITIONS_PER_CHUNK = 1024
KEPT_CHUNKS = 64


def round_keys(*name: str | int) -> Words:
    """The keys of the permutation that has this name."""
    digest = hashlib.sha512(canonical(name)).digest()
    return np.frombuffer(digest[: 8 * ROUNDS], "<u8").astype(np.uint64)


def permute(values: Words, count: int, keys: Words) -> Words:
    """The images of some numbers below `count` under the permutation of range(count) that the keys choose."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    bits, mask, shift = np.uint64(half), np.uint64((1 << half) - 1), np.uint64(64 - half)

    def encrypt(words: Words) -> Words:
        left, right = words >> bits, words & mask
        for key in keys:
            left, right = right, left ^ (mix(right + key) >> shift)
        return (left << bits) | right

    images = encrypt(values)
    outside = np.flatnonzero(images >= np.uint64(count))
    while len(outside):
        images[outside] = encrypt(images[outside])
        outside = outside[images[outside] >= np.uint64(count)]
    return images


@dataclass(frozen=True, slots=True)
class GrainOrder:
    """The order of `grains` grains of one stream, in every epoch.

    It depends on the seed, the store and the epoch, and not on other stores that are read together with it.
    """

    grains: int
    shuffle: Shuffle
    seed: int
    store: str

    def at(self, first: int, last: int) -> Numbers:
        """The grains at positions [first, last). Positions count on through the epochs."""
        low, high = first // POSITIONS_PER_CHUNK, -(-last // POSITIONS_PER_CHUNK)
        chunks = [_chunk(self, number) for number in range(low, high)]
        grains = chunks[0] if len(chunks) == 1 else np.concatenate(chunks) if chunks else np.empty(0, np.int64)
        return grains[first - low * POSITIONS_PER_CHUNK : last - low * POSITIONS_PER_CHUNK]

    def in_epoch(self, epoch: int, positions: Words) -> Words:
        """The grains at some positions of one epoch."""
        if self.shuffle == "none":
            return positions
        if self.shuffle == "full":
            return permute(positions, self.grains, self._keys(epoch, "grains", 0))
        return self._windowed(epoch, positions)

    def _windowed(self, epoch: int, positions: Words) -> Words:
        """The grains at some positions, if blocks are permuted, and grains within windows of blocks.

        The grains after the last full block belong to the last window and are permuted with it.
        """
        window_grains = BLOCK_GRAINS * WINDOW_BLOCKS
        blocks = self.grains // BLOCK_GRAINS
        mixed = positions.copy()
        windows = positions // np.uint64(window_grains)
        for window in np.unique(windows).tolist():
            chosen, start = windows == np.uint64(window), window * window_grains
            count = min(window_grains, self.grains - start)
            keys = self._keys(epoch, "window", window)
            mixed[chosen] = permute(positions[chosen] - np.uint64(start), count, keys) + np.uint64(start)
        inside = mixed < np.uint64(blocks * BLOCK_GRAINS)
        block, offset = np.divmod(mixed[inside], np.uint64(BLOCK_GRAINS))
        keys = self._keys(epoch, "blocks", 0)
        mixed[inside] = permute(block, blocks, keys) * np.uint64(BLOCK_GRAINS) + offset
        return mixed

    def _keys(self, epoch: int, level: str, number: int) -> Words:
        return round_keys(self.seed, self.store, epoch, level, number)


@functools.lru_cache(KEPT_CHUNKS)
def _chunk(order: GrainOrder, number: int) -> Numbers:
    """The grains at the positions of one chunk, which may lie in several epochs."""
    start = number * POSITIONS_PER_CHUNK
    positions = np.arange(start, start + POSITIONS_PER_CHUNK, dtype=np.uint64)
    epochs, within = np.divmod(positions, np.uint64(order.grains))
    grains = np.empty_like(positions)
    for epoch in np.unique(epochs).tolist():
        chosen = epochs == np.uint64(epoch)
        grains[chosen] = order.in_epoch(int(epoch), within[chosen])
    return grains.astype(np.int64)
