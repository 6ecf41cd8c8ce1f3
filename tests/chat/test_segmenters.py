"""The text of conversations and what of it is trained on, compared with segmenters that are written by hand."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.chat.own_segmenters import SEGMENTERS, without_thinking
from tests.chat.pieces import Refused, Segmenter, segments
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


def renderer(name: str, **constants: object) -> Renderer:
    template = (TEMPLATES / f"{name}.jinja").read_text()
    special = (*TOKENS.values(), *sorted(set(CONTROL.findall(template))), "<|user|>", "<|assistant|>", "<|system|>")
    return Renderer(Chat(template=template, constants={**TOKENS, **constants}, special_tokens=special))


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
    outcomes = compare(renderer("earlier_thinking_dropped", enable_thinking=False), without_thinking, chats)
    assert outcomes["equal"] >= 0.9 * (len(chats) - outcomes["refused"]), outcomes


def test_every_template_has_a_segmenter() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.jinja")} == set(SEGMENTERS)
