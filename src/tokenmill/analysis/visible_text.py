"""Shows invisible characters of tokens and names."""

from __future__ import annotations

import unicodedata

_SYMBOLS = {" ": "\u2423", "\n": "\u23ce", "\t": "\u21e5"}


def decode_token(token_bytes: bytes) -> str:
    """Decode the bytes of a token. Bytes that are not UTF-8, such as half a character, become escapes."""
    return token_bytes.decode("utf-8", "backslashreplace")


def make_visible(text: str) -> str:
    """Replace white space and control characters by visible ones, and put combining marks on a dotted circle."""
    return "".join(map(_visible, text))


def display_name(value: str) -> str:
    """A name to show: an empty or blank one is made visible."""
    return value if value.strip() else make_visible(value) or "(empty)"


def _visible(character: str) -> str:
    if character in _SYMBOLS:
        return _SYMBOLS[character]
    if not character.isprintable():
        return character.encode("unicode-escape").decode()
    return f"\u25cc{character}" if unicodedata.category(character).startswith("M") else character
