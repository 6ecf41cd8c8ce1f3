"""Decode JSON and YAML that another user may have written.

The error for malformed bytes does not name their file. Callers that know the file make a user's error of it.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")

# YAML is not deeper: the time of the parser grows with the square of the depth.
MAX_DEPTH = 20


class MalformedDataError(Exception):
    """Bytes are not what they should be. The message gives the reason, and reads well after a file's name."""


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a record from JSON. Raises MalformedDataError if it is too deep, not UTF-8, or has other fields."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedDataError(str(error)) from error


def decode_yaml(text: str, kind: type[T]) -> T:
    """Decode a record from YAML: plain scalars, which become texts, no aliases, which repeat content, bounded depth.

    Raises MalformedDataError for anything unexpected.
    """
    import yaml  # noqa: PLC0415 - only for datasets with a card

    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    depth = 0
    try:
        for event in yaml.parse(text, loader):
            if isinstance(event, yaml.AliasEvent):
                raise MalformedDataError("it has aliases")
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                raise MalformedDataError(f"it is more than {MAX_DEPTH} levels deep")
        return msgspec.convert(yaml.load(text, loader), kind)  # noqa: S506 - it makes texts, lists and dicts only
    except (yaml.YAMLError, msgspec.ValidationError, ValueError) as error:
        raise MalformedDataError(" ".join(str(error).split())) from error
