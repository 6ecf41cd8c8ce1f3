"""What a segmenter gives: all of a conversation's text in pieces, each trained on or not."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

Piece = tuple[str, bool]
Message = dict[str, Any]
Segmenter = Callable[[list[Message], list[Any] | None], list[Piece]]


class Refused(Exception):
    """The template raises."""


# What the templates' expressions do on a message that they do not expect, such as adding a list to text.
REFUSALS = (Refused, TypeError, KeyError, AttributeError, IndexError)


def as_json(value: Any) -> str:
    """`tojson` of chat templates."""
    return json.dumps(value, ensure_ascii=False)


def given(messages: list[Message]) -> list[Message]:
    """Messages as templates get them: without nulls, and with the reasoning under both of its names."""
    made = []
    for message in messages:
        own = {key: value for key, value in message.items() if value is not None}
        names = [name for name in ("reasoning_content", "thinking", "reasoning") if name in own]
        if names:
            own = {"thinking": own[names[0]], **own, "reasoning_content": own[names[0]]}
        made.append(own)
    return made


def segments(segmenter: Segmenter, conversation: dict[str, Any]) -> tuple[str, list[tuple[int, int]]]:
    """The text of a conversation, and the bytes of it that are trained on. Raises Refused."""
    try:
        pieces = segmenter(given(conversation["messages"]), conversation["tools"])
    except REFUSALS as error:
        raise Refused(str(error)) from error
    return "".join(text for text, _ in pieces), trained_bytes(pieces)


def trained_bytes(pieces: Iterable[Piece]) -> list[tuple[int, int]]:
    """The begin and the end of what is trained on. Pieces that touch are one."""
    spans: list[tuple[int, int]] = []
    place = 0
    for text, is_trained in pieces:
        end = place + len(text.encode())
        if is_trained and text:
            if spans and spans[-1][1] == place:
                spans[-1] = (spans[-1][0], end)
            else:
                spans.append((place, end))
        place = end
    return spans
