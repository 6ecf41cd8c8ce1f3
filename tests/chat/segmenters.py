"""Segmenters of templates of known models, written by hand from reading the templates.

Only `scripts/check_chat.py` uses them, because the templates themselves are not in this repository. What a turn is and
which of it is trained on: see `own_segmenters`. A text that a template says before the conversation, such as how to
call tools, is not repeated here: the pieces are those after it, and `REST` says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.chat.pieces import Message, Piece, Refused, Segmenter, as_json

# The text before the first piece is whatever the template says, and is not trained on.
REST: Piece = ("…", False)


def _chatml(role: str, text: str) -> list[Piece]:
    return [(f"<|im_start|>{role}\n", False), (text + "<|im_end|>", role == "assistant"), ("\n", False)]


def _tool_response(messages: list[Message], place: int, content: str) -> list[Piece]:
    """A result of Qwen's templates: those in a row are in one message of the user."""
    is_first = place == 0 or messages[place - 1]["role"] != "tool"
    is_last = place == len(messages) - 1 or messages[place + 1]["role"] != "tool"
    text = f"\n<tool_response>\n{content}\n</tool_response>"
    return [(("<|im_start|>user" if is_first else "") + text + ("<|im_end|>\n" if is_last else ""), False)]


def qwen2_5(messages: list[Message], tools: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = [REST]
    if messages[0]["role"] == "system" and not tools:
        pieces = _chatml("system", "" + messages[0]["content"])
    for place, message in enumerate(messages):
        role, calls = message["role"], message.get("tool_calls")
        if role == "tool":
            pieces += _tool_response(messages, place, message["content"])
        elif role != "assistant" or not calls:
            if role != "system" or place:
                pieces += _chatml(role, "" + message["content"])
        else:
            said = [str(message["content"])] if message.get("content") else []
            for call in calls:
                function = call["function"]
                arguments = as_json(function["arguments"])
                said.append(f'<tool_call>\n{{"name": "{function["name"]}", "arguments": {arguments}}}\n</tool_call>')
            pieces += _chatml("assistant", "\n".join(said))
    return pieces


def qwen3(messages: list[Message], tools: list[Any] | None) -> list[Piece]:  # noqa: C901 - as the template is
    pieces: list[Piece] = [REST] if tools else []
    if messages[0]["role"] == "system" and not tools:
        pieces = _chatml("system", "" + messages[0]["content"])
    if tools and messages[0]["role"] == "system":
        _ = messages[0]["content"] + ""
    asked = len(messages) - 1
    for place in range(len(messages) - 1, -1, -1):
        content = messages[place].get("content")
        is_result = (
            isinstance(content, str) and content[:15] == "<tool_response>" and content[-16:] == "</tool_response>"
        )
        if messages[place]["role"] == "user" and isinstance(content, str) and not is_result:
            asked = place
            break
    for place, message in enumerate(messages):
        content = message.get("content")
        content = content if isinstance(content, str) else ""
        if message["role"] == "tool":
            pieces += _tool_response(messages, place, content)
        elif message["role"] != "assistant":
            if message["role"] == "user" or place:
                pieces += _chatml(message["role"], content)
        else:
            thought, content = _reasoning(message, content)
            text = content
            if place > asked and (place == len(messages) - 1 or thought):
                text = "<think>\n" + thought.strip("\n") + "\n</think>\n\n" + content.lstrip("\n")
            for number, call in enumerate(message.get("tool_calls", [])):
                arguments = call["function"]["arguments"]
                arguments = arguments if isinstance(arguments, str) else as_json(arguments)
                text += "\n" if content or number else ""
                name = call["function"]["name"]
                text += f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
            pieces += _chatml("assistant", text)
    return pieces


def _reasoning(message: Message, content: str) -> tuple[str, str]:
    """The reasoning of Qwen3 and GLM: a field, or what is before `</think>`."""
    if isinstance(message.get("reasoning_content"), str):
        return message["reasoning_content"], content
    if "</think>" not in content:
        return "", content
    parts = content.split("</think>")
    return parts[0].rstrip("\n").split("<think>")[-1].lstrip("\n"), parts[-1].lstrip("\n")


def llama3(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = [("<|begin_of_text|>", False)]
    for message in messages:
        text = f"{str(message.get('content', '')).strip()}<|eot_id|>"
        pieces.append((f"<|start_header_id|>{message['role']}<|end_header_id|>\n\n", False))
        pieces.append((text, message["role"] == "assistant"))
    return pieces


def gemma3(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    first = ""
    if messages[0]["role"] == "system":
        content = messages[0]["content"]
        first = (content if isinstance(content, str) else content[0]["text"]) + "\n\n"
        messages = messages[1:]
    pieces: list[Piece] = [("<bos>", False)]
    for place, message in enumerate(messages):
        if (message["role"] == "user") != (place % 2 == 0):
            raise Refused
        is_answer = message["role"] == "assistant"
        content = message.get("content", [])
        texts = [content] if isinstance(content, str) else [part["text"] for part in content]
        header = f"<start_of_turn>{'model' if is_answer else message['role']}\n"
        pieces.append((header + ("" if place else first), False))
        pieces += [("".join(text.strip() for text in texts) + "<end_of_turn>", is_answer), ("\n", False)]
    return pieces


def phi3_5(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = []
    for message in messages:
        role = message["role"]
        if role in {"user", "assistant"} or (role == "system" and message.get("content")):
            pieces.append((f"<|{role}|>\n", False))
            pieces += [(message["content"] + "<|end|>", role == "assistant"), ("\n", False)]
    is_answer = messages[-1]["role"] == "assistant"
    if is_answer:
        pieces[-1] = ("\n", True)
    return [*pieces, ("<|endoftext|>", is_answer)]


def mistral_nemo(messages: list[Message], tools: list[Any] | None) -> list[Piece]:  # noqa: C901 - as the template is
    system = None
    if messages[0]["role"] == "system":
        system, messages = messages[0]["content"], messages[1:]
    questions = [message for message in messages if message["role"] == "user"]
    others = [each for each in messages if each["role"] != "tool" and "tool_calls" not in each]
    if any((message["role"] == "user") != (place % 2 == 0) for place, message in enumerate(others)):
        raise Refused
    pieces: list[Piece] = [("<s>", False)]
    for place, message in enumerate(messages):
        role = message["role"]
        if role == "user":
            if tools is not None and message == questions[-1]:
                pieces.append((_nemo_tools(tools), False))
            own = f"{system}\n\n" if place == len(messages) - 1 and system is not None else ""
            pieces.append((f"[INST]{own}" + message["content"] + "[/INST]", False))
        elif "tool_calls" in message:
            calls = []
            for call in message["tool_calls"]:
                if len(call["id"]) != 9:
                    raise Refused
                calls.append(as_json(call["function"])[:-1] + f', "id": "{call["id"]}"}}')
            pieces.append((f"[TOOL_CALLS][{', '.join(calls)}]</s>", True))
        elif role == "assistant":
            pieces.append((message["content"] + "</s>", True))
        elif role == "tool":
            if len(message["tool_call_id"]) != 9:
                raise Refused
            text = f'[TOOL_RESULTS]{{"content": {message["content"]}, "call_id": "{message["tool_call_id"]}"}}'
            pieces.append((f"{text}[/TOOL_RESULTS]", False))
        else:
            raise Refused
    return pieces


def _nemo_tools(tools: list[Any]) -> str:
    shown = []
    for tool in tools:
        fields = (
            f'"{key}": "{value}"' if isinstance(value, str) else f'"{key}": {as_json(value)}'
            for key, value in tool["function"].items()
        )
        shown.append(f'{{"type": "function", "function": {{{", ".join(fields)}}}}}')
    return f"[AVAILABLE_TOOLS][{', '.join(shown)}][/AVAILABLE_TOOLS]"


# The control tokens of DeepSeek have a bar and a line of their own.
_BEGIN, _END, _USER, _ASSISTANT = (
    f"<\uff5c{name}\uff5c>" for name in ("begin▁of▁sentence", "end▁of▁sentence", "User", "Assistant")
)


def _deepseek(name: str) -> str:
    return f"<\uff5c{name.replace(' ', '▁')}\uff5c>"


def deepseek_v3(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    system = [message["content"] for message in messages if message["role"] == "system"]
    pieces: list[Piece] = [(_BEGIN + "\n\n".join(system), False)]
    has_called = has_results = in_results = False
    for message in messages:
        role = message["role"]
        if role == "user":
            in_results = False
            pieces.append((_USER + message["content"], False))
        elif role == "assistant" and "tool_calls" in message:
            in_results = False
            for call in message["tool_calls"]:
                # Only the first call of all has a header: the template does not forget it.
                if not has_called:
                    pieces += [(_ASSISTANT, False), (message["content"] + _deepseek("tool calls begin"), True)]
                text = (
                    ("\n" if has_called else "") + _deepseek("tool call begin") + call["type"] + _deepseek("tool sep")
                )
                text += call["function"]["name"] + "\n```json\n" + call["function"]["arguments"] + "\n```"
                pieces.append((text + _deepseek("tool call end"), True))
                has_called = True
            pieces.append((_deepseek("tool calls end") + _END, True))
        elif role == "assistant":
            header = _deepseek("tool outputs end") if in_results else _ASSISTANT
            content = message["content"] if in_results else message["content"].split("</think>")[-1]
            pieces += [(header, False), (content + _END, True)]
            in_results = False
        elif role == "tool":
            begin = "" if has_results else _deepseek("tool outputs begin")
            text = begin + _deepseek("tool output begin") + message["content"] + _deepseek("tool output end")
            pieces.append((text, False))
            in_results = has_results = True
    return [*pieces, (_deepseek("tool outputs end"), False)] if in_results else pieces


def glm_4_6(messages: list[Message], tools: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = [REST] if tools else [("[gMASK]<sop>", False)]
    asked = max((place for place, message in enumerate(messages) if message["role"] == "user"), default=-1)
    answered = False
    for place, message in enumerate(messages):
        role = message["role"]
        content = message.get("content", "")
        content = content if isinstance(content, str) else "".join(part["text"] for part in content)
        if role == "assistant":
            thought, content = _reasoning(message, content)
            shown = thought.strip() if place > asked else ""
            pieces += [("<|assistant|>", False), (f"\n<think>{shown}</think>", True)]
            pieces.append((f"\n{content.strip()}" if content.strip() else "", True))
            pieces += [(_glm_call(call["function"]), True) for call in message.get("tool_calls", [])]
        elif role == "tool":
            if place == 0 or messages[place - 1]["role"] != "tool":
                pieces.append(("<|observation|>", answered))
            pieces.append((f"\n<tool_response>\n{content}\n</tool_response>", False))
        else:
            pieces += [(f"<|{role}|>", answered and role == "user"), (f"\n{content}", False)]
        answered = role == "assistant"
    return pieces


def _glm_call(function: dict[str, Any]) -> str:
    arguments = function["arguments"] or {}
    if not isinstance(arguments, dict):
        raise Refused
    text = f"\n<tool_call>{function['name']}\n"
    for key, value in arguments.items():
        shown = value if isinstance(value, str) else as_json(value)
        text += f"<arg_key>{key}</arg_key>\n<arg_value>{shown}</arg_value>\n"
    return text + "</tool_call>"


def gpt_oss(messages: list[Message], _: list[Any] | None) -> list[Piece]:  # noqa: C901 - as the template is
    pieces: list[Piece] = [REST]
    if messages[0]["role"] == "system":
        messages = messages[1:]
    called = None
    for place, message in enumerate(messages):
        role, content, thought = message["role"], message.get("content"), message.get("thinking")
        if role == "assistant":
            for text in (content, thought):
                if text is not None and (
                    "<|channel|>analysis<|message|>" in text or "<|channel|>final<|message|>" in text
                ):
                    raise Refused
            answers_later = any(
                each["role"] == "assistant" and "tool_calls" not in each for each in messages[place + 1 :]
            )
            analysis = "<|channel|>analysis<|message|>"
            pieces.append(("<|start|>assistant", False))
            if "tool_calls" in message:
                if content and thought:
                    raise Refused
                if (content or thought) and not answers_later:
                    pieces.append((f"{analysis}{content or thought}<|end|><|start|>assistant", True))
                function = message["tool_calls"][0]["function"]
                called = function["name"]
                text = f" to=functions.{called}<|channel|>commentary json<|message|>{as_json(function['arguments'])}"
                pieces.append((text + "<|call|>", True))
            elif place == len(messages) - 1:
                if "thinking" in message:
                    pieces.append((f"{analysis}" + message["thinking"] + "<|end|><|start|>assistant", True))
                pieces.append(("<|channel|>final<|message|>" + message["content"] + "<|return|>", True))
            else:
                pieces.append(("<|channel|>final<|message|>" + message["content"] + "<|end|>", True))
                called = None
        elif role == "tool":
            if called is None:
                raise Refused
            text = f"<|start|>functions.{called} to=assistant<|channel|>commentary<|message|>{as_json(content)}<|end|>"
            pieces.append((text, False))
        elif role == "user":
            pieces.append(("<|start|>user<|message|>" + message["content"] + "<|end|>", False))
    return pieces


def smollm3(messages: list[Message], _: list[Any] | None) -> list[Piece]:
    system = messages[0].get("content", "") if messages[0]["role"] == "system" else ""
    if not isinstance(system, str):
        raise Refused
    empty = "<think>\n\n</think>\n" if "/no_think" in system else ""
    pieces: list[Piece] = [REST]
    for message in messages:
        content = message.get("content")
        content = content if isinstance(content, str) else ""
        if message["role"] == "assistant":
            pieces += [
                ("<|im_start|>assistant\n" + empty, False),
                (content.lstrip("\n") + "<|im_end|>", True),
                ("\n", False),
            ]
        elif message["role"] in {"user", "tool"}:
            pieces += _chatml("user", content)
    return pieces


def lfm2(messages: list[Message], tools: list[Any] | None) -> list[Piece]:
    pieces: list[Piece] = [REST] if tools else [("<|startoftext|>", False)]
    if messages[0]["role"] == "system":
        if not tools and messages[0]["content"]:
            pieces += _chatml("system", "" + messages[0]["content"])
        elif tools:
            _ = messages[0]["content"] + ""
        messages = messages[1:]
    for message in messages:
        content = message["content"] if isinstance(message["content"], str) else as_json(message["content"])
        if message["role"] == "tool":
            content = f"<|tool_response_start|>{content}<|tool_response_end|>"
        pieces += _chatml(message["role"], content)
    return pieces


def with_rest(pieces: list[Piece], text: str) -> Iterator[Piece]:
    """The pieces with what the template says before them, as it is in the text."""
    if pieces[0] is not REST:
        yield from pieces
        return
    rest = "".join(piece for piece, _ in pieces[1:])
    yield text[: max(0, len(text) - len(rest))], False
    yield from pieces[1:]


# By the name that `scripts/chat_material.py` gives to a template.
SEGMENTERS: dict[str, Segmenter] = {
    "trl-qwen2_5": qwen2_5,
    "trl-qwen3": qwen3,
    "trl-llama3": llama3,
    "trl-gemma3": gemma3,
    "trl-phi3_5": phi3_5,
    "llamacpp-mistralai-mistral-nemo-instruct-2407": mistral_nemo,
    "trl-deepseekv3": deepseek_v3,
    "llamacpp-glm-4.6": glm_4_6,
    "trl-gptoss": gpt_oss,
    "llamacpp-huggingfacetb-smollm3-3b": smollm3,
    "trl-lfm2": lfm2,
}
