"""Which vocabularies gigatoken is known to encode exactly as the reference does.

gigatoken loads many a tokenizer.json that it then splits in its own way, without a word. So a file has to be of a kind
that was compared, code point by code point, by scripts/derive_unicode_gap.py; any other goes to the reference.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.tokenizers.vocabulary import Vocabulary

TIKTOKEN_SCHEMES = {
    "gpt2": "gpt2",
    "r50k_base": "gpt2",
    "p50k_base": "gpt2",
    "cl100k_base": "gpt4",
    "o200k_base": "o200k",
}
"""What gigatoken calls the split pattern of each scheme."""

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"
_SPACE = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
JSON_SPLITS = {
    "llama3": rf"{_CONTRACTIONS}|{_PREFIX}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_SPACE}",
    "qwen2": rf"{_CONTRACTIONS}|{_PREFIX}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_SPACE}",
    "qwen3.5": (rf"{_CONTRACTIONS}|{_PREFIX}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_SPACE}"),
    "o200k": (
        rf"{_PREFIX}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_PREFIX}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
        rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_SPACE}"
    ),
    "nemotron": (
        rf"{_PREFIX}{_UPPER}*{_LOWER}+|{_PREFIX}{_UPPER}+{_LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_SPACE}"
    ),
}
"""The split regexes of tokenizer.json files that were compared."""


def unsupported(vocabulary: Vocabulary) -> str | None:
    """Why gigatoken must not be used for this vocabulary, or None if it may."""
    if vocabulary.spec.kind == "tiktoken":
        ranks = vocabulary.content.count(b"\n")
        dense = vocabulary.content[:-1].endswith(b" %d" % (ranks - 1))
        if vocabulary.spec.scheme not in TIKTOKEN_SCHEMES:
            return "its split pattern is not one that was compared"
        return None if dense else "its ranks have gaps, which gigatoken does not load"
    content = json.loads(vocabulary.content)
    return (
        _unsupported_model(content["model"])
        or _unsupported_normalizer(content.get("normalizer"))
        or _unsupported_splitter(content.get("pre_tokenizer"))
        or _unsupported_added_tokens(content)
    )


def _unsupported_model(model: dict[str, Any]) -> str | None:
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        return f"its model is {model.get('type')}, not BPE"
    for option in ("dropout", "byte_fallback", "continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(option):
            return f"its model has {option}"
    return None


def _unsupported_normalizer(normalizer: dict[str, Any] | None) -> str | None:
    steps = _steps(normalizer, "normalizers")
    names = [step["type"] for step in steps]
    return None if names in ([], ["NFC"]) else f"it normalises by {', '.join(names)}"


def _unsupported_splitter(splitter: dict[str, Any] | None) -> str | None:
    steps = _steps(splitter, "pretokenizers")
    names = [step["type"] for step in steps]
    if names == ["ByteLevel"] and steps[0].get("use_regex", True):
        return None
    if names != ["Split", "ByteLevel"]:
        return f"it splits by {', '.join(names) or 'nothing'}"
    split, byte_level = steps
    if byte_level.get("use_regex", True) or byte_level.get("add_prefix_space", True):
        return "it splits twice, or adds a space"
    if split.get("behavior") != "Isolated" or split.get("invert"):
        return f"its split is {split.get('behavior')}"
    known = split.get("pattern", {}).get("Regex") in JSON_SPLITS.values()
    return None if known else "its split pattern is not one that was compared"


def _unsupported_added_tokens(content: dict[str, Any]) -> str | None:
    """Special tokens are taken out before gigatoken sees them; the others must be matched alike by both engines."""
    tokens = content.get("added_tokens") or []
    plain = [token for token in tokens if not token["special"]]
    special_characters = {character for token in tokens if token["special"] for character in token["content"]}
    for token in plain:
        text = token["content"]
        if token.get("single_word"):
            return f"its added token {text!r} matches whole words only"
        if content.get("normalizer") and token.get("normalized", True) and text.strip(" "):
            return f"its added token {text!r} is matched after normalising"
        if special_characters & set(text):
            return f"its added token {text!r} may overlap a special token"
    if [token["id"] for token in tokens] != _assigned_ids(content["model"]["vocab"], tokens):
        return "its added tokens have other ids than tokenizers gives them"
    if len({token.get("normalized", True) for token in plain}) > 1:
        return "its added tokens are matched in two passes"
    return None


def _assigned_ids(vocabulary: dict[str, int], tokens: list[dict[str, Any]]) -> list[int]:
    """The ids that `tokenizers` gives to added tokens, whatever the file says: the model's own, or the next free."""
    ids: list[int] = []
    for token in tokens:
        free = max(len(vocabulary), max(ids, default=-1) + 1)
        ids.append(vocabulary.get(token["content"], free))
    return ids


def _steps(step: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    """A step, or the steps of a sequence."""
    if step is None:
        return []
    return list(step[members]) if step["type"] == "Sequence" else [step]
