"""What a template gets of a conversation: the fields that transformers gives it, and marks around its texts."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from typing import Any

# The fields in which data sets have the reasoning of a turn. Templates read one of them, so it is given under each.
_REASONING = ("reasoning_content", "thinking", "reasoning")
# The flags of a message that say whether it is trained on.
_FLAGS = ("train", "weight")
# The fields of ShareGPT, and what they are called elsewhere.
_SHAREGPT = {"from": "role", "value": "content"}
# Marks are characters for private use. The second plane is used if a conversation has characters of the first one.
_PLANES = (0xF0000, 0x100000)
_PLANE_SIZE = 0xFFFE
_MARKS = {plane: re.compile(f"([{chr(plane)}-{chr(plane + _PLANE_SIZE - 1)}])") for plane in _PLANES}
# Breaks a control token that a conversation spells, after its first character.
BREAK = chr(_PLANES[0] + _PLANE_SIZE - 1)
# What a template may look for at the edges of a text: white space and tags. Marks are put inside of them.
_OPENING = re.compile(r"(?:\s|<[^<>\s]{1,64}>)*")
_TAG_AT_END = re.compile(r"<[^<>\s]{1,64}>\Z")
_MAX_TAG = 66
# A template takes the reasoning out of the content at this tag.
_END_OF_REASONING = "</think>"


def tags_before(text: Any) -> str:
    """The tags at the start of a text, which are before its mark: they may be control tokens."""
    found = _OPENING.match(text) if isinstance(text, str) else None
    return found.group().lstrip() if found else ""


class MarksError(Exception):
    """The rendering with marks is not the plain one with marks in it. The text says how."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages as a template gets them, and whether each is trained on, if it says so itself."""

    messages: list[dict[str, Any]]
    flags: list[bool | None]

    @classmethod
    def of(cls, messages: list[dict[str, Any]], roles: dict[str, str]) -> Conversation:
        """Messages without nulls and flags, with one name for each role."""
        made = [_message(message, roles) for message in messages]
        return cls([message for message, _ in made], [flag for _, flag in made])


def _message(message: dict[str, Any], roles: dict[str, str]) -> tuple[dict[str, Any], bool | None]:
    given = {key: value for key, value in message.items() if value is not None}
    if "role" not in given:
        given = {_SHAREGPT.get(key, key): value for key, value in given.items()}
    flag = next((bool(given.pop(key)) for key in _FLAGS if key in given and given[key] in (0, 1)), None)
    if roles and "role" in given:
        given["role"] = roles.get(given["role"], given["role"])
    reasoning = next((given[key] for key in _REASONING if key in given), None)
    if reasoning is not None:
        given = {"thinking": reasoning, **given, "reasoning_content": reasoning}
    return given, flag


def broken(value: Any, special: re.Pattern[str]) -> Any:
    """The same messages or tools, with a break in each special token that they spell."""
    if isinstance(value, str):
        return special.sub(lambda match: f"{match[0][0]}{BREAK}{match[0][1:]}", value)
    if isinstance(value, dict):
        return {key: broken(item, special) for key, item in value.items()}
    return [broken(item, special) for item in value] if isinstance(value, list) else value


