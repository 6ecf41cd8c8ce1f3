"""Control tokens: the added tokens that mark structure, such as `<|im_start|>` and `<think>`.

A template whose control tokens are parsed is read with a mark in place of each of them. So what the template spells is
told from what the values of a column spell.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import msgspec

from tokenmill.errors import UsageError
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.vocabularies import Vocabulary

# A mark begins with one of these characters, which Unicode reserves for internal use, so that text does not have them.
FIRST_MARK, MAX_MARKS = 0xFDD0, 32
MARK_BYTES = 3
_LOOKS_LIKE_CONTROL = re.compile(r"<.+>|\[.+\]", re.DOTALL)


def control_tokens(spec: TokenizerSpec) -> tuple[str, ...]:
    """The spellings of the special tokens, and of the other added tokens that look like them: `<...>` and `[...]`."""
    return tuple(
        text for text in spec.added_tokens if text in spec.special_tokens or _LOOKS_LIKE_CONTROL.fullmatch(text)
    )


def spelled_special_tokens(spec: TokenizerSpec, literals: Iterable[str]) -> list[str]:
    """The special tokens in the text of a template, each once, in order."""
    pattern = _special_pattern(spec)
    found = (match.group() for literal in literals for match in pattern.finditer(literal)) if pattern else ()
    return list(dict.fromkeys(found))


def marks_of(spec: TokenizerSpec, literals: Iterable[str]) -> dict[str, str]:
    """A mark for each special token that a template spells. Raises UsageError if there are too many.

    A mark has as many bytes as its token, so that a document with marks has the size of its text.
    """
    tokens = spelled_special_tokens(spec, literals)
    if len(tokens) > MAX_MARKS:
        raise UsageError(f"the template spells {len(tokens)} different special tokens", f"at most      {MAX_MARKS}")
    sizes = [len(token.encode()) for token in tokens]
    return {token: chr(FIRST_MARK + n) + "_" * (sizes[n] - MARK_BYTES) for n, token in enumerate(tokens)}


def marked(spec: TokenizerSpec, literal: str, marks: dict[str, str]) -> str:
    """A text of a template, with marks in place of its special tokens."""
    pattern = _special_pattern(spec)
    return pattern.sub(lambda match: marks[match.group()], literal) if pattern else literal


def refuse_inexact_cut(vocabulary: Vocabulary, tokens: Iterable[str]) -> None:
    """Raise UsageError if the text around one of these tokens would get other tokens than the reference gives it.

    The text between two marks is encoded by itself.
    """
    spec, wanted = vocabulary.spec, set(tokens)
    if spec.kind != "huggingface" or not wanted:
        return
    try:
        content: dict[str, Any] = decode(vocabulary.content, dict[str, Any])
    except MalformedDataError as damage:
        raise _inexact(spec, str(damage)) from damage
    flags = ["single_word", "lstrip", "rstrip", *(["normalized"] if content.get("normalizer") else [])]
    for token in content.get("added_tokens") or []:
        options = [flag for flag in flags if token.get(flag, flag == "normalized")]
        if token["content"] in wanted and options:
            raise _inexact(spec, f"its token {token['content']} has {options[0]}")
    if b'"prepend_scheme":"first"' in msgspec.json.encode(content.get("pre_tokenizer")):
        raise _inexact(spec, "it treats the first word of a document in another way than the others")


def _inexact(spec: TokenizerSpec, reason: str) -> UsageError:
    return UsageError(
        f"the control tokens of a template cannot be parsed by themselves with {spec.name}",
        f"reason       {reason}",
        "Use --special parse, which parses those in the values, too.",
    )


def plain_content(content: bytes) -> bytes:
    """A tokenizer.json without special tokens: the spelling of each added token becomes its id."""
    parsed = json.loads(content)
    for token in parsed.get("added_tokens") or []:
        token["special"] = False
    return json.dumps(parsed).encode()


def _special_pattern(spec: TokenizerSpec) -> re.Pattern[str] | None:
    """Matches the longest of the special tokens that begin at a position."""
    texts = sorted(filter(None, spec.special_tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, texts))) if texts else None
