"""Parse JSON Lines: blocks with pyarrow, and single lines with Python.

Both accept the same lines. Python's parser alone would refuse bytes that are not UTF-8, values in a thousand lists and
objects, and the numbers `Inf`, `-Inf` and `-NaN`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.json

# If a line is nested too deeply for Python's parser, values in more lists and objects than this are not read.
MAX_DEPTH = 100

_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]|-?(?:NaN|Inf(?:inity)?)')
_NUMBERS = {"-NaN": "NaN", "Inf": "Infinity", "-Inf": "-Infinity"}
# What stands for such a value until the line is parsed: a number that is not written like this otherwise.
_PLACEHOLDER = "0.0e-00000100"

Types = Mapping[str, pa.DataType]


class TooDeep:
    """A value that is nested too deeply to be read."""


def parse(data: bytes | bytearray, types: Types | None) -> pa.Table:
    """Parse lines with pyarrow: the keys in `types`, or all keys with the types that pyarrow infers."""
    if types is None:
        options = pa.json.ParseOptions(unexpected_field_behavior="infer")
    else:
        schema = pa.schema(list(types.items()))
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    blocks = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    return pa.json.read_json(pa.BufferReader(data), read_options=blocks, parse_options=options)


def load(line: bytes | bytearray, parse_int: Callable[[str], Any], errors: str) -> Any:
    """Parse a line with Python. `errors` is what happens to bytes that are not UTF-8, as in `bytes.decode`.

    Raises ValueError if the line is not JSON.
    """
    text = line.decode(errors=errors)
    try:
        return json.loads(text, parse_int=parse_int)
    except (ValueError, RecursionError) as error:
        if not _is_accepted(line):
            raise ValueError(str(error)) from error
    return json.loads(_for_python(text), parse_int=parse_int, parse_float=_float)


def _is_accepted(line: bytes | bytearray) -> bool:
    """Whether pyarrow accepts a line as one object."""
    try:
        return line[:1] == b"{" and len(parse(line, {})) == 1
    except pa.ArrowInvalid:
        return False


def _for_python(text: str) -> str:
    """JSON text that Python accepts, with a placeholder for each value in more than MAX_DEPTH lists and objects."""
    kept, end, depth = list[str](), 0, 0
    for match in _PART.finditer(text):
        part = match[0]
        is_kept = depth <= MAX_DEPTH
        depth += (part in {"[", "{"}) - (part in {"]", "}"})
        if is_kept:
            kept += [text[end : match.start()], _NUMBERS.get(part, part) if depth <= MAX_DEPTH else _PLACEHOLDER]
        end = match.end()
    return "".join([*kept, text[end:]])


def _float(digits: str) -> float | TooDeep:
    return TooDeep() if digits == _PLACEHOLDER else float(digits)
