"""Renders conversations, and finds the bytes of their text that are trained on.

A template with `{% generation %}` says itself what the assistant wrote. For others, the conversation is rendered twice:
as it is, and with a mark at the begin and the end of each of its texts. The marks say where each message is in the
text. What surrounds it is compared with the generation prompt and the stop token (see `turns`). A conversation for
which that is not certain is refused.
"""

from __future__ import annotations

import itertools
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tokenmill.chat.conversation import BREAK, Conversation, Marks, MarksError, broken, tags_before
from tokenmill.chat.sandbox import ChatTemplate, NoDateError, TemplateError
from tokenmill.chat.spec import ALL, ASSISTANT, EACH, LAST, TRAIN, Chat
from tokenmill.chat.turns import PROBES, TurnError, Turns, any_of
from tokenmill.errors import SourceError, UsageError

# Why a conversation is not a document.
REFUSED = "refused by the chat template"
NOT_FOUND = "no certain place of a turn"
REASONS = (REFUSED, NOT_FOUND)

# One of so many conversations is compared with the renderings of its first messages. If one of 1,000 conversations had
# a wrong span, a set of 500,000 would pass unnoticed with a probability of 2 %.
COMPARED_STEP = 128

Span = tuple[int, int]


class CannotRender(Exception):  # noqa: N818 - as CannotEncode
    """A conversation is not a document: `reason` is one of REASONS, and `detail` is about this one."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of a conversation, and the begin and the end of what is trained on, in bytes of UTF-8."""

    text: str
    spans: list[Span]


