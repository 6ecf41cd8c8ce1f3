"""Bring values of any plain column into one of four types: text, whole numbers, floating point numbers, booleans."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

TEXT = pa.large_string()
TYPES = (TEXT, pa.int64(), pa.float64(), pa.bool_())
# A floating point number holds whole numbers exactly up to here.
MAX_EXACT = 2.0**53
TEXTS = (pa.string(), TEXT, pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())


def as_plain(values: pa.Array) -> pa.Array:
    """The values in one of TYPES. Dates, times, decimals and UUIDs become text.

    Bytes that are not UTF-8 become U+FFFD.
    """
    if pa.types.is_dictionary(values.type):
        values.validate(full=True)
        values = values.dictionary_decode()
    if isinstance(values.type, pa.BaseExtensionType):
        is_uuid = values.type.extension_name == "arrow.uuid"
        return _uuid_text(values.storage) if is_uuid else as_plain(values.storage)
    kind = values.type
    if kind in TEXTS or pa.types.is_fixed_size_binary(kind):
        return _as_text(values)
    if pa.types.is_null(kind):
        return pa.nulls(len(values), TEXT)
    if pa.types.is_integer(kind):
        return _or_text(values, pa.int64())  # there are 64 bits without a sign
    if pa.types.is_floating(kind):
        return values.cast(pa.float64())
    return values if pa.types.is_boolean(kind) else values.cast(TEXT)


def inferred(fields: pa.Array) -> pa.Array:
    """Fields of a CSV file in the first of TYPES that all of them have. A whole number has no zeros before it.

    Whole numbers with more digits than the type has, and numbers beyond its range, are text. Other fractions are the
    nearest floating point number.
    """
    text = _as_text(fields)
    text = pc.if_else(pc.equal(text, ""), pa.scalar(None, TEXT), text)
    if text.null_count == len(text):
        return text
    if pc.all(pc.match_substring_regex(text, r"^(?:0|-?[1-9][0-9]*)$")).as_py():
        return _or_text(text, pa.int64())
    if pc.any(pc.match_substring_regex(text, r"^-?[0-9]{16,}(?:[.eE]|$)")).as_py():
        return text  # a floating point number may not hold all of its digits
    if pc.all(pc.match_substring_regex(text, r"^-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?$")).as_py():
        has_zeros = pc.any(pc.match_substring_regex(text, r"^-?0[0-9]")).as_py()
        numbers = text.cast(pa.float64())
        return text if has_zeros or pc.any(pc.is_inf(numbers)).as_py() else numbers
    if pc.all(pc.match_substring_regex(text, "^(?i:true|false)$")).as_py():
        return pc.equal(pc.utf8_lower(text), "true")
    return text


def unify(arrays: Sequence[pa.Array]) -> list[pa.Array]:
    """Arrays of TYPES in one common type: floating point numbers for numbers that fit, and text for anything else."""
    kinds = {array.type for array in arrays if array.null_count < len(array)}
    common = next(iter(kinds)) if len(kinds) == 1 else pa.float64() if kinds == {pa.int64(), pa.float64()} else TEXT
    if common == pa.float64() and any(_or_text(array, common).type == TEXT for array in arrays if len(kinds) > 1):
        common = TEXT
    return [as_type(array, common) for array in arrays]


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in another type that holds them. A column without a value has no type of its own."""
    if array.type == kind:
        return array
    return pa.nulls(len(array), kind) if array.null_count == len(array) else array.cast(kind)


def hashable(values: pa.Array) -> pa.Array:
    """The values with zero for negative zero, which is equal to it but has another hash."""
    return pc.add(values, 0.0) if pa.types.is_floating(values.type) else values


def host(urls: pa.Array) -> pa.Array:
    """The host of each URL in lower case, without user and port; null where a value has no host."""
    text = urls.cast(TEXT)
    found = pc.struct_field(pc.extract_regex(text, _HOST), "host")
    name = pc.utf8_rtrim(pc.utf8_lower(found), characters=".")
    return pc.if_else(pc.equal(name, ""), pa.scalar(None, name.type), name)


# The scheme and the user are optional. A name before a colon is a scheme if slashes follow, or if it is http or https:
# `example.org:8080/x` has a port. An IPv6 address is in brackets. As in browsers, the last @ ends the user, and a
# backslash is a slash.
_HOST = (
    r"^[\s\p{Z}\x{feff}]*(?:(?:[A-Za-z][A-Za-z0-9+.-]*:)?[/\\]{2,}|(?i:https?):[/\\]*)?"
    r"(?:[^/?#\\\s]*@)?(?P<host>\[[^\]]*\]|[^/?#:\\\s]*)"
)


def _or_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values in a type, or as text if one of them does not fit."""
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        return values.cast(TEXT)


def _as_text(values: pa.Array) -> pa.Array:
    values.validate()
    data = values.cast(pa.large_binary())
    data.validate(full=True)  # the offsets, before they are followed
    try:
        text = data.cast(TEXT)
        text.validate(full=True)
    except pa.ArrowInvalid:
        decoded = [None if value is None else value.decode(errors="replace") for value in data.to_pylist()]
        return pa.array(decoded, TEXT)
    return text


def _uuid_text(values: pa.Array) -> pa.Array:
    """UUIDs in 16 bytes as text, such as `123e4567-e89b-12d3-a456-426614174000`."""
    texts = [None if value is None else str(UUID(bytes=value)) for value in values.to_pylist()]
    return pa.array(texts, TEXT)
