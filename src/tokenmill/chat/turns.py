"""Where a turn begins and ends in the text of a conversation, learnt from conversations that a template renders.

A turn begins after the generation prompt, which inference supplies, and ends with its stop token. Templates differ in
how they write both, and some write the last turn or a call of a tool in another way. So a few probes are rendered, with
and without the generation prompt, when a template is loaded.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.chat.conversation import Conversation, Marks, MarksError
from tokenmill.chat.sandbox import ChatTemplate, NoDateError, TemplateError
from tokenmill.chat.spec import ASSISTANT

Messages = list[dict[str, Any]]

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
_CALL = {"id": "call00001", "type": "function", "function": {"name": "get_weather", "arguments": {"place": "Lima"}}}
_SYSTEM: dict[str, Any] = {"role": "system", "content": "Answer briefly."}
_USER, _USER_2 = ({"role": "user", "content": text} for text in ("What is it?", "And then?"))
_ANSWER, _ANSWER_2 = ({"role": ASSISTANT, "content": text} for text in ("It is one.", "Then it is two."))
_THOUGHT = {"role": ASSISTANT, "content": "It is one.", "reasoning_content": "Counting first."}
_CALLS: dict[str, Any] = {"role": ASSISTANT, "content": "", "tool_calls": [_CALL]}
_RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "Fog and rain."}

# Each is rendered. What a template refuses is left out.
PROBES: tuple[tuple[Messages, list[Any] | None], ...] = (
    ([_USER, _ANSWER, _USER_2, _ANSWER_2], None),
    ([_USER, _ANSWER], None),
    ([_SYSTEM, _USER, _ANSWER], None),
    ([_USER, _THOUGHT, _USER_2, _ANSWER_2], None),
    ([_USER, _THOUGHT], None),
    ([_USER, _CALLS], [_TOOL]),
    ([_USER, _CALLS, _RESULT, _ANSWER, _USER_2, _ANSWER_2], [_TOOL]),
)

# What looks like a control token, if a turn does not end with one of the tokenizer's special tokens.
_CONTROL = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]")
# What begins the reasoning in a generation prompt: it is forced, and not the header of a turn.
_FORCED = re.compile(r"<[^<>\s]*(?:think|thought|reason)[^<>\s]*>|\[THINK\]|<\|?channel\|?>", re.IGNORECASE)
# The pieces of a generation prompt, of which the text before a turn may have the first ones.
_PIECES = re.compile(r"<[^<>\s]*>|\w+|\s+|.", re.DOTALL)


class TurnError(Exception):
    """A turn has no begin or no end that can be trusted. The text says why."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a template writes after the messages so far, if the assistant is to speak.

    Attributes:
        starts: The generation prompt, and then without one after the other of its last pieces, which begin the
            reasoning. A turn need not have them. The last one is the header of a turn. Empty without a prompt.
        after: Everything after the last text of the messages.
    """

    starts: tuple[str, ...]
    after: str | None

    @classmethod
    def of(cls, prompt: str, after: str | None) -> Prompt:
        """The prompt with this text."""
        forced = _FORCED.search(prompt)
        header = prompt[: forced.start()] if forced else prompt
        starts = itertools.accumulate(_PIECES.findall(prompt[len(header) :]), initial=header)
        return cls(tuple(filter(str.strip, starts))[::-1], after)

    @property
    def header(self) -> str:
        """The prompt before what begins the reasoning."""
        return self.starts[-1] if self.starts else ""

    def begin(self, plain: str, before: int, first: int, *, is_next: bool, is_forced_trained: bool) -> int | None:
        """Where the turn begins whose first text is at `first`. The last text before it ends at `before`.

        `is_next` says whether that is of the message before it.
        """
        if self.starts:
            place = plain.find(self.header, before, first)
            starts = self.starts[-1:] if is_forced_trained else self.starts
            ends = (place + len(start) for start in starts if plain.startswith(start, place))
            return next((end for end in ends if end <= first), None) if place >= 0 else None
        if self.after is None or not is_next:
            return None
        place = plain.find(self.after, before, first)
        return place + len(self.after) if place >= 0 and not plain[before:place].strip() else None


@dataclass(frozen=True, slots=True)
class Turns:
    """What is known of a template's turns.

    Attributes:
        prompts: The generation prompt, by the role of the message before it.
        stops: The tokens that end a turn.
        has_stop: Whether a turn of plain text in the middle, and at the end, has one of them.
        is_found: Whether a turn of plain text was found in a probe.
        is_stable: Whether the text of the first messages stays as it is when others follow.
    """

    prompts: dict[str, Prompt]
    stops: tuple[str, ...]
    has_stop: tuple[bool, bool]
    is_found: bool
    is_stable: bool
    _stop: re.Pattern[str]
    _control: re.Pattern[str]

    @classmethod
    def of(cls, template: ChatTemplate, special_tokens: Sequence[str]) -> Turns:
        """Render the probes. Raises NoDateError."""
        special = any_of(special_tokens) if special_tokens else _CONTROL
        stops, has_stop, is_found = dict[str, None](), [False, False], False
        for is_last, is_call, gap, tail in _gaps(template):
            is_found |= not is_call
            stop = _stop(special, gap, tail, is_call=is_call)
            if stop is None and not is_call:
                stop = _stop(_CONTROL, gap, tail, is_call=False)
            if stop is not None:
                stops[stop] = None
                has_stop[is_last] |= not is_call
        prompts = dict(_prompts(template))
        return cls(
            prompts, tuple(stops), (has_stop[0], has_stop[1]), is_found, _is_stable(template), any_of(stops), special
        )

    @property
    def header(self) -> str:
        """What a turn after a user's message begins with; empty if that is not known."""
        return self.prompts["user"].header if "user" in self.prompts else ""

    @property
    def forced(self) -> str:
        """What the generation prompt after a user's message has behind the header."""
        prompt = self.prompts.get("user")
        return prompt.starts[0][len(prompt.header) :] if prompt and prompt.starts else ""

    def begin(
        self, plain: str, gap: tuple[int, int], role: str, *, is_next: bool, is_forced_trained: bool
    ) -> int | None:
        """Where a turn begins that follows a message of a role; None if that cannot be told from the probes.

        The gap is that between the last text before the turn and its first one.
        """
        prompt = self.prompts.get(role, self.prompts.get("user"))
        if prompt is None:
            return None
        begin = prompt.begin(plain, *gap, is_next=is_next, is_forced_trained=is_forced_trained)
        if begin is not None and not prompt.starts and plain.startswith(self.header, begin):
            begin += len(self.header)  # a header that the template writes, and that is not in the prompt
        return begin

    def end(self, plain: str, last: int, after: int) -> int:
        """Where a turn ends whose last text ends at `last`. The next message's text begins at `after`."""
        match = self._stop.search(plain, last, after)
        is_last = after == len(plain)
        if match is not None:
            return len(plain.rstrip()) if is_last and self.is_end(plain[match.end() :]) else match.end()
        if self.has_stop[is_last]:
            raise TurnError("a turn has no stop token")
        return len(plain.rstrip()) if is_last and plain[last:].strip() else last

    def is_end(self, text: str) -> bool:
        """Whether a text has nothing but stop tokens and white space."""
        return not self._stop.sub("", text).strip()

    def is_after_stop(self, text: str) -> bool:
        """Whether a text may follow the stop token of a turn: it has no other control token."""
        return not self._control.search(self._stop.sub("", text))


