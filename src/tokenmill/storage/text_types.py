"""The Arrow types that can hold text."""

from __future__ import annotations

import pyarrow as pa


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type can contain documents: strings, bytes that may be UTF-8, or only nulls."""
    if pa.types.is_dictionary(kind):
        return bool(pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type))
    strings = (pa.string(), pa.large_string(), pa.string_view())
    return kind in (*strings, pa.binary(), pa.large_binary(), pa.binary_view(), pa.null())