@dataclass(slots=True)
class Marks:
    """Puts a mark at the begin and at the end of each text of a conversation, and finds them in its rendering.

    A mark is a character of its own, which says what it marks. `_owner` has the number of the message of each mark.
    """

    plane: int
    _owner: list[int] = field(default_factory=list)
    _may_repeat: list[bool] = field(default_factory=list)
    _tags: dict[int, str] = field(default_factory=dict)  # those after a mark at the end of a text

    @classmethod
    def for_text(cls, plain: str) -> Marks:
        """Marks whose characters a rendering does not use. Raises MarksError if it uses those of both planes."""
        if plain.isascii():
            return cls(_PLANES[0])
        free = [plane for plane in _PLANES if not _MARKS[plane].search(plain)]
        if not free:
            raise MarksError("it has private-use characters of both planes")
        return cls(free[0])

    @property
    def owners(self) -> set[int]:
        """The messages that have marks."""
        return set(self._owner)

    def put(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The messages with marks in their texts."""
        return [self._put(number, message) for number, message in enumerate(messages)]

    def wrap(self, text: str) -> str:
        """Text between tags of the template, with marks around it."""
        return self._around(-1, text, 0, len(text))

    def wrap_inside(self, text: str) -> str:
        """The same, with the marks inside of the white space."""
        return self._around(-1, text, len(text) - len(text.lstrip()), len(text.rstrip())) if text.strip() else text

    def find(self, rendering: str, plain: str) -> list[tuple[int, int, int]]:
        """The message, the begin and the end of each text that is in the plain rendering, in order.

        Raises MarksError if the marks changed the rendering, or do not occur in order, once each. The name of a
        function may be there again.
        """
        pieces = _MARKS[self.plane].split(rendering)
        if "".join(pieces[::2]) != plain:
            raise MarksError("marks in its texts change the rendering")
        places = list(itertools.accumulate(map(len, pieces[:-1:2])))
        marks = [ord(mark) - self.plane for mark in pieces[1::2]]
        if marks == list(range(2 * len(self._owner))):
            found = list(zip(range(len(self._owner)), places[::2], places[1::2], strict=True))
        else:
            found = self._find(marks, places)
        if self._tags:
            found = [(number, begin, self._with_tags(number, end, plain)) for number, begin, end in found]
        return [(self._owner[number], begin, end) for number, begin, end in found]

    def _with_tags(self, number: int, end: int, plain: str) -> int:
        """Where a text ends with the tags after its mark, if they are in the rendering: they may be control tokens."""
        tags = self._tags.get(number, "")
        return end + len(tags) if plain.startswith(tags, end) else end

    def _find(self, marks: list[int], places: list[int]) -> list[tuple[int, int, int]]:
        """The number and the edges of each text, if marks are missing, or there more than once."""
        begins, ends = dict[int, int](), dict[int, int]()
        for mark, place in zip(marks, places, strict=True):
            number, is_end = divmod(mark, 2)
            edges = ends if is_end else begins
            if number in edges and not self._may_repeat[number]:
                raise MarksError("a text is there twice")
            if is_end and number not in begins:
                raise MarksError("the end of a text is there without its begin")
            edges.setdefault(number, place)
        if len(begins) > len(ends):
            raise MarksError("the begin of a text is there without its end")
        found = sorted((begins[number], ends[number], number) for number in begins)
        owners = [self._owner[number] for _, _, number in found if self._owner[number] >= 0]
        if owners != sorted(owners):
            raise MarksError("its messages are not in their order")
        return [(number, begin, end) for begin, end, number in found]

    def _put(self, number: int, message: dict[str, Any]) -> dict[str, Any]:
        marked = dict(message)
        if isinstance(reasoning := message.get("reasoning_content"), str):
            text = self._inside(number, reasoning)
            marked.update(dict.fromkeys([key for key in _REASONING if message.get(key) == reasoning], text))
        content = message.get("content")
        if isinstance(content, str):
            marked["content"] = self._content(number, content)
        elif isinstance(content, list):
            marked["content"] = [self._part(number, part) for part in content]
        if isinstance(calls := message.get("tool_calls"), list):
            marked["tool_calls"] = [self._call(number, call) for call in calls]
        return marked

    def _content(self, number: int, content: str) -> str:
        if _END_OF_REASONING not in content:
            return self._inside(number, content)
        reasoning, tag, answer = content.rpartition(_END_OF_REASONING)
        return self._inside(number, reasoning) + tag + self._inside(number, answer)

    def _part(self, number: int, part: Any) -> Any:
        if isinstance(part, str):
            return self._inside(number, part)
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            return {**part, "text": self._inside(number, part["text"])}
        return part

    def _call(self, number: int, call: Any) -> Any:
        if not isinstance(call, dict):
            return call
        if isinstance(call.get("function"), dict):
            return {**call, "function": self._call(number, call["function"])}
        if not isinstance(call.get("name"), str):
            return call
        return {**call, "name": self._inside(number, call["name"], may_repeat=True)}

    def _inside(self, number: int, text: str, *, may_repeat: bool = False) -> str:
        """The text with marks inside of the white space and the tags at its edges. Without any other text, as it is."""
        opening = _OPENING.match(text)
        begin = opening.end() if opening else 0
        end = len(text.rstrip())
        while begin < end and (tag := _TAG_AT_END.search(text, max(begin, end - _MAX_TAG), end)):
            end = len(text[: tag.start()].rstrip())
        if begin >= end:
            return text
        if tags := text[end:].rstrip():
            self._tags[len(self._owner)] = tags
        return self._around(number, text, begin, end, may_repeat=may_repeat)

    def _around(self, number: int, text: str, begin: int, end: int, *, may_repeat: bool = False) -> str:
        mark = self.plane + 2 * len(self._owner)
        if mark + 2 >= self.plane + _PLANE_SIZE:
            raise MarksError("it has too many texts")
        self._owner.append(number)
        self._may_repeat.append(may_repeat)
        return f"{text[:begin]}{chr(mark)}{text[begin:end]}{chr(mark + 1)}{text[end:]}"