def any_of(texts: Iterable[str]) -> re.Pattern[str]:
    """A pattern for the longest of these texts that begin at a position. Without texts, it matches nothing."""
    ordered = sorted(filter(None, texts), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) if ordered else r"\b\B")


def _gaps(template: ChatTemplate) -> Iterator[tuple[bool, bool, str, str]]:
    """What follows each turn of the assistant in the probes, up to the next text.

    Whether it is the last turn, whether it is a call of a tool, the text after it, and the text after it if the
    conversation ends there.
    """
    tails = dict[bool, str]()
    for messages, tools in sorted(PROBES, key=lambda probe: len(probe[0])):
        rendered = _try(template, messages, tools)
        if rendered is None:
            continue
        conversation, plain, found = rendered
        for number, message in enumerate(conversation.messages):
            own = [text for text in found if text[0] == number]
            later = [text for text in found if text[0] > number]
            if message["role"] != ASSISTANT or not own:
                continue
            gap = plain[max(end for _, _, end in own) : min((begin for _, begin, _ in later), default=len(plain))]
            is_last, is_call = not later, "tool_calls" in message
            tails.setdefault(is_call, gap if is_last else "")
            yield is_last, is_call, gap, tails[is_call]


def _stop(special: re.Pattern[str], gap: str, tail: str, *, is_call: bool) -> str | None:
    """The token that ends a turn, of the text between it and the next one.

    The `tail` is what follows such a turn if the conversation ends there. It ends with the stop token, unless that is
    the first token of the next message. The last turn may end in another way than those before it.
    """
    end = tail.rstrip()
    if is_call or gap.startswith(end):
        if stop := _last(special, end):
            return stop
        if is_call:
            following = gap[len(end) :].lstrip()
            first = special.match(following)
            # Without a special token on either side, a tag at the end is the stop token, if another message follows.
            return first.group() if first else _last(_CONTROL, end) if following else None
    first = special.search(gap)
    return first.group() if first else None


