"""What is wrong with some bytes, without their file: whoever knows it makes an error for people of it."""

from __future__ import annotations

from typing import TypeVar

import msgspec

T = TypeVar("T")


class MalformedDataError(Exception):
    """Bytes are not what they should be; the message says why, in words that follow a file's name."""


def decode(data: bytes, kind: type[T]) -> T:
    """A record from JSON, or Damage: too deep, no UTF-8, other fields."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedDataError(str(error)) from error