class Renderer:
    """Renders conversations by one template."""

    def __init__(self, chat: Chat) -> None:
        """Raises UsageError if the template cannot be compiled."""
        self.chat = chat
        self.template = ChatTemplate(chat.template, chat.constants)
        self._turns: Turns | None = None
        self._special = any_of(chat.special_tokens) if chat.marks else None

    @property
    def turns(self) -> Turns:
        """What is known of the template's turns, learnt on first use."""
        if self._turns is None:
            self._turns = Turns.of(self.template, self.chat.special_tokens)
        return self._turns

    def require_turns(self) -> None:
        """Raise UsageError if no turn of the assistant is found in a probe, and SourceError if one is wrong."""
        for messages, tools in PROBES:
            own = Conversation.of(messages, {})
            with suppress(CannotRender, NoDateError):
                self._render(own, tools, self._chosen(own), is_compared=True)
        try:
            is_useful = self.turns.is_found or self.template.has_tags or ALL in self.chat.train
        except NoDateError as error:
            raise UsageError("the chat template asks for the date", "Give one: --chat-set date=2026-01-31") from error
        if not is_useful:
            raise UsageError(
                "the chat template has no generation tags, and no turn of the assistant is found in what it renders",
                "Use --chat-template FILE with one that has {% generation %} and {% endgeneration %} around what the "
                "assistant writes.",
                "Or use --train all.",
            )

    def render(self, conversation: dict[str, Any]) -> list[Rendered]:
        """The documents of a conversation. Raises CannotRender."""
        own, tools = Conversation.of(conversation["messages"], self.chat.roles), conversation.get("tools")
        if self.chat.turns != EACH:
            return [self._render(own, tools, self._chosen(own))]
        return [
            self._render(Conversation(own.messages[: turn + 1], own.flags[: turn + 1]), tools, {turn})
            for turn in sorted(self._chosen(own))
        ]

    def _chosen(self, conversation: Conversation) -> set[int]:
        """The messages that are trained on."""
        roles = [message.get("role") for message in conversation.messages]
        wanted = {ASSISTANT if role == LAST else role for role in self.chat.train}
        chosen = [number for number, role in enumerate(roles) if role in wanted or ALL in wanted]
        chosen = chosen[-1:] if LAST in self.chat.train else chosen
        flags = enumerate(conversation.flags)
        return {number for number, flag in flags if flag or (flag is None and number in chosen)}

    def _render(
        self, conversation: Conversation, tools: list[Any] | None, chosen: set[int], *, is_compared: bool = False
    ) -> Rendered:
        try:
            plain = self.template.render(conversation.messages, tools)
        except TemplateError as error:
            raise CannotRender(REFUSED, str(error)) from error
        try:
            is_compared = is_compared or zlib.crc32(plain.encode()) % COMPARED_STEP == 0
            spans = self._spans(conversation, tools, plain, chosen, is_compared=is_compared)
            text = plain if self._special is None else self._marked(self._special, conversation, tools, plain)
        except (TemplateError, MarksError, TurnError) as error:
            raise CannotRender(NOT_FOUND, str(error)) from error
        return Rendered(text, _in_bytes(plain, spans))

    def _marked(self, special: re.Pattern[str], conversation: Conversation, tools: list[Any] | None, plain: str) -> str:
        """The text with marks in place of the special tokens that the template writes."""
        spelled = set[int]()
        own, own_tools = broken([conversation.messages, tools], special)
        if [own, own_tools] != [conversation.messages, tools]:
            pieces = self.template.render(own, own_tools).split(BREAK)
            if "".join(pieces) != plain:
                raise MarksError("control tokens in its texts change the rendering")
            spelled.update(place - 1 for place in itertools.accumulate(map(len, pieces[:-1])))

        def mark(match: re.Match[str]) -> str:
            if match.start() in spelled:
                return match.group()
            if match.group() not in self.chat.marks:
                raise MarksError(f"the template writes {match.group()} for some conversations only")
            return self.chat.marks[match.group()]

        return special.sub(mark, plain)

    def _spans(
        self, conversation: Conversation, tools: list[Any] | None, plain: str, chosen: set[int], *, is_compared: bool
    ) -> list[Span]:
        every = set(range(len(conversation.messages)))
        if ALL in self.chat.train and chosen == every:
            return [(0, len(plain))] if plain else []
        is_by_role = self.chat.train == (ASSISTANT,) and conversation.flags.count(None) == len(conversation.flags)
        if self.template.has_tags and is_by_role and self.chat.turns != EACH:
            return self._tagged(conversation, tools, plain)
        marks = Marks.for_text(plain)
        texts = marks.find(self.template.render(marks.put(conversation.messages), tools), plain)
        places = _by_message(texts)
        lost = chosen & marks.owners - places.keys()
        if lost:
            raise TurnError(f"message {min(lost)} is not in the text")
        is_all = ALL in self.chat.train
        wanted = sorted(every - chosen if is_all else chosen)
        rendering = Rendering(self.template, conversation.messages, tools, plain)
        gaps = rendering.gaps(places)
        spans = {number: self._turn(rendering, places, gaps[number], number) for number in wanted}
        if is_compared:
            for number, span in spans.items():
                self.compare(rendering, number, span)
        return _outside(list(spans.values()), plain) if is_all else list(spans.values())

    def _tagged(self, conversation: Conversation, tools: list[Any] | None, plain: str) -> list[Span]:
        """What the template's tags say."""
        try:
            marks = Marks.for_text(plain)
            found = marks.find(self.template.render(conversation.messages, tools, wrap=marks.wrap), plain)
        except MarksError:  # the template takes white space away from what is between its tags
            marks = Marks.for_text(plain)
            found = marks.find(self.template.render(conversation.messages, tools, wrap=marks.wrap_inside), plain)
        spans = [(begin, end) for _, begin, end in found if begin < end]
        answers = (message.get("content") for message in conversation.messages if message.get("role") == ASSISTANT)
        if not spans and any(answers):
            raise TurnError("the template has nothing between its generation tags")
        return spans

    def _turn(self, rendering: Rendering, places: dict[int, Span], gap: Span, number: int) -> Span:
        """Where a turn begins and ends, from where its texts are, and those before and after it."""
        plain, (before, after) = rendering.plain, gap
        first, last = places.get(number, (after, before))
        if rendering.role(number) == ASSISTANT:
            begin = self._begin(rendering, places, (before, first), number)
            last = last if number in places else rendering.end_of_tags(number, begin, after)
            return begin, self.turns.end(plain, last, after)
        return (first, self.turns.end(plain, last, after)) if number in places else (before, before)

    def _begin(self, rendering: Rendering, places: dict[int, Span], gap: Span, number: int) -> int:
        """Where a turn begins: after the generation prompt, which is in the gap before its first text."""
        turns, plain, is_forced_trained = self.turns, rendering.plain, self.chat.prefilled == TRAIN
        without_text = list(itertools.takewhile(lambda other: other not in places, range(number - 1, -1, -1)))
        headers = 1 if number in places else plain.count(turns.header, *gap) if turns.header else 1
        is_blank = all(rendering.role(other) != ASSISTANT and not rendering.tags(other) for other in without_text)
        if headers == 1 and is_blank:
            role, is_next = rendering.role(number - 1) if number else "user", not without_text
            begin = turns.begin(plain, gap, role, is_next=is_next, is_forced_trained=is_forced_trained)
            if begin is not None:
                return begin
        prompt = rendering.prefix(number, prompt=True) if number else ""
        if not number or not gap[0] <= len(prompt) <= gap[1] or not plain.startswith(prompt):
            raise TurnError(f"the generation prompt is not before message {number}")
        forced = turns.forced if is_forced_trained and prompt.endswith(turns.forced) else ""
        return len(prompt) - len(forced)

    def compare(self, rendering: Rendering, number: int, span: Span) -> bool:
        """Compare a turn of the assistant with renderings of the messages before it, and up to it.

        Returns whether both are the start of the text. Raises SourceError if the turn is not what is between them.
        """
        plain, (begin, end) = rendering.plain, span
        if not number or rendering.role(number) != ASSISTANT:
            return False
        try:
            before, until = rendering.prefix(number, prompt=True), rendering.prefix(number + 1)
        except TemplateError:
            return False
        if not plain.startswith(before) or not plain.startswith(until) or len(until) <= len(before):
            return False
        is_right = begin == len(before) or (self.chat.prefilled == TRAIN and begin <= len(before))
        is_right |= plain[len(before) : begin] == self.turns.header
        # Beyond it, there may be a stop token that is the begin of the next header.
        is_right &= self.turns.is_after_stop(until[end:]) and self.turns.is_end(plain[len(until) : end])
        if not is_right:
            raise SourceError(
                "the trained text of a conversation is uncertain: two ways to find it disagree",
                f"turn         message {number}",
                f"by marks     {plain[begin:end][:200]!r}",
                f"by prefixes  {plain[len(before) : len(until)][:200]!r}",
                "This is a bug in tokenmill, or a template that needs --turns each. Please report it.",
            )
        return True


