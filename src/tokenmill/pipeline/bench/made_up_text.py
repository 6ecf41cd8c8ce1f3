"""Synthetic text for `bench`: always the same, with words as frequent as those of a language."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    import numpy.typing as npt

FILES = 4
# About ten megabytes.
WORDS_IN_FILE = 1_400_000
# The number of different words. A language has more, so every engine is faster on this text.
WORDS = 100_000
DOCUMENT_WORDS = 500
COMMON_WORDS = (
    "the of and to in a is that for it was on with as be are this by at from or have an not you which they one had "
    "but we all their there were can more has will about if other when out so some time people what into new would "
    "than its only most also do may like then over first such no my made after many where well way because these "
    "your between should years through each how much those while work just before being both under said any same use"
)
STARTS = "b br c ch d dr f g gr h j k l m n p pl pr qu r s sh st t th tr v w y"
MIDDLES = "a e i o u ai ea ee ou io"
ENDS = "n r s t l d m ng nt st ck ll rd"
# An open syllable is this many times as likely as any one of ENDS.
OPEN_SYLLABLES = 3


def write_made_up(directory: str) -> list[str]:
    """Write the text as Parquet files, and return their paths."""
    random = np.random.default_rng(1)
    words = pa.array(_words(random))
    bounds = np.cumsum(1 / np.arange(1, len(words) + 1))  # Zipf's law
    paths = [os.path.join(directory, f"{number}.parquet") for number in range(FILES)]
    for path in paths:
        picked = np.searchsorted(bounds, random.random(WORDS_IN_FILE) * bounds[-1])
        lists = pa.ListArray.from_arrays(_offsets(random), words.take(pa.array(picked)))
        pq.write_table(pa.table({"text": pc.binary_join(lists, " ")}), path, row_group_size=1000)
    return paths


def _offsets(random: np.random.Generator) -> pa.Array:
    """The offsets of documents among the words of a file, and its end. Many documents are short, a few are long."""
    lengths: npt.NDArray[np.float64] = random.lognormal(np.log(DOCUMENT_WORDS) - 0.5, 1.0, WORDS_IN_FILE)
    ends = np.cumsum(np.maximum(lengths, 1).astype(np.int64))
    return pa.array(np.concatenate([[0], ends[ends < WORDS_IN_FILE], [WORDS_IN_FILE]]), pa.int32())


def _words(random: np.random.Generator) -> list[str]:
    """Words by descending frequency: the most common English ones, then invented ones of one to three syllables."""
    ends = [""] * OPEN_SYLLABLES + ENDS.split()
    syllables = ["".join(letters) for letters in itertools.product(STARTS.split(), MIDDLES.split(), ends)]
    picked = random.integers(0, len(syllables), (2 * WORDS, 3)).tolist()
    lengths = random.integers(1, 4, len(picked)).tolist()
    invented = (
        "".join(syllables[pick] for pick in picks[:length]) for picks, length in zip(picked, lengths, strict=True)
    )
    return list(dict.fromkeys([*COMMON_WORDS.split(), *invented]))[:WORDS]
