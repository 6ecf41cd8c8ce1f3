"""tokenizer.json files in the shapes of the families that people train with, around a given byte-level vocabulary.

The shapes are those of the published files: split patterns, normalizers, added tokens, options of the model. The
vocabularies are not: the Hub's cannot be fetched everywhere, and what decides between engines is the shape.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from tokenmill.tokenization.split_patterns import DEEPSEEK_SPLITS, JSON_SPLITS, NANOCHAT_SPLIT

Json = dict[str, Any]
# The text of an added token, whether it is special, whether it is matched in normalized text.
Added = tuple[str, bool, bool]

BYTE_LEVEL: Json = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
GPT2_LEVEL: Json = {**BYTE_LEVEL, "use_regex": True}
DIGITS: Json = {"type": "Digits", "individual_digits": True}
NFC: Json = {"type": "NFC"}
CHAT: list[Added] = [(f"<|{name}|>", True, False) for name in ("endoftext", "im_start", "im_end")]
TOOL_TEXTS = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)
TOOLS: list[Added] = [(text, False, False) for text in TOOL_TEXTS]
DEEPSEEK_TOKENS: list[Added] = [
    ("<\uff5cbegin\u2581of\u2581sentence\uff5c>", True, False),
    ("<\uff5cend\u2581of\u2581sentence\uff5c>", True, False),
    ("<\uff5cfim\u2581hole\uff5c>", False, True),
    ("<think>", False, True),
    ("</think>", False, True),
    ("<\uff5cUser\uff5c>", False, False),
]


def split(pattern: str, behavior: str = "Isolated", *, invert: bool = False) -> Json:
    """A Split step by a regex."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps: Json) -> Json:
    """A pre-tokenizer of several steps."""
    return {"type": "Sequence", "pretokenizers": list(steps)}


def shape(
    pre_tokenizer: Json, normalizer: Json | None = None, added: list[Added] = CHAT, *, ignore_merges: bool = False
) -> Callable[[Json], Json]:
    """A function that makes the family's tokenizer.json from the model of another one."""

    def build(model: Json) -> Json:
        own = {**copy.deepcopy(model), "ignore_merges": ignore_merges}
        tokens = []
        free = len(own["vocab"])
        for text, special, normalized in added:
            number = own["vocab"].get(text, free)
            free = max(free, number + 1)
            flags = {"single_word": False, "lstrip": False, "rstrip": False}
            tokens.append({"id": number, "content": text, **flags, "normalized": normalized, "special": special})
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": tokens,
            "normalizer": normalizer,
            "pre_tokenizer": pre_tokenizer,
            "post_processor": None,
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": own,
        }

    return build


def _by(name: str) -> Json:
    return sequence(split(JSON_SPLITS[name]), BYTE_LEVEL)


# Byte-level families by name.
FAMILIES: dict[str, Callable[[Json], Json]] = {
    "GPT-2": shape(GPT2_LEVEL),
    "GPT-NeoX, Pythia": shape(
        GPT2_LEVEL, NFC, [("<|endoftext|>", True, False), *[(" " * n, False, True) for n in range(24, 1, -1)]]
    ),
    "Llama 3": shape(_by("llama3"), ignore_merges=True),
    "Qwen 2.5, Qwen 3": shape(_by("qwen2"), NFC, CHAT + TOOLS),
    "Qwen 2": shape(_by("qwen2"), NFC),
    "Qwen 3.5": shape(_by("qwen3.5"), NFC, CHAT + TOOLS),
    "gpt-oss, Llama 4": shape(_by("o200k")),
    "Tekken, Nemotron": shape(_by("nemotron"), ignore_merges=True),
    "GLM 4.5": shape(_by("llama3"), None, CHAT + TOOLS, ignore_merges=True),
    "SmolLM 3": shape(_by("llama3"), None, CHAT + TOOLS[-2:], ignore_merges=True),
    "Phi-4": shape(sequence(split(JSON_SPLITS["llama3"], "Removed", invert=True), BYTE_LEVEL)),
    "OLMo 2, OLMo 3": shape(
        sequence(split(JSON_SPLITS["llama3"], "Removed", invert=True), BYTE_LEVEL),
        None,
        [*CHAT, ("|||IP_ADDRESS|||", False, False), ("<|fim_prefix|>", True, False)],
    ),
    "DeepSeek V3": shape(
        sequence(*map(split, DEEPSEEK_SPLITS), BYTE_LEVEL), {"type": "Sequence", "normalizers": []}, DEEPSEEK_TOKENS
    ),
    "SmolLM, SmolLM 2": shape(sequence(DIGITS, GPT2_LEVEL)),
    "StarCoder 2": shape(sequence(DIGITS, GPT2_LEVEL), None, CHAT + TOOLS[2:7]),
    "nanochat": shape(sequence(split(NANOCHAT_SPLIT), BYTE_LEVEL)),
}

TOKEN_TEXTS = [text for text, _, _ in CHAT + TOOLS + DEEPSEEK_TOKENS]
TOKEN_PARTS = ["<", ">", "|", "<|", "|>", "</", "think>", "<think", "tool_", "call>", "<tool_", "|||", "IP_ADDRESS"]
AWKWARD = "ab A1 2\n\r\t'.,!?<>|é日ひカ한\u0301\u200d😀-_/\\{}\"`0123456789"
WORDS = ["  ", "12", "345", "6789", " 1", "  22", "\n333", "word", " word", "'s", "'LL", "'ſ"]


def adversarial(count: int, seed: int) -> list[str]:
    """Random texts of awkward characters, spelled added tokens, and parts of them."""
    rng = random.Random(seed)
    pool = [*AWKWARD, *TOKEN_TEXTS, *TOKEN_PARTS, *WORDS]
    return ["".join(rng.choices(pool, k=rng.randint(1, 30))) for _ in range(count)]


def byte_fallback_families(texts: list[str]) -> dict[str, Callable[[], Json]]:
    """Families whose model falls back to bytes, as SentencePiece's do, with a vocabulary trained on these texts."""
    trained: list[Json] = []

    def shaped(normalizer: Json | None, pre_tokenizer: Json | None) -> Callable[[], Json]:
        def build() -> Json:
            if not trained:
                trained.append(_train_byte_fallback(texts))
            content = copy.deepcopy(trained[0])
            return {**content, "normalizer": normalizer, "pre_tokenizer": pre_tokenizer}

        return build

    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    prepend = {"type": "Prepend", "prepend": "\u2581"}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}
    at_spaces = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    return {
        "Llama 2, TinyLlama": shaped({"type": "Sequence", "normalizers": [prepend, replace]}, None),
        "Mistral 7B v0.3": shaped(None, metaspace),
        "Gemma 3": shaped(replace, at_spaces),
    }


def _train_byte_fallback(texts: list[str]) -> Json:
    import tokenizers

    trained = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    trained.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(replacement="\u2581", prepend_scheme="always")
    special = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=32_000, special_tokens=special, limit_alphabet=4000, show_progress=False
    )
    trained.train_from_iterator(texts, trainer)
    content: Json = json.loads(trained.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    return content
