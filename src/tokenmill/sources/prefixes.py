r"""Text before documents, such as the host of a page (`--prefix`), which is encoded by itself.

While a file is read, the size of a prefix stands in a line before it, and the text after it: `0000000004\nhosttext`. So
a reader cuts and checks one array, as of other documents. `with_prefix` takes prefix and text apart.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.sources.documents import Documents
from tokenmill.storage.arrow_text import text_buffers

# The digits of the size of a prefix, and what stands for them in a row without one.
SIZE_DIGITS = 10
NO_PREFIX = "-" * SIZE_DIGITS


def join_prefix(prefix: pa.LargeStringArray, text: pa.LargeStringArray) -> pa.LargeStringArray:
    """Each text after the size of its prefix and the prefix."""
    sizes = pc.binary_length(prefix.cast(pa.large_binary())).cast(pa.large_string())
    line = pc.fill_null(pc.ascii_lpad(sizes, SIZE_DIGITS, "0"), NO_PREFIX)
    joined = pc.binary_join_element_wise(prefix.fill_null(""), text, pa.scalar("", pa.large_string()))
    return pc.binary_join_element_wise(line, joined, pa.scalar("\n", pa.large_string()))


def with_prefix(documents: Documents) -> Documents:
    """The documents with their text alone, and their prefixes."""
    data, offsets = text_buffers(documents.text)
    is_present = ~documents.null_mask()
    lines = pc.utf8_slice_codeunits(documents.text, 0, SIZE_DIGITS)
    has_prefix = pc.not_equal(lines, NO_PREFIX)
    sizes = pc.if_else(has_prefix, lines, "0").cast(pa.int64()).fill_null(0).to_numpy()
    begin = offsets[:-1] + (SIZE_DIGITS + 1) * is_present
    edges = np.append(np.stack([offsets[:-1], begin, begin + sizes], axis=1).reshape(-1), offsets[-1])
    parts = pa.LargeStringArray.from_buffers(
        len(edges) - 1, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(data))
    )
    prefix, text = (parts.take(pa.array(np.arange(first, len(parts), 3))) for first in (1, 2))
    text = text if is_present.all() else pc.if_else(pa.array(is_present), text, pa.scalar(None, pa.large_string()))
    return replace(documents, text=text, prefix=pc.if_else(has_prefix, prefix, pa.scalar(None, pa.large_string())))
