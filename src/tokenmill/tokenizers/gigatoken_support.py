"""Decide whether gigatoken encodes a vocabulary exactly as the reference does.

gigatoken loads many tokenizer.json files that it then encodes differently, without a warning. So a file must be of a
kind that scripts/derive_unicode_gap.py compared code point by code point. All others are encoded by the reference.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tokenmill.tokenizers.gigatoken_merges import unsupported_model

if TYPE_CHECKING:
    from tokenmill.tokenizers.resolve import Vocabulary

# gigatoken's name for the split pattern of each scheme.
TIKTOKEN_SCHEMES = {
    "gpt2": "gpt2",
    "r50k_base": "gpt2",
    "p50k_base": "gpt2",
    "cl100k_base": "gpt4",
    "o200k_base": "o200k",
}

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"
_SPACE = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
# The split regexes of tokenizer.json files that were compared.
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

_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
_FILE_KEYS = ("version", "truncation", "padding", "added_tokens", *_STEPS)
_ADDED_TOKEN_KEYS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
_MADE_BY_NFC = frozenset(";`K")  # NFC maps U+037E, U+1FEF and U+212A to these


def unsupported(vocabulary: Vocabulary) -> str | None:
    """The reason why gigatoken must not be used for this vocabulary, or None if it may be used.

    This is an allowlist of keys and values: anything else is a reason, even if it may be harmless.
    """
    if vocabulary.spec.kind == "tiktoken":
        return _unsupported_ranks(vocabulary)
    try:
        return _unsupported_json(json.loads(vocabulary.content, object_pairs_hook=_without_repeats))
    except _RepeatedKeyError as repeated:
        return f"its file has the key {str(repeated)!r} twice"
    except (KeyError, IndexError, TypeError, ValueError, AttributeError):
        return "its file is not of the form that was compared"


def _unsupported_json(content: dict[str, Any]) -> str | None:
    return (
        _unsupported_keys("its file", content, _FILE_KEYS)
        or unsupported_model(content["model"])
        or _unsupported_normalizer(content.get("normalizer"))
        or _unsupported_splitter(content.get("pre_tokenizer"))
        or _unsupported_template(content.get("post_processor"))
        or _unsupported_added_tokens(content)
    )


class _RepeatedKeyError(Exception):
    """A JSON object has a key twice; parsers differ in which value they use."""


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        names = [name for name, _ in pairs]
        raise _RepeatedKeyError(next(name for name in names if names.count(name) > 1))
    return record


def _unsupported_ranks(vocabulary: Vocabulary) -> str | None:
    """The ranks must have no gaps, and the bytes must be first: gigatoken keeps eight bits of a byte's rank."""
    lines = vocabulary.content.splitlines()
    if vocabulary.spec.scheme not in TIKTOKEN_SCHEMES:
        return "its split pattern is not one that was compared"
    if not lines[-1].endswith(b" %d" % (len(lines) - 1)):
        return "its ranks have gaps, which gigatoken does not load"
    bytes_first = {base64.b64decode(line.split()[0]) for line in lines[:256]} == {bytes([byte]) for byte in range(256)}
    return None if bytes_first else "its first 256 tokens are not the bytes"


def _unsupported_keys(what: str, record: dict[str, Any], allowed: Collection[str]) -> str | None:
    others = sorted(set(record) - set(allowed))
    return f"{what} has {', '.join(others)}" if others else None


def _unsupported_step(step: dict[str, Any], allowed: Collection[str]) -> str | None:
    return _unsupported_keys(f"its step {step['type']}", step, ("type", *allowed))


def _unsupported_normalizer(normalizer: dict[str, Any] | None) -> str | None:
    steps = _steps(normalizer, "normalizers")
    names = [step["type"] for step in steps]
    if names not in ([], ["NFC"]):
        return f"it normalizes with {', '.join(names)}"
    sequence = _unsupported_step(normalizer, ("normalizers",)) if normalizer else None
    return sequence or (_unsupported_step(steps[0], ()) if steps else None)


