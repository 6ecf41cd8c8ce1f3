"""The mixture of sources: exact counts in each round, close to the share at any time, and the same from any start."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.training.mixture import CHUNK_SEQUENCES, Mixture

COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=9).filter(any).map(tuple)


def sources(mixture: Mixture, first: int, last: int) -> list[int]:
    """The source of each of some sequences."""
    found = np.full(last - first, -1)
    for source, _, _, rows in mixture.ranges(first, last):
        assert (found[rows] == -1).all()
        found[rows] = source
    assert (found >= 0).all()
    return found.tolist()


def drawn(number: int, total: int) -> tuple[int, ...]:
    """Counts of very different sizes, of about this total."""
    rng = random.Random(number)
    shares = [rng.random() ** 4 for _ in range(number)]
    return tuple(max(1, int(total * share / sum(shares))) for share in shares)


@pytest.mark.parametrize("number", [1, 2, 5, 7, 200])
def test_counts_are_exact_and_prefixes_close(number: int) -> None:
    """A round has exactly the counts; every prefix of it is within 1 + log2(sources) sequences of each share."""
    counts = drawn(number, 20_000)
    total = sum(counts)
    found = np.array(sources(Mixture(counts), 0, total))
    assert np.bincount(found, minlength=number).tolist() == list(counts)
    length = np.arange(1, total + 1)
    worst = max(
        float(np.abs(np.cumsum(found == source) - length * (count / total)).max())
        for source, count in enumerate(counts)
    )
    assert worst <= 1 + math.log2(number)


@pytest.mark.parametrize("number", [1, 5, 200])
def test_no_overflow_at_two_to_the_34(number: int) -> None:
    """At 2^34 sequences and beyond, sampled ranges agree with exact arithmetic, and prefixes are close to the share."""
    counts = drawn(number, 1 << 34)
    counts = (counts[0] + (1 << 34) - sum(counts), *counts[1:])
    total = sum(counts)
    assert total == 1 << 34
    mixture = Mixture(counts)
    assert mixture.used(total) == list(counts)
    assert mixture.used(3 * total) == [3 * count for count in counts]
    for first in (0, 1, total // 3, total - 600, total - 1, total, 5 * total + total // 2):
        found = sources(mixture, first, first + 1000)
        used = [mixture.used(first + length) for length in (0, 17, 1000)]
        assert np.bincount(found, minlength=number).tolist() == [b - a for a, b in zip(used[0], used[2], strict=True)]
        assert sources(mixture, first + 17, first + 1000) == found[17:]
        for length, some in zip((0, 17, 1000), used, strict=True):
            shares = [Fraction((first + length) * count, total) for count in counts]
            assert max(abs(taken - share) for taken, share in zip(some, shares, strict=True)) <= 1 + math.log2(number)


@given(COUNTS, st.integers(0, 300), st.integers(1, 100))
def test_any_range_is_a_slice_of_the_whole(counts: tuple[int, ...], first: int, length: int) -> None:
    """The sources of a range, and how far each is read, do not depend on where the range begins."""
    mixture = Mixture(counts)
    whole = sources(mixture, 0, first + length)
    assert sources(mixture, first, first + length) == whole[first:]
    used = [whole[:first].count(source) for source in range(len(counts))]
    assert mixture.used(first) == used
    for source, low, high, rows in mixture.ranges(first, first + length):
        assert low == used[source]
        assert high - low == len(rows) == whole[first:].count(source)


@given(COUNTS, st.integers(2, 5))
def test_counts_of_one_proportion_give_one_order(counts: tuple[int, ...], factor: int) -> None:
    """The order follows from the proportion, so a stage that becomes longer keeps its beginning."""
    multiplied = tuple(factor * count for count in counts)
    assert sources(Mixture(counts), 0, 200) == sources(Mixture(multiplied), 0, 200)


def test_ranges_longer_than_a_chunk() -> None:
    """A range that is computed in several chunks is one range of each source."""
    mixture = Mixture((3, 1))
    (first, a, b, rows), (second, c, d, others) = mixture.ranges(5, 5 + 3 * CHUNK_SEQUENCES)
    assert (first, second) == (0, 1)
    assert (b - a) + (d - c) == len(rows) + len(others) == 3 * CHUNK_SEQUENCES
    assert np.array_equal(np.sort(np.concatenate([rows, others])), np.arange(3 * CHUNK_SEQUENCES))


@given(COUNTS)
def test_a_round_has_the_exact_counts(counts: tuple[int, ...]) -> None:
    """Each round has each source as often as its count says, and every prefix nearly its share."""
    mixture = Mixture(counts)
    total = sum(counts)
    for number in range(2):
        found = sources(mixture, number * total, (number + 1) * total)
        assert tuple(np.bincount(found, minlength=len(counts)).tolist()) == counts
        for source, count in enumerate(counts):
            used = np.concatenate([[0], np.cumsum(np.array(found) == source)])
            excess = np.abs(total * used - np.arange(total + 1) * count)  # in parts of the total, which are whole
            assert (2 * excess <= total * (2 + len(counts))).all()


def test_products_beyond_64_bits_are_exact() -> None:
    """At fifteen trillion tokens a slot times a count does not fit into 64 bits."""
    counts = (7_324_218_749, 3_662_109_377, 12_345, 1)
    mixture = Mixture(counts)
    total = sum(counts)
    for first in (0, 1, total // 3, total - 600, total - 1, 5 * total + total // 2):
        found = sources(mixture, first, first + 1000)
        used = [after - before for before, after in zip(mixture.used(first), mixture.used(first + 1000), strict=True)]
        assert np.bincount(found, minlength=4).tolist() == used
        assert sources(mixture, first + 17, first + 1000) == found[17:]
    assert mixture.used(total) == list(counts)


@pytest.mark.parametrize("counts", [(5,), (5, 5), (1, 100)])
def test_sources_are_mixed_and_not_one_after_the_other(counts: tuple[int, ...]) -> None:
    """The rarest source is in the middle of a round, not at its end."""
    mixture = Mixture(counts)
    found = sources(mixture, 0, sum(counts))
    rare = [index for index, source in enumerate(found) if source == int(np.argmin(counts))]
    assert abs(np.mean(rare) - (sum(counts) - 1) / 2) <= 1
