"""The mixture of sources: exact counts in each round, close to the share at any time, and the same from any start."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.loader.stage import Stage

COUNTS = st.lists(st.integers(1, 40), min_size=1, max_size=6).map(tuple)


def sources(stage: Stage, first: int, last: int) -> list[int]:
    """The source of each of some sequences."""
    found = np.full(last - first, -1)
    for source, _, _, rows in stage.sources_of(first, last):
        found[rows] = source
    return found.tolist()


@given(COUNTS)
def test_a_round_has_the_exact_counts(counts: tuple[int, ...]) -> None:
    """Each round has each source as often as its count says, and every prefix nearly its share."""
    stage = Stage(8, counts, (0,) * len(counts))
    total = sum(counts)
    for number in range(2):
        found = sources(stage, number * total, (number + 1) * total)
        assert tuple(np.bincount(found, minlength=len(counts)).tolist()) == counts
        for length in range(total):
            for source, count in enumerate(counts):
                share = Fraction(length * count, total)
                assert abs(found[:length].count(source) - share) <= 1 + Fraction(len(counts), 2)


@given(COUNTS, st.integers(0, 300), st.integers(1, 100))
def test_any_range_is_a_slice_of_the_whole(counts: tuple[int, ...], first: int, length: int) -> None:
    """The sources of a range, and how far each is read, do not depend on where the range begins."""
    stage = Stage(8, counts, (0,) * len(counts))
    whole = sources(stage, 0, first + length)
    assert sources(stage, first, first + length) == whole[first:]
    used = [whole[:first].count(source) for source in range(len(counts))]
    assert stage.used(first) == used
    for source, low, high, rows in stage.sources_of(first, first + length):
        assert low == used[source]
        assert high - low == len(rows) == whole[first:].count(source)


def test_products_beyond_64_bits_are_exact() -> None:
    """At fifteen trillion tokens a slot times a count does not fit into 64 bits."""
    counts = (7_324_218_749, 3_662_109_377, 12_345, 1)
    stage = Stage(2048, counts, (0,) * len(counts))
    total = sum(counts)
    for first in (0, 1, total // 3, total - 600, total - 1, 5 * total + total // 2):
        found = sources(stage, first, first + 1000)
        used = [after - before for before, after in zip(stage.used(first), stage.used(first + 1000), strict=True)]
        assert np.bincount(found, minlength=4).tolist() == used
        assert sources(stage, first + 17, first + 1000) == found[17:]
    assert stage.used(total) == list(counts)


def test_the_next_stage_begins_where_the_last_one_ended() -> None:
    """The cursors of a stage are tokens of each source, whatever the sequence length of the next stage is."""
    stage = Stage(2048, (3, 1), (8192, 0))
    assert stage.cursors(8) == (8192 + 6 * 2048, 2 * 2048)


@pytest.mark.parametrize("counts", [(5,), (5, 5), (1, 100)])
def test_sources_are_mixed_and_not_one_after_the_other(counts: tuple[int, ...]) -> None:
    """The rarest source is in the middle of a round, not at its end."""
    stage = Stage(8, counts, (0,) * len(counts))
    found = sources(stage, 0, sum(counts))
    rare = [index for index, source in enumerate(found) if source == int(np.argmin(counts))]
    assert abs(np.mean(rare) - (sum(counts) - 1) / 2) <= 1