def _unsupported_splitter(splitter: dict[str, Any] | None) -> str | None:
    steps = _steps(splitter, "pretokenizers")
    names = [step["type"] for step in steps]
    if splitter is None or names not in (["ByteLevel"], ["Split", "ByteLevel"]):
        return f"it splits by {', '.join(names) or 'nothing'}"
    byte_level = steps[-1]
    unknown = _unsupported_step(byte_level, ("add_prefix_space", "trim_offsets", "use_regex"))
    if splitter["type"] == "Sequence":
        unknown = unknown or _unsupported_step(splitter, ("pretokenizers",))
    if names == ["ByteLevel"]:
        plain = byte_level.get("use_regex", True) is True and byte_level.get("add_prefix_space") in (True, False)
        return unknown or (None if plain else "it does not split, or may add a space")
    if byte_level.get("use_regex", True) is not False or byte_level.get("add_prefix_space", True) is not False:
        return "it splits twice, or adds a space"
    return unknown or _unsupported_split(steps[0])


def _unsupported_split(split: dict[str, Any]) -> str | None:
    if split.get("behavior") != "Isolated" or split.get("invert") is not False:
        return f"its split is {split.get('behavior')}"
    pattern = split.get("pattern")
    if not isinstance(pattern, dict) or list(pattern) != ["Regex"] or pattern["Regex"] not in JSON_SPLITS.values():
        return "its split pattern is not one that was compared"
    return _unsupported_step(split, ("pattern", "behavior", "invert"))


def _unsupported_template(step: dict[str, Any] | None) -> str | None:
    """A post-processor changes the text's tokens only if it is a template that does not contain the text once."""
    for processor in _steps(step, "processors"):
        if processor.get("type") not in ("ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing"):
            return f"its post-processor is {processor.get('type')}"
        items = processor.get("single", [{"Sequence": {"id": "A"}}])
        if not isinstance(items, list) or sum("Sequence" in item for item in items) != 1:
            return "its template does not have the text once"
    return None


def _unsupported_added_tokens(content: dict[str, Any]) -> str | None:
    """Special tokens are removed before gigatoken loads the file. Both engines must match the others alike."""
    tokens = content.get("added_tokens") or []
    texts = [token["content"] for token in tokens]
    if "" in texts or len(set(texts)) != len(texts):
        return "an added token is empty, or listed twice"
    reasons = (_unsupported_keys(f"its added token {t['content']!r}", t, _ADDED_TOKEN_KEYS) for t in tokens)
    if [token["id"] for token in tokens] != _assigned_ids(content["model"]["vocab"], tokens):
        return "its added tokens have other ids than tokenizers gives them"
    plain = [token for token in tokens if not token["special"]]
    if len({token.get("normalized", True) for token in plain}) > 1:
        return "its added tokens are matched in two passes"
    special_characters = {character for token in tokens if token["special"] for character in token["content"]}
    plain_reasons = (_unsupported_plain_token(content, token, special_characters) for token in plain)
    return next((reason for reason in itertools.chain(reasons, plain_reasons) if reason), None)


def _unsupported_plain_token(content: dict[str, Any], token: dict[str, Any], special: set[str]) -> str | None:
    text = token["content"]
    options = [option for option in ("single_word", "lstrip", "rstrip") if token.get(option) is not False]
    adds_space = _steps(content["pre_tokenizer"], "pretokenizers")[-1].get("add_prefix_space") is not False
    if options:
        return f"its added token {text!r} has {options[0]}"
    if content.get("normalizer") and not _is_kept_by_nfc(token):
        return f"its added token {text!r} may be matched after normalization"
    if adds_space and (text == " " or text.strip(" ")):  # the added space may complete the token
        return f"its added token {text!r} may be matched after a space is added"
    return f"its added token {text!r} may overlap a special token" if special & set(text) else None


def _is_kept_by_nfc(token: dict[str, Any]) -> bool:
    """Whether NFC neither creates nor breaks the token's text: spaces, or most of ASCII if matched before NFC."""
    text = token["content"]
    if not text.strip(" "):
        return True
    return not token.get("normalized", True) and text.isascii() and not set(text) & _MADE_BY_NFC


def _assigned_ids(vocabulary: dict[str, int], tokens: list[dict[str, Any]]) -> list[int]:
    """The ids that `tokenizers` assigns to added tokens, whatever the file says: the model's id, or the next free."""
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
