"""Segmenters of the templates beside this file, written by hand from reading them.

A turn of the assistant is trained on from the end of the generation prompt to the end of its stop. The prompt is what
inference supplies, with the `<think>` that it opens. The stop is the token at which inference ends: where a message has
none of its own, that is the header of a question or of a tool's result, so this token is trained on, too. The header of
another answer or of a system message is nothing that a model writes. A line after the stop is not trained on. If the
last message is an answer, what ends the whole text is trained on with it.
"""

from __future__ import annotations

from typing import Any

from tests.chat.pieces import Message, Piece, Refused, Segmenter, as_json


def _words(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content or [])


def chatml(messages: list[Message], tools: list[Any] | None) -> list[Piece]:
    pieces = [(f"<|im_start|>system\nTools: {as_json(tools)}<|im_end|>\n", False)] if tools else []
    for message in messages:
        calls = [f"\n<tool_call>{as_json(call['function'])}</tool_call>" for call in message.get("tool_calls", [])]
        pieces.append((f"<|im_start|>{message['role']}\n", False))
        text = _words(message.get("content")) + "".join(calls) + "<|im_end|>"
        pieces += [(text, message["role"] == "assistant"), ("\n", False)]
    return pieces


def headers(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = [("<s>", False)]
    for message in messages:
        if not isinstance(message.get("content"), str):
            raise Refused
        pieces.append((f"<|header|>{message['role']}<|/header|>\n\n", False))
        pieces.append((f"{message['content'].strip()}<|eot|>", message["role"] == "assistant"))
    return pieces


def next_header_stops(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = [("[mask]<sop>", False)]
    headers = {"user": "<|user|>", "assistant": "<|assistant|>", "tool": "<|observation|>", "system": "<|system|>"}
    answered = False
    for message in messages:
        role = message["role"]
        pieces.append((headers[role], answered and role in {"user", "tool"}))
        answered = role == "assistant"
        if not answered:
            pieces.append(("\n" + message["content"], False))
            continue
        if isinstance(message.get("reasoning_content"), str):
            pieces.append((f"\n<think>{message['reasoning_content'].strip()}</think>", True))
        content = str(message.get("content") or "").strip()
        pieces.append((f"\n{content}" if content else "", True))
        for call in message.get("tool_calls", []):
            function = call["function"]
            pieces.append((f"\n<tool_call>{function['name']} {as_json(function['arguments'])}", True))
    return pieces


def earlier_thinking_dropped(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = []
    last = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
    for place, message in enumerate(messages):
        content = message.get("content") or ""
        if message["role"] != "assistant":
            pieces.append((f"<|im_start|>{message['role']}\n" + content + "<|im_end|>\n", False))
            continue
        thought = message.get("reasoning_content") or ""
        if "</think>" in content:
            thought, content = content.split("</think>")[0].split("<think>")[-1], content.split("</think>")[-1]
        pieces.append(("<|im_start|>assistant\n", False))
        if place > last:
            pieces.append(("<think>\n" + thought.strip("\n") + "\n</think>\n\n", True))
        pieces.append((content.lstrip("\n"), True))
        for call in message.get("tool_calls", []):
            arguments = call["function"]["arguments"]
            arguments = arguments if isinstance(arguments, str) else as_json(arguments)
            name = call["function"]["name"]
            pieces.append((f'\n<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>', True))
        pieces += [("<|im_end|>", True), ("\n", False)]
    return pieces


def without_thinking(messages: list[Message], tools: list[Any] | None) -> list[Piece]:
    """Those of the template above, with `enable_thinking` false: the prompt writes the empty reasoning itself."""
    empty = "<think>\n\n</think>\n\n"
    return [(text, is_trained and text != empty) for text, is_trained in earlier_thinking_dropped(messages, tools)]


def prompt_opens_thinking(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = [("<s>", False)]
    for place, message in enumerate(messages):
        content = message.get("content") or ""
        if message["role"] == "assistant":
            pieces.append(("<|Assistant|>", False))
            if place == len(messages) - 1:
                thought = message.get("reasoning_content") or ""
                pieces += [("<think>\n", False), (thought + "\n</think>\n\n", True)]
            pieces.append((content.split("</think>")[-1] + "</s>", True))
        else:
            pieces.append(("<|User|>" + content if message["role"] == "user" else content + "\n", False))
    return pieces


def end_of_text_only_at_end(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = []
    for message in messages:
        if not isinstance(message.get("content"), str):
            raise Refused
        content, is_last = message["content"].strip(), message is messages[-1]
        pieces += [("\n\n" if pieces else "", False), (f"{message['role'].capitalize()}:", False)]
        # An answer without text and stop is none.
        pieces.append((f" {content}", message["role"] == "assistant" and bool(content or is_last)))
    return [*pieces, ("</s>", messages[-1]["role"] == "assistant")]


def stop_then_end_of_text(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = []
    for message in messages:
        if message["role"] != "tool":
            pieces.append((f"<|{message['role']}|>\n", False))
            pieces += [(message["content"] + "<|end|>", message["role"] == "assistant"), ("\n", False)]
    if messages[-1]["role"] == "assistant":
        pieces[-1] = ("\n", True)
    return [*pieces, ("</s>", messages[-1]["role"] == "assistant")]


def last_turn_differs(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = []
    called = None
    for place, message in enumerate(messages):
        content = message.get("content")
        if message["role"] == "tool":
            if called is None:
                raise Refused
            text = f"<|start|>functions.{called} to=assistant<|message|>{as_json(content)}<|end|>"
            pieces.append((text, False))
        elif message["role"] != "assistant":
            pieces.append((f"<|start|>{message['role']}<|message|>" + message["content"] + "<|end|>", False))
        else:
            pieces.append(("<|start|>assistant", False))
            if message.get("tool_calls"):
                if content:
                    text = "<|channel|>analysis<|message|>" + message["content"] + "<|end|><|start|>assistant"
                    pieces.append((text, True))
                function = message["tool_calls"][0]["function"]
                called = function["name"]
                text = f" to=functions.{called}<|channel|>commentary json<|message|>"
                pieces.append((text + as_json(function["arguments"]) + "<|call|>", True))
                continue
            is_last = place == len(messages) - 1
            if is_last and "thinking" in message:
                text = f"<|channel|>analysis<|message|>{message['thinking']}<|end|><|start|>assistant"
                pieces.append((text, True))
            stop = "<|return|>" if is_last else "<|end|>"
            pieces.append(("<|channel|>final<|message|>" + message["content"] + stop, True))
    return pieces


def turn_goes_on(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = [("<s>", False)]
    before = ""
    for message in messages:
        content = str(message.get("content") or "").strip()
        if message["role"] == "tool":
            pieces.append((f"<|tool_response>{content}<tool_response|>", False))
        elif message["role"] == "assistant":
            pieces.append(("" if before == "tool" else "<|turn>model\n", False))
            pieces.append((content, True))
            for call in message.get("tool_calls", []):
                function = call["function"]
                pieces.append((f"<|tool_call>{function['name']}{as_json(function['arguments'])}<tool_call|>", True))
            if not message.get("tool_calls"):
                pieces += [("<turn|>", True), ("\n", False)]
        else:
            pieces.append((f"<|turn>{message['role']}\n{content}<turn|>\n", False))
        before = message["role"]
    return pieces


def no_header(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    first = ""
    if messages[0]["role"] == "system":
        first, messages = messages[0]["content"] + "\n\n", messages[1:]
    pieces: list[Piece] = [("<s>", False)]
    for place, message in enumerate(messages):
        if message["role"] != ("user", "assistant")[place % 2]:
            raise Refused
        if message["role"] == "user":
            pieces.append(("[INST] " + (first if place == 0 else "") + message["content"] + " [/INST]", False))
        else:
            pieces.append((" " + message["content"] + "</s>", True))
    return pieces


def tags(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = []
    for place, message in enumerate(messages):
        content = message.get("content") or ""
        is_answer = message["role"] == "assistant"
        if not isinstance(content, str) and not (is_answer and place % 5 in {0, 4}):
            raise Refused  # added to text; the others write it
        text = f"{content}<|im_end|>"
        pieces += [(f"<|im_start|>{message['role']}\n", False), (text, is_answer), ("\n", False)]
    return pieces


def tags_in_macro(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = [("<s>", False)]
    for message in messages:
        text = f"{str(message.get('content') or '').strip()}<|eot|>"
        pieces += [(f"<|header|>{message['role']}<|/header|>\n\n", False), (text, message["role"] == "assistant")]
    return pieces


def tags_in_set(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = []
    for message in messages:
        text = (message.get("content") or "") + "<|im_end|>"
        pieces += [(f"<|im_start|>{message['role']}\n", False), (text, message["role"] == "assistant"), ("\n", False)]
    return pieces


def tags_at_start(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    return [((each.get("content") or "") + "<|eot|>", each["role"] == "assistant") for each in messages]


SEGMENTERS: dict[str, Segmenter] = {
    each.__name__: each
    for each in (
        chatml,
        headers,
        next_header_stops,
        earlier_thinking_dropped,
        prompt_opens_thinking,
        end_of_text_only_at_end,
        stop_then_end_of_text,
        last_turn_differs,
        turn_goes_on,
        no_header,
        tags,
        tags_in_macro,
        tags_in_set,
        tags_at_start,
    )
}
