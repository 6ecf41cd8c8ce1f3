"""Find the documents on which the reference may fail. The reference encodes these with every engine setting.

tiktoken's regex engine fails (`StackOverflow`) on 999,999 white space characters in a row that are followed by text.
`tokenizers` encodes them but needs seconds. The result depends on the document only, never on an engine.
"""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt

# The reference encodes a document with more white space in a row: a quarter of the least that fails.
MAX_WHITE_SPACE_BYTES = 256 << 10
# Only every so many bytes of a long document is examined.
SAMPLE_STEP = 4 << 10
# White space that is too long contains at least this many consecutive samples.
MIN_SAMPLES = MAX_WHITE_SPACE_BYTES // SAMPLE_STEP - 1

_WHITE_SPACE = "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029"
_BYTES = np.zeros(256, np.bool_)
_BYTES[list(f"{_WHITE_SPACE}\u202f\u205f\u3000".encode())] = True


def documents_with_long_white_space(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> list[int]:
    """The indices of the documents that have a run of white space longer than MAX_WHITE_SPACE_BYTES.

    Document i is data[offsets[i]:offsets[i + 1]]. A false positive is possible if the samples of other text are bytes
    that also occur in white space. The reference encodes such a document correctly, only slower.
    """
    long = np.flatnonzero(np.diff(offsets) > MAX_WHITE_SPACE_BYTES)
    return [index for index in long.tolist() if _has_run(data[offsets[index] : offsets[index + 1] : SAMPLE_STEP])]


def _has_run(samples: npt.NDArray[np.uint8]) -> bool:
    others = np.flatnonzero(~_BYTES[samples])
    edges = itertools.chain([-1], others.tolist(), [len(samples)])
    return any(after - before > MIN_SAMPLES for before, after in itertools.pairwise(edges))