def _last(controls: re.Pattern[str], text: str) -> str | None:
    """The control token at the end of a text."""
    found = [match.group() for match in controls.finditer(text) if match.end() == len(text)]
    return found[0] if found else None


def _prompts(template: ChatTemplate) -> Iterator[tuple[str, Prompt]]:
    """The generation prompt after each role."""
    asked_for: tuple[Messages, ...] = ([_USER], [_USER, _CALLS, _RESULT], [_USER, _ANSWER])
    for messages in asked_for:
        tools: list[Any] | None = [_TOOL] if _CALLS in messages else None
        plain, asked = _try(template, messages, tools), _try(template, messages, tools, prompt=True)
        if asked is None:
            continue
        _, text, found = asked
        own = text[len(plain[1]) :] if plain is not None and text.startswith(plain[1]) else ""
        yield str(messages[-1]["role"]), Prompt.of(own, text[max(end for _, _, end in found) :] if found else None)


def _try(
    template: ChatTemplate, messages: Messages, tools: list[Any] | None, *, prompt: bool = False
) -> tuple[Conversation, str, list[tuple[int, int, int]]] | None:
    """The same as `marked`, with tools if the template wants some; None if it refuses the conversation."""
    for given in [tools, [_TOOL]] if tools is None else [tools]:
        try:
            return marked(template, messages, given, prompt=prompt)
        except NoDateError:
            raise
        except (TemplateError, MarksError):
            continue
    return None


def marked(
    template: ChatTemplate, messages: Messages, tools: list[Any] | None, *, prompt: bool = False
) -> tuple[Conversation, str, list[tuple[int, int, int]]]:
    """A conversation, its rendering, and where its texts are. Raises TemplateError or MarksError."""
    conversation = Conversation.of(messages, {})
    plain = template.render(conversation.messages, tools, prompt=prompt)
    marks = Marks.for_text(plain)
    rendering = template.render(marks.put(conversation.messages), tools, prompt=prompt)
    return conversation, plain, marks.find(rendering, plain)


def _is_stable(template: ChatTemplate) -> bool:
    messages, _ = PROBES[3]
    try:
        whole = template.render(Conversation.of(messages, {}).messages)
        prefixes = [template.render(Conversation.of(messages[:count], {}).messages) for count in (1, 2, 3)]
    except TemplateError:
        return False
    return all(whole.startswith(prefix.rstrip()) for prefix in prefixes)
