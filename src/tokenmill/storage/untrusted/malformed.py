"""An error for malformed bytes without the name of their file. Callers that know the file make a user's error of it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class MalformedDataError(Exception):
    """Bytes are not what they should be. The message gives the reason, and reads well after a file's name."""


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a record from JSON. Raises MalformedDataError if it is too deep, not UTF-8, or has other fields."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedDataError(str(error)) from error
