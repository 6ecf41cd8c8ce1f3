"""Conversations: the messages of a row and its tools as one JSON text, `{"messages": [...], "tools": [...]}`.

So a reader batches, checks and limits them as it does text. `without_wrong` takes out the rows that hold something
else, and the text is rendered after that. Keys keep their order. A null field of an Arrow struct is left out, because
Arrow has every field in every row; a null of JSON stays.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.sources.bad_rows import NOT_MESSAGES, bad_row, without_rows
from tokenmill.sources.documents import Documents, ReadOptions, SourceFile, as_text
from tokenmill.sources.text_columns import is_list
from tokenmill.storage.arrow_text import is_text

MESSAGES, TOOLS = "messages", "tools"
# Begins the text of a row without a conversation: what is wrong follows, then a line end and the value.
_WRONG = "?"
SHOWN_CHARACTERS = 60


class NotMessagesError(Exception):
    """A row has no conversation. The text says what it has."""


def conversation(messages: Any, tools: Any = None) -> bytes | None:
    """The text of a conversation; None without messages. Both may be JSON text. Raises NotMessagesError."""
    try:
        messages, tools = (_parsed(value) for value in (messages, tools))
        if messages is None:
            return None
        found = {MESSAGES: messages} | ({} if tools is None else {TOOLS: tools})
        for name, value in found.items():
            if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
                raise NotMessagesError(f"the {name} are {_shown(value)}, not a list of objects")
        return msgspec.json.encode(found)
    except UnicodeEncodeError:
        raise NotMessagesError("a string has half of a surrogate pair") from None
    except (TypeError, RecursionError):
        raise NotMessagesError("a number is not finite, or values are nested too deeply") from None


def parse(text: str | bytes | bytearray) -> Any:
    """A value of JSON. What msgspec refuses and Python does not, such as NaN, is an object without a JSON text.

    Raises ValueError, also for text that is not UTF-8.
    """
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        plain = text if isinstance(text, str) else text.decode()
    try:
        return json.loads(plain, parse_constant=lambda _: object(), parse_float=_finite)
    except RecursionError as error:
        raise ValueError(str(error)) from error


def _parsed(value: Any) -> Any:
    """A value, or what its JSON text says."""
    if not isinstance(value, str):
        return value
    try:
        return parse(value) if value.strip() else None
    except ValueError as error:
        raise NotMessagesError(f"the text is not JSON: {error}") from error


def _finite(digits: str) -> Any:
    return number if math.isfinite(number := float(digits)) else object()


def _shown(value: Any) -> str:
    text = msgspec.json.encode(value, enc_hook=lambda _: "...").decode()
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."


def join_columns(columns: Sequence[pa.Array]) -> pa.LargeStringArray:
    """The conversations of the columns with messages and tools."""
    try:
        rows = list(zip(*map(_values, columns), strict=True))
    except UnicodeDecodeError:
        if len(columns[0]) > 1:
            parts = [join_columns([column.slice(row, 1) for column in columns]) for row in range(len(columns[0]))]
            return pa.concat_arrays(parts)
        return pa.array([f"{_WRONG}a string is not valid UTF-8\n"], pa.large_string())
    return as_text(pa.array([_or_wrong(*row) for row in rows], pa.large_binary()))


def _or_wrong(*row: Any) -> bytes | None:
    try:
        return conversation(*row)
    except NotMessagesError as error:
        value = json.dumps(row[0], ensure_ascii=False, default=str)
        return f"{_WRONG}{error}\n{value}".encode(errors="replace")


def _values(array: pa.Array) -> list[Any]:
    """The values of a column as those of JSON, without the null fields of structs."""
    kind = array.type
    if pa.types.is_map(kind):
        pairs = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        keys, values = (_values(field) for field in pc.list_flatten(pairs).flatten())
        return _in_lists(pairs, zip(keys, values, strict=True), dict)
    if is_list(kind):
        return _in_lists(array, _values(pc.list_flatten(array)), list)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        rows: Any = zip(*map(_values, array.flatten()), strict=True) if names else [()] * len(array)
        found = [{name: value for name, value in zip(names, row, strict=True) if value is not None} for row in rows]
        return [value if valid else None for value, valid in zip(found, array.is_valid().to_pylist(), strict=True)]
    if is_text(kind):
        array = as_text(array.dictionary_decode() if pa.types.is_dictionary(kind) else array)
    values = array.to_pylist()
    is_float = pa.types.is_floating(kind)
    return [object() if is_float and value is not None and not math.isfinite(value) else value for value in values]


def _in_lists(lists: pa.Array, items: Any, make: type) -> list[Any]:
    remaining = iter(items)
    lengths = pc.list_value_length(lists).to_pylist()
    is_valid = lists.is_valid().to_pylist()
    return [
        make(itertools.islice(remaining, length)) if valid else None
        for length, valid in zip(lengths, is_valid, strict=True)
    ]


def without_wrong(file: SourceFile, documents: Documents, options: ReadOptions) -> Documents:
    """The documents without the rows that hold no conversation, which become bad rows."""
    is_wrong = pc.starts_with(documents.text, _WRONG).fill_null(False).to_numpy(zero_copy_only=False)
    if not is_wrong.any():
        return documents
    rows, texts = documents.rows[is_wrong].tolist(), documents.text.filter(pa.array(is_wrong)).to_pylist()
    found = [text[len(_WRONG) :].partition("\n") for text in texts]
    bad = [bad_row(row, NOT_MESSAGES, detail, raw.encode()) for row, (detail, _, raw) in zip(rows, found, strict=True)]
    return without_rows(file, documents, np.asarray(is_wrong), bad, options)
