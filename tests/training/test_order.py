"""The order of grains: a permutation in every epoch, without a pattern, for any number of grains."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.choices import Shuffle
from tokenmill.training import order as order_module
from tokenmill.training.order import GrainOrder, permute, round_keys

Words = npt.NDArray[np.uint64]
KEYS = round_keys("test", 1)
# Chi-square of a good permutation is less than so many standard deviations above its expectation.
MAX_SIGMAS = 6.0
WINDOW = 1 << 14


def multiply_add_permute(values: Words, count: int, keys: Words) -> Words:
    """The same network of five rounds with levanter's round function: multiply and add, modulo a power of two."""
    half = ((count - 1).bit_length() + 1) // 2
    bits, mask = np.uint64(half), np.uint64((1 << half) - 1)
    left, right = values >> bits, values & mask
    for key in keys[:5]:
        left, right = right, left ^ ((right * np.uint64(2654435761) + key) & mask)
    return (left << bits) | right


def chi_square_excess(counts: npt.NDArray[np.int64]) -> float:
    """By how many standard deviations chi-square of a table of equally likely cells exceeds its expectation."""
    expected = counts.sum() / counts.size
    freedom = counts.size - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def worst_residue(permutation: Callable[[Words, int, Words], Words], count: int) -> float:
    """The worst excess over the moduli 2 to 64: positions of equal residue must have all residues.

    The positions are consecutive, as those of a training are, from several starts.
    """
    worst = 0.0
    for start in (0, count // 3, count - WINDOW):
        positions = np.arange(start, start + WINDOW, dtype=np.uint64)
        images = permutation(positions, count, KEYS)
        for modulus in map(np.uint64, range(2, 65)):
            cells = ((positions % modulus) * modulus + images % modulus).astype(np.int64)
            worst = max(worst, chi_square_excess(np.bincount(cells, minlength=int(modulus) ** 2)))
    return worst


@pytest.mark.parametrize("count", [*range(1, 70), 255, 256, 257, 1000, 4096, 4097, 65_537])
def test_permutation_of_any_range(count: int) -> None:
    """Each number below the count has one image, which is below the count."""
    images = permute(np.arange(count, dtype=np.uint64), count, KEYS)
    assert np.array_equal(np.sort(images), np.arange(count))


def test_permutation_is_fixed() -> None:
    """The order of a training must never change: these numbers are part of the contract."""
    keys = round_keys(1337, "0" * 64, 0, "grains", 0)
    assert permute(np.arange(8, dtype=np.uint64), 1000, keys).tolist() == [369, 232, 936, 444, 974, 552, 720, 932]


@given(st.integers(1, 1 << 62), st.lists(st.integers(0, (1 << 62) - 1), min_size=1, max_size=20))
def test_large_ranges_stay_inside(count: int, values: list[int]) -> None:
    """Images are below the count, and different for different numbers, up to 2^62 grains."""
    chosen = np.unique(np.array([value % count for value in values], np.uint64))
    images = permute(chosen, count, KEYS)
    assert int(images.max()) < count
    assert len(np.unique(images)) == len(chosen)


@pytest.mark.parametrize("count", [1 << 20, 1_000_000, 7_324_218_750])
def test_images_have_no_pattern(count: int) -> None:
    """Chi-square over the residues of positions and grains, and over the distances of grains at some lags."""
    assert worst_residue(permute, count) < MAX_SIGMAS
    images = permute(np.arange(1 << 16, dtype=np.uint64), count, KEYS).astype(np.int64)
    for lag in (1, 2, 3, 7, 8, 64, 1024):
        distances = (images[lag:] - images[:-lag]) % count
        assert chi_square_excess(np.bincount(distances * 64 // count, minlength=64)) < MAX_SIGMAS


def test_a_multiply_add_round_fails_the_same_test() -> None:
    """The low bits of a product do not depend on its high bits: neighbors share residues."""
    positions = np.arange(1 << 12, dtype=np.uint64)
    assert len(np.unique(multiply_add_permute(positions, 1 << 12, KEYS))) == 1 << 12
    assert worst_residue(multiply_add_permute, 1 << 20) > 10 * MAX_SIGMAS
    eighth = np.arange(0, 1024, 8, dtype=np.uint64)
    assert len(np.unique(multiply_add_permute(eighth, 1 << 20, KEYS) % np.uint64(8))) == 1
    assert len(np.unique(permute(eighth, 1 << 20, KEYS) % np.uint64(8))) == 8


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
@pytest.mark.parametrize("grains", [1, 2, 255, 256, 300, 1023, 1024, 1025, 5000])
def test_each_epoch_has_each_grain_once(shuffle: Shuffle, grains: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every epoch is a permutation, for chunks that end in other places than epochs."""
    monkeypatch.setattr(order_module, "WINDOW_BLOCKS", 3)
    grain_order = GrainOrder(grains, shuffle, 1, f"store of {grains}")
    for epoch in range(3):
        assert np.array_equal(np.sort(grain_order.at(epoch * grains, (epoch + 1) * grains)), np.arange(grains))


@pytest.mark.parametrize("shuffle", ["full", "window"])
def test_epochs_seeds_and_stores_have_different_orders(shuffle: Shuffle) -> None:
    """Another epoch, seed or store gives another order; the same ones give the same."""
    grains = 5000
    first = GrainOrder(grains, shuffle, 1, "a").at(0, grains)
    others = [GrainOrder(grains, shuffle, 1, "a").at(grains, 2 * grains)]
    others += [GrainOrder(grains, shuffle, seed, store).at(0, grains) for seed, store in ((2, "a"), (1, "b"))]
    for other in others:
        assert (first == other).mean() < 0.01
    assert np.array_equal(first, GrainOrder(grains, shuffle, 1, "a").at(0, grains))


def test_a_window_reads_few_blocks() -> None:
    """Within a window of 512 blocks, no other block is read."""
    grains, window = 256 * 1100 + 77, 256 * 512
    order = GrainOrder(grains, "window", 5, "store").at(0, grains)
    for first in (0, window):
        assert len(np.unique(order[first : first + window] // 256)) == 512
    assert np.array_equal(np.sort(order), np.arange(grains))


def test_ranges_are_slices_of_one_order() -> None:
    """A range of positions does not depend on where it begins."""
    grain_order = GrainOrder(700, "full", 3, "store")
    whole = grain_order.at(0, 5000)
    random = np.random.default_rng(0)
    for first, count in zip(random.integers(0, 4000, 50).tolist(), random.integers(0, 1000, 50).tolist(), strict=True):
        assert np.array_equal(grain_order.at(first, first + count), whole[first : first + count])
