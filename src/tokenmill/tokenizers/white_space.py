"""Finds the documents on which the reference may fail, so that the reference decides about them with every engine.

tiktoken's regex engine gives up (`StackOverflow`) at a run of 999,999 white space characters that text follows.
`tokenizers` encodes such a run, but needs seconds for it. The test looks at the document only, never at an engine.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

MAX_WHITE_SPACE_BYTES = 256 << 10
"""A document with a longer run of white space goes to the reference: a quarter of the shortest run that fails."""

SAMPLE_STEP = 4 << 10
"""Every how many bytes of a long document one is looked at."""

MIN_SAMPLES = MAX_WHITE_SPACE_BYTES // SAMPLE_STEP - 1
"""How many samples one after the other are in any run that is too long."""

_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
_BYTES = np.zeros(256, np.bool_)
_BYTES[list(f"{_WHITE_SPACE}\u202f\u205f\u3000".encode())] = True


def documents_with_long_white_space(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> list[int]:
    """The indices of the documents that have a run of white space longer than MAX_WHITE_SPACE_BYTES.

    Document i is data[offsets[i]:offsets[i + 1]]. A document of other text whose samples are all bytes that white space
    has as well may be among them: the reference encodes it correctly, only slower.
    """
    long = np.flatnonzero(np.diff(offsets) > MAX_WHITE_SPACE_BYTES)
    return [index for index in long.tolist() if _has_run(data[offsets[index] : offsets[index + 1] : SAMPLE_STEP])]


def _has_run(samples: npt.NDArray[np.uint8]) -> bool:
    others = np.flatnonzero(~_BYTES[samples])
    edges = itertools.chain([-1], others.tolist(), [len(samples)])
    return any(after - before > MIN_SAMPLES for before, after in itertools.pairwise(edges))
