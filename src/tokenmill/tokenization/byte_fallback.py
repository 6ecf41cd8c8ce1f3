"""Decide whether gigatoken encodes a vocabulary of SentencePiece's kind exactly as the reference does.

Such a vocabulary has tokens of characters, and a token like `<0x0A>` for each byte of the characters that it lacks. No
step of these shapes looks at Unicode properties. Both engines merge the pair with the lowest place in the list of
merges, so the rules for byte-level vocabularies about ties of ids are not needed.
"""

from __future__ import annotations

import re
from typing import Any

_MARK = "\u2581"
_PREPEND = {"type": "Prepend", "prepend": _MARK}
_REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": _MARK}
_METASPACE = {"type": "Metaspace", "replacement": _MARK, "prepend_scheme": "first", "split": False}
_AT_SPACES = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
_LLAMA = ({"type": "Sequence", "normalizers": [_PREPEND, _REPLACE]}, None)
_MISTRAL = (None, _METASPACE)
_GEMMA = (_REPLACE, _AT_SPACES)
# The pairs of a normalizer and a pre-tokenizer that were compared.
SHAPES = (_LLAMA, _MISTRAL, _GEMMA)
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# In UTF-8, these bytes spell the characters beyond ASCII.
_LATER_BYTES = [byte for byte in range(0x80, 0xF5) if byte not in (0xC0, 0xC1)]


def unsupported_fallback(content: dict[str, Any]) -> str | None:
    """The reason why gigatoken must not be used for a tokenizer.json with `byte_fallback`, or None.

    The caller has checked the model's options, its added tokens and its template.
    """
    shape = (content.get("normalizer"), content.get("pre_tokenizer"))
    if shape not in SHAPES:
        return "its normalizer and split are not a pair that was compared"
    for token in content.get("added_tokens") or []:
        if token["special"]:
            continue
        text = token["content"]
        options = [flag for flag in ("single_word", "lstrip", "rstrip", "normalized") if token.get(flag) is not False]
        if options:
            return f"its added token {text!r} has {options[0]}"
        if shape == _MISTRAL:  # only the text before the token is at the start of the document
            return f"the text after its added token {text!r} is not at the start of a document"
    return _unsupported_vocabulary(content["model"])


def _unsupported_vocabulary(model: dict[str, Any]) -> str | None:
    vocabulary, merges = model["vocab"], model["merges"]
    if set(vocabulary.values()) != set(range(len(vocabulary))) or "" in vocabulary:
        return "its ids have gaps, or two tokens have the same"
    characters = [chr(byte) for byte in range(0x80) if f"<0x{byte:02X}>" not in vocabulary]
    if not vocabulary.keys() >= {*characters, *(f"<0x{byte:02X}>" for byte in _LATER_BYTES)}:
        return "a byte of UTF-8 has no token"
    pairs = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        return "one of its merges is not a pair"
    if len(set(pairs)) != len(pairs):
        return "one of its merges is listed twice"
    tokens = {token for pair in pairs for token in (*pair, "".join(pair))}
    if not tokens <= vocabulary.keys():
        return "one of its merges has no token"
    # gigatoken takes such a token for its byte, and that for the character of the byte if there is one.
    return "one of its merges has the token of a byte" if any(map(_BYTE_TOKEN.fullmatch, tokens)) else None
