"""Conversations of the shapes that people have: seeded, so that every program makes the same ones."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

PROSE = (
    "The river bends twice before the old mill.",
    "What is the capital of Burkina Faso?",
    "It's 3:45 o'clock; they'LL've done 1234567 things",
    "Sure! Here are three ideas:\n\n1. walk\n2. read\n3. sleep",
    "No.",
    "naïve café Ünïcödé ﬁ",
    " begins with a space",
    "ends with spaces  ",
    "ends with a line\n",
    "\nbegins with a line",
    "<b>bold</b> & 'quoted' \"text\"",
    "/think about it",
)
LANGUAGES = (
    "日本語のテキストです。もう一度お願いします。",
    "请用中文回答这个问题。",
    "한국어 문장입니다",
    "Это предложение на русском языке.",
    "هذا نص باللغة العربية",
    "यह हिन्दी में एक वाक्य है।",
    "ภาษาไทยไม่มีช่องว่าง",
    "Ελληνικά και עברית μαζί",
)
EMOJI = ("👍", "👩‍👩‍👧‍👦 family 🏳️‍🌈", "done ✅🎉", "🇩🇪🇫🇷", "e\u0301 a\u0308\u0323 𝒳𝓎", "text🙂")
CODE = (
    "```python\ndef f(x):\n    return {'a': x}  # {{ x }}\n```",
    "{% for m in messages %}{{ m }}{% endfor %}",
    '{"name": "get", "arguments": {"x": [1, 2.5e-3, null]}}',
    "a\tb\r\nc\r\n",
    "C:\\temp\\new",
)
WHITE_SPACE = ("", " ", "\n", "\n\n", "   \n ", "\t", "\u3000", "\u00a0")
PRIVATE_USE = ("\ue000", "a\ue000b\ue001c", "\ue000\ue001 text \ue0ff", "\U000f0000x", "\uf8ff logo", "end \U0010fffd")
CONTROL = (
    "<|im_start|>assistant\nhi<|im_end|>",
    "<|eot_id|>",
    "</s><s>[INST] x [/INST]",
    "<start_of_turn>model\nx<end_of_turn>",
    "<|end|>\n<|assistant|>\n",
    "<｜Assistant｜>x<｜end▁of▁sentence｜>",
    "<think>\nnot thought\n</think>\n\nsaid",
    "a <tool_call> b",
    "<|user|>\nwho",
    "<|start|>assistant<|channel|>final<|message|>",
)
NUMBERS: tuple[Any, ...] = (
    3,
    -7,
    2.5,
    True,
    False,
    None,
    "text",
    'it\'s "x"',
    [1, "two"],
    {"a": {"b": []}},
    "ünï 日本",
)
# What the messages of a conversation look like: roles by their first letters. `t` answers calls of the `A` before it.
PLAIN = ("ua", "ua", "uaua", "uauaua")
WITH_SYSTEM = ("sua", "suaua", "suauaua")
WITH_TOOLS = ("uAta", "suAta", "uAtAta", "uauAta", "uAttaua", "uAta", "suAtauAta", "uA")
SHAPES: dict[str, tuple[str, ...]] = {
    "plain": PLAIN,
    "system": WITH_SYSTEM,
    "tools": WITH_TOOLS,
    "tools, JSON text": WITH_TOOLS,
    "definitions only": ("sua", "ua"),
    "reasoning": (*PLAIN, *WITH_SYSTEM),
    "reasoning and tools": WITH_TOOLS,
    "thinking in content": (*PLAIN, *WITH_SYSTEM),
    "languages": (*PLAIN, *WITH_SYSTEM),
    "emoji": (*PLAIN, *WITH_SYSTEM),
    "code": (*PLAIN, *WITH_SYSTEM),
    "white space": (*PLAIN, *WITH_SYSTEM),
    "parts": (*PLAIN, *WITH_SYSTEM),
    "two in a row": ("uaa", "suaaua", "uaua" + "a", "uauua"),
    "assistant first": ("a", "aua", "saua", "au"),
    "no assistant": ("s", "u", "su", "uu", "sus"),
    "private use": (*PLAIN, *WITH_SYSTEM),
    "control tokens": (*PLAIN, *WITH_SYSTEM, "uAta"),
    "null keys": (*PLAIN, *WITH_TOOLS),
    "long": ("suauauauauaua", "uauauauaua"),
    "same words": (*PLAIN, "uauaua"),
    "user last": ("uau", "suauau", "uAtau"),
}
FUNCTIONS = ("get_weather", "search", "run_sql")


def conversations(count: int, seed: int = 7) -> Iterator[dict[str, Any]]:
    """Conversations with their shape: {"shape", "messages", "tools"}, the shapes in turn."""
    shapes = list(SHAPES)
    for index in range(count):
        yield conversation(random.Random(f"{seed}:{index}"), shapes[index % len(shapes)])


def conversation(rng: random.Random, shape: str) -> dict[str, Any]:
    """One conversation of a shape."""
    letters = rng.choice(SHAPES[shape])
    messages: list[Message] = []
    calls: list[Message] = []
    for position, letter in enumerate(letters):
        if letter == "A":
            calls = _calls(rng, shape, 1 if letters[position + 1 : position + 3] != "tt" else 2)
            messages.append(_said(rng, shape, {"role": "assistant", "content": "", "tool_calls": calls}))
            calls = list(calls)
        elif letter == "t":
            messages.append(_result(rng, calls.pop(0) if calls else None))
        else:
            role = {"u": "user", "a": "assistant", "s": "system"}[letter]
            messages.append(_said(rng, shape, {"role": role, "content": _text(rng, shape, role)}))
    has_tools = "A" in letters or "definitions" in shape
    tools = [_definition(rng, name) for name in FUNCTIONS[: rng.randint(1, 3)]] if has_tools else None
    return {"shape": shape, "messages": messages, "tools": tools}


def _text(rng: random.Random, shape: str, role: str) -> str:
    """A text for a message."""
    if shape == "white space":
        return rng.choice(WHITE_SPACE) + rng.choice(("", "x", "some words")) + rng.choice(WHITE_SPACE)
    if shape == "same words":
        return rng.choice(("yes", "yes", "no", ""))
    special = {
        "languages": LANGUAGES,
        "emoji": EMOJI,
        "code": CODE,
        "private use": PRIVATE_USE,
        "control tokens": CONTROL,
    }.get(shape, PROSE)
    text = " ".join(rng.choice(special if rng.random() < 0.6 else PROSE) for _ in range(rng.randint(1, 3)))
    if shape == "thinking in content" and role == "assistant" and rng.random() < 0.7:
        thought = rng.choice(("", "\n\n", "\nFirst, see.\n", "why not", "\n日本 👍\n"))
        return f"<think>{thought}</think>{rng.choice(('', chr(10), chr(10) * 2))}{text}"
    return text


def _said(rng: random.Random, shape: str, message: Message) -> Message:
    """A message with what its shape adds."""
    role = message["role"]
    if message.get("tool_calls") and rng.random() < 0.4:
        message["content"] = rng.choice(PROSE)
    if "reasoning" in shape and role == "assistant" and rng.random() < 0.8:
        key = rng.choice(("reasoning_content", "reasoning_content", "thinking", "reasoning"))
        message[key] = rng.choice(("", "Let me see.", "\nstep 1\nstep 2\n", " 考える 🤔", *PROSE[:3]))
    if shape == "parts" and rng.random() < 0.7:
        parts = [message["content"], *([_text(rng, "plain", role)] if rng.random() < 0.3 else [])]
        message["content"] = [{"type": "text", "text": text} for text in parts]
    if shape == "null keys":
        nulls = ("name", "tool_calls", "tool_call_id", "reasoning_content", "thinking", "refusal")
        message |= {key: None for key in nulls if key not in message and rng.random() < 0.6}
        if message.get("tool_calls") and rng.random() < 0.5:
            message["content"] = None
        if rng.random() < 0.5:
            message = dict(sorted(message.items()))
    return message


def _calls(rng: random.Random, shape: str, count: int) -> list[Message]:
    """Calls of tools, with arguments as a mapping or as JSON text."""
    calls = []
    for number in range(count):
        names = rng.sample(("city", "days", "query", "deep", "größe"), rng.randint(0, 3))
        arguments: Any = {name: rng.choice(NUMBERS) for name in names}
        if "JSON text" in shape:
            arguments = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
        function = {"name": rng.choice(FUNCTIONS), "arguments": arguments}
        calls.append(
            {"id": f"call{rng.randint(10000, 99998 - number) + number}", "type": "function", "function": function}
        )
    return calls


def _result(rng: random.Random, call: Message | None) -> Message:
    """What a tool answers."""
    content = rng.choice(
        ('{"temperature": 21.5, "unit": "°C"}', "no rows", "", "line 1\nline 2", "[1, 2, 3]", *LANGUAGES[:2])
    )
    message: Message = {"role": "tool", "content": content}
    if call is not None:
        message |= {"tool_call_id": call["id"], "name": call["function"]["name"]}
    return message


def _definition(rng: random.Random, name: str) -> dict[str, Any]:
    """The definition of a tool."""
    properties: dict[str, Any] = {
        "city": {"type": "string", "description": "Name of a city, such as <Zürich> & 'Łódź'"},
        "days": {"type": "integer", "minimum": 1},
        "deep": {"type": "array", "items": {"type": "string"}, "enum": ["a", "b"]},
    }
    chosen = rng.sample(list(properties), rng.randint(1, 3))
    parameters = {"type": "object", "properties": {key: properties[key] for key in chosen}, "required": chosen[:1]}
    description = rng.choice(("Look it up.", "Multi\nline", "Ünïcode 日本"))
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}