@dataclass(frozen=True, slots=True)
class Rendering:
    """A conversation and its plain rendering."""

    template: ChatTemplate
    messages: list[dict[str, Any]]
    tools: list[Any] | None
    plain: str

    def role(self, number: int) -> str:
        """Who speaks."""
        return str(self.messages[number].get("role"))

    def gaps(self, places: dict[int, Span]) -> list[Span]:
        """Of each message, where the texts before it end, and where those after it begin."""
        ends, begins, before, after = list[int](), list[int](), 0, len(self.plain)
        for number in range(len(self.messages)):
            ends.append(before)
            before = places[number][1] if number in places else before
        for number in range(len(self.messages) - 1, -1, -1):
            begins.append(after)
            after = self._start(number, places[number][0]) if number in places else after
        return list(zip(ends, begins[::-1], strict=True))

    def _start(self, number: int, begin: int) -> int:
        """Where a message begins whose first mark is at `begin`: with the tags before it."""
        tags = tags_before(self.messages[number].get("content"))
        return begin - len(tags) if self.plain.endswith(tags, 0, begin) else begin

    def tags(self, number: int) -> str:
        """The content of a message that has no other text."""
        content = self.messages[number].get("content")
        return content.strip() if isinstance(content, str) else ""

    def end_of_tags(self, number: int, begin: int, after: int) -> int:
        """Where the content of a message ends that has tags and white space only; `begin` if it is not there."""
        own = self.tags(number)
        if own and self.plain.count(own, begin, after) > 1:
            raise TurnError(f"message {number} has nothing but tags, which are there several times")
        return max(begin, self.plain.find(own, begin, after) + len(own))

    def prefix(self, count: int, *, prompt: bool = False) -> str:
        """The rendering of the first messages. Raises TemplateError."""
        return self.template.render(self.messages[:count], self.tools, prompt=prompt)


def _by_message(texts: list[tuple[int, int, int]]) -> dict[int, Span]:
    """Where the first text of each message begins, and where the last one ends."""
    places = dict[int, Span]()
    for message, begin, end in texts:
        places[message] = (places[message][0], end) if message in places else (begin, end)
    return places


def _outside(spans: list[Span], plain: str) -> list[Span]:
    edges = [0, *(edge for span in spans for edge in span), len(plain)]
    return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


def _in_bytes(plain: str, spans: list[Span]) -> list[Span]:
    """Places in bytes of UTF-8 instead of characters. Spans that touch or overlap become one."""
    joined = list[Span]()
    for begin, end in spans:
        if joined and begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif begin < end:
            joined.append((begin, end))
    if plain.isascii():
        return joined
    places, place, size = list[int](), 0, 0
    for edge in (edge for span in joined for edge in span):
        size += len(plain[place:edge].encode())
        place = edge
        places.append(size)
    return list(zip(places[::2], places[1::2], strict=True))
