"""Pieces of text that tokens stand for, so that people can see them."""

from __future__ import annotations

import unicodedata

_VISIBLE = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}


def spelled(piece: bytes) -> str:
    """A piece as text; bytes that are no UTF-8, as those of half a character are, by their numbers."""
    return piece.decode("utf-8", "backslashreplace")


def visible(text: str) -> str:
    """Text of which everything can be seen: white space, marks that go on top of a letter, and control characters."""
    return "".join(map(_visible, text))


def named(value: str) -> str:
    """A name of which something can be seen, even if it is empty or blank."""
    return value if value.strip() else visible(value) or "(empty)"


def _visible(character: str) -> str:
    if character in _VISIBLE:
        return _VISIBLE[character]
    if not character.isprintable():
        return character.encode("unicode-escape").decode()
    return f"\u25cc{character}" if unicodedata.category(character).startswith("M") else character
