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
    for number, chat in enumerate(chats):
        try:
            text, spans = segments(segmenter, chat)
        except Refused:
            with pytest.raises(CannotRender) as refusal:
                ours.render(chat)
            assert refusal.value.reason == REFUSED, f"conversation {number}: {chat}"
            outcomes["refused"] += 1
            continue
        try:
            (rendered,) = ours.render(chat)
        except CannotRender as skipped:
            if skipped.reason == REFUSED:
                pytest.fail(f"conversation {number}: {skipped}: {chat}")
            is_call = any(message.get("tool_calls") for message in chat["messages"])
            kind = "uncertain" if chat["shape"] in UNCERTAIN else "calls" if is_call else str(skipped)
            outcomes[f"skipped: {kind}"] += 1
            continue
        assert rendered.text == text, f"conversation {number}: {chat}"
        data = text.encode()
        shown = [[data[begin:end].decode() for begin, end in each] for each in (spans, rendered.spans)]
        assert rendered.spans == spans, f"conversation {number} ({chat['shape']}): {shown[0]} != {shown[1]} in {text!r}"
        outcomes["equal"] += 1
    return outcomes


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
