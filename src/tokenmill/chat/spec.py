"""What decides the text of a conversation, and which of it is trained on. Part of the job."""

from __future__ import annotations

from typing import Any

import msgspec

ASSISTANT = "assistant"
# What `train` may name besides roles: the last turn of the assistant, or all of the text.
LAST, ALL = "last", "all"
# Whether a conversation is one document, or one for each turn of the assistant.
WHOLE, EACH = "whole", "each"
# Whether what the generation prompt forces, such as `<think>`, is trained on.
MASK, TRAIN = "mask", "train"


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat template with its constants, and the choice of the turns that are trained on.

    Attributes:
        template: The template, in the language of Jinja.
        constants: Its variables: those of `--chat-set`, and the tokenizer's `bos_token`, `eos_token` and others.
        special_tokens: The special tokens of the tokenizer. Those that end a turn are found among them.
        train: `assistant`, `last`, `all`, or roles.
        turns: `whole`: a conversation is a document. `each`: each turn of the assistant is, with what is before it.
        prefilled: `mask` or `train`: what is done with tokens that the generation prompt forces.
        roles: Other names of roles, such as `gpt` for `assistant`.
        marks: What stands in the text for a special token that the template writes. Then one that a conversation spells
            is text. Without marks, the two are not told apart.
    """

    template: str
    constants: dict[str, Any] = {}
    special_tokens: tuple[str, ...] = ()
    train: tuple[str, ...] = (ASSISTANT,)
    turns: str = WHOLE
    prefilled: str = MASK
    roles: dict[str, str] = {}
    marks: dict[str, str] = {}
