"""The text of conversations and what of it is trained on, compared with segmenters that are written by hand."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chat.own_segmenters import SEGMENTERS, without_thinking
from tests.chat.pieces import Message, Piece, Refused, Segmenter, segments
from tests.support.chat_shapes import conversations
from tokenmill.chat.renderer import REFUSED, CannotRender, Renderer
from tokenmill.chat.spec import Chat
from tokenmill.errors import TokenmillError

TEMPLATES = Path(__file__).parent / "templates"
CONVERSATIONS = list(conversations(440, seed=11))
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
# Shapes of which a conversation may be skipped: nobody can tell where the turns of some of them are.
UNCERTAIN = {"private use", "control tokens", "white space", "same words", "assistant first", "two in a row", "parts"}
# Templates that write no calls of tools skip the conversations that have some: a turn would be empty.
WITHOUT_CALLS = {"headers", "prompt_opens_thinking", "end_of_text_only_at_end", "stop_then_end_of_text", "no_header"}
CONTROL = re.compile(r"<\|[^<>|]+\|?>|<[a-z_]+\|>|\[/?INST\]|<sop>|\[mask\]")


def renderer(name: str, constants: dict[str, object] | None = None, **options: Any) -> Renderer:
    template = (TEMPLATES / f"{name}.jinja").read_text()
    special = (*TOKENS.values(), *sorted(set(CONTROL.findall(template))), "<|user|>", "<|assistant|>", "<|system|>")
    return Renderer(
        Chat(template=template, constants={**TOKENS, **(constants or {})}, special_tokens=special, **options)
    )


def compare(ours: Renderer, segmenter: Segmenter, chats: list[dict[str, Any]]) -> Counter[str]:
    """Compare all conversations. Returns how many are equal, refused, and skipped for which reason."""
    outcomes: Counter[str] = Counter()
    differences = []
    for number, chat in enumerate(chats):
        outcome = outcome_of(ours, segmenter, chat)
        if outcome in {"equal", "refused"} or outcome.startswith("skipped"):
            outcomes[outcome] += 1
        else:
            differences.append(f"conversation {number} ({chat['shape']}): {outcome}")
    assert not differences, "\n".join([f"{len(differences)} differ", *differences])
    return outcomes


def outcome_of(ours: Renderer, segmenter: Segmenter, chat: dict[str, Any]) -> str:
    """What came of a conversation, or how ours differs."""
    try:
        text, spans = segments(segmenter, chat)
    except Refused:
        text, spans = "", None
    try:
        (rendered,) = ours.render(chat)
    except CannotRender as skipped:
        if skipped.reason == REFUSED:
            return "refused" if spans is None else str(skipped)
        is_call = any(message.get("tool_calls") for message in chat["messages"])
        kind = "uncertain" if chat["shape"] in UNCERTAIN else "calls" if is_call else str(skipped)
        return f"skipped: {kind}"
    except TokenmillError as error:
        return f"fails: {error}"
    if spans is None:
        return f"not refused: {rendered.text!r}"
    if rendered.text != text:
        return f"text: {text!r} != {rendered.text!r}"
    data = text.encode()
    shown = [[data[begin:end].decode() for begin, end in each] for each in (spans, rendered.spans)]
    return "equal" if rendered.spans == spans else f"trained: {shown[0]} != {shown[1]}"


@pytest.mark.parametrize("name", SEGMENTERS)
def test_the_text_and_the_spans_are_those_of_a_segmenter(name: str) -> None:
    outcomes = compare(renderer(name), SEGMENTERS[name], CONVERSATIONS)
    skipped = Counter({kind: count for kind, count in outcomes.items() if kind.startswith("skipped")})
    uncertain = skipped.pop("skipped: uncertain", 0)
    calls = skipped.pop("skipped: calls", 0)
    assert uncertain <= 0.1 * len(CONVERSATIONS)
    assert calls <= (0.2 if name in WITHOUT_CALLS else 0.01) * len(CONVERSATIONS), outcomes
    assert skipped.total() <= 0.01 * len(CONVERSATIONS), outcomes
    assert outcomes["equal"] >= 0.4 * len(CONVERSATIONS)


def test_the_empty_reasoning_that_a_prompt_writes_is_not_trained_on() -> None:
    chats = [chat for chat in CONVERSATIONS if "reasoning" not in chat["shape"] and "think" not in str(chat)]
    outcomes = compare(renderer("earlier_thinking_dropped", {"enable_thinking": False}), without_thinking, chats)
    assert outcomes["equal"] >= 0.9 * (len(chats) - outcomes["refused"]), outcomes


def test_every_template_has_a_segmenter() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.jinja")} == set(SEGMENTERS)


# Templates in which no turn touches another one, so a span is a turn.
APART = ("chatml", "headers", "earlier_thinking_dropped", "prompt_opens_thinking", "last_turn_differs")
# Without those in which control tokens are spelled, and those of which the turns are not certain.
CERTAIN = [chat for chat in CONVERSATIONS if chat["shape"] not in UNCERTAIN]


def documents(ours: Renderer, chat: dict[str, Any]) -> list[tuple[str, list[tuple[int, int]]]] | None:
    """What is rendered, or None."""
    try:
        return [(rendered.text, rendered.spans) for rendered in ours.render(chat)]
    except CannotRender:
        return None


def expected_each(segmenter: Segmenter, chat: dict[str, Any]) -> list[tuple[str, list[tuple[int, int]]]]:
    """A document for each turn of the assistant, which ends with it, and of which only this turn is trained on."""
    expected = []
    for place, message in enumerate(chat["messages"]):
        if message["role"] == "assistant":
            text, spans = segments(segmenter, {"messages": chat["messages"][: place + 1], "tools": chat["tools"]})
            expected.append((text, spans[-1:]))
    return expected


@pytest.mark.parametrize("name", APART)
def test_with_each_turn_a_document_only_its_last_turn_is_trained_on(name: str) -> None:
    ours, compared = renderer(name, turns="each"), 0
    for chat in CERTAIN:
        found = documents(ours, chat)
        if found is not None:
            assert found == expected_each(SEGMENTERS[name], chat), chat
            compared += 1
    assert compared > 200


@pytest.mark.parametrize("name", APART)
def test_the_last_turn_alone_is_trained_on(name: str) -> None:
    ours, compared = renderer(name, train=("last",)), 0
    for chat in CERTAIN:
        found = documents(ours, chat)
        if found is not None:
            text, spans = segments(SEGMENTERS[name], chat)
            assert found == [(text, spans[-1:])], chat
            compared += 1
    assert compared > 200


@pytest.mark.parametrize("name", APART)
def test_a_flag_of_a_message_says_whether_it_is_trained_on(name: str) -> None:
    ours, compared = renderer(name), 0
    for number, chat in enumerate(CERTAIN):
        answers = [place for place, message in enumerate(chat["messages"]) if message["role"] == "assistant"]
        if len(answers) < 2:
            continue
        flag, left_out = {"train": False} if number % 2 else {"weight": 0}, number % len(answers)
        messages = [dict(message) for message in chat["messages"]]
        messages[answers[left_out]] |= flag
        found = documents(ours, {**chat, "messages": messages})
        if found is not None:
            text, spans = segments(SEGMENTERS[name], chat)
            assert found == [(text, spans[:left_out] + spans[left_out + 1 :])], messages
            compared += 1
    assert compared > 50


def test_everything_is_trained_on() -> None:
    ours = renderer("chatml", train=("all",))
    for chat in CERTAIN:
        text, _ = segments(SEGMENTERS["chatml"], chat)
        assert documents(ours, chat) == [(text, [(0, len(text.encode()))])]


def test_what_the_prompt_forces_may_be_trained_on() -> None:
    ours = renderer("prompt_opens_thinking", prefilled="train")

    def forced(messages: list[Message], tools: list[Any] | None) -> list[Piece]:
        pieces = SEGMENTERS["prompt_opens_thinking"](messages, tools)
        return [(text, is_trained or text == "<think>\n") for text, is_trained in pieces]

    assert compare(ours, forced, CERTAIN)["equal"] > 200
    ours = renderer("earlier_thinking_dropped", {"enable_thinking": False}, prefilled="train")
    assert compare(ours, SEGMENTERS["earlier_thinking_dropped"], CERTAIN)["equal"] > 200


def test_other_names_of_roles_and_fields() -> None:
    ours = renderer("chatml", roles={"human": "user", "gpt": "assistant"})
    for chat in CERTAIN:
        if chat["tools"] or any(set(message) - {"role", "content"} for message in chat["messages"]):
            continue
        names = {"user": "human", "assistant": "gpt", "system": "system"}
        messages = [{"from": names[each["role"]], "value": each["content"]} for each in chat["messages"]]
        assert documents(ours, {"messages": messages, "tools": None}) == [segments(SEGMENTERS["chatml"], chat)]
