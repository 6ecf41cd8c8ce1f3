"""The pre-tokenizers of a tokenizer.json that were compared with gigatoken, and what gigatoken is given in their place.

A family is recognized by its exact steps. Where gigatoken does not load the steps, it is given others that split alike
once the documents are cut at their digits (`cutting.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tokenmill.tokenization.cutting import DigitCuts
from tokenmill.tokenization.unicode_gap import NUMBERS, SYMBOL_GAP, Ranges

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
# DeepSeek V3 splits three times: at numbers, at Chinese and Japanese characters, and by words.
DEEPSEEK_SPLITS = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    (
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
        "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
)
# nanochat's pattern is that of Llama 3, with numbers of at most two digits. Its possessive quantifiers change nothing,
# because what follows them cannot match what they give back. `\s*[\r\n]` ends at the last line break, too.
NANOCHAT_SPLIT = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class Splitter:
    """How gigatoken splits as a pre-tokenizer does: the steps that it loads, and the digits to cut before.

    Documents with a character of `gap` go to the reference.
    """

    steps: tuple[dict[str, Any], ...]
    digits: DigitCuts | None = None
    gap: Ranges = ()

    @property
    def adds_space(self) -> bool:
        """Whether a space is added before the text."""
        return self.steps[-1].get("add_prefix_space") is not False

    def pre_tokenizer(self) -> dict[str, Any]:
        """The pre-tokenizer for gigatoken."""
        return self.steps[0] if len(self.steps) == 1 else {"type": "Sequence", "pretokenizers": list(self.steps)}


class UnknownSplitterError(Exception):
    """A pre-tokenizer is not one that was compared; the message is the reason."""


def recognize_splitter(pre_tokenizer: dict[str, Any] | None) -> Splitter:
    """How gigatoken splits as this pre-tokenizer does. Raises UnknownSplitterError."""
    steps = flatten(pre_tokenizer, "pretokenizers")
    names = [step["type"] for step in steps]
    if pre_tokenizer is None or names not in (
        ["ByteLevel"],
        ["Digits", "ByteLevel"],
        ["Split", "ByteLevel"],
        ["Split", "Split", "Split", "ByteLevel"],
    ):
        raise UnknownSplitterError(f"it splits by {', '.join(names) or 'nothing'}")
    if pre_tokenizer["type"] == "Sequence":
        _require_keys(pre_tokenizer, "pretokenizers")
    byte_level = steps[-1]
    _require_keys(byte_level, "add_prefix_space", "trim_offsets", "use_regex")
    splits = byte_level.get("use_regex", True)
    adds_space = byte_level.get("add_prefix_space", True)
    if names[0] == "Split":
        if splits is not False or adds_space is not False:
            raise UnknownSplitterError("it splits twice, or adds a space")
        return _recognize_regexes(steps[:-1], byte_level)
    if splits is not True or byte_level.get("add_prefix_space") not in (True, False):
        raise UnknownSplitterError("it does not split, or may add a space")
    if names == ["ByteLevel"]:
        return Splitter((byte_level,))
    _require_keys(steps[0], "individual_digits")
    if steps[0].get("individual_digits") is not True or adds_space:
        raise UnknownSplitterError("it splits at numbers, or adds a space")
    return Splitter((byte_level,), "single", NUMBERS)


def _recognize_regexes(splits: list[dict[str, Any]], byte_level: dict[str, Any]) -> Splitter:
    patterns = tuple(_pattern(split, is_only=len(splits) == 1) for split in splits)
    if patterns == DEEPSEEK_SPLITS:
        return Splitter((*splits, byte_level), gap=SYMBOL_GAP)
    if patterns == (NANOCHAT_SPLIT,):
        return Splitter((_isolated(JSON_SPLITS["llama3"]), byte_level), "pairs", NUMBERS)
    if len(patterns) != 1 or patterns[0] not in JSON_SPLITS.values():
        raise UnknownSplitterError("its split pattern is not one that was compared")
    return Splitter((_isolated(patterns[0]), byte_level))


def _pattern(split: dict[str, Any], *, is_only: bool) -> str:
    """The regex of a split. `Removed` with `invert` keeps the matches, and every pattern here matches all of a text."""
    _require_keys(split, "pattern", "behavior", "invert")
    how = split.get("behavior"), split.get("invert")
    if how != ("Isolated", False) and not (is_only and how == ("Removed", True)):
        raise UnknownSplitterError(f"its split is {how[0]}")
    pattern = split.get("pattern")
    if not isinstance(pattern, dict) or list(pattern) != ["Regex"] or not isinstance(pattern["Regex"], str):
        raise UnknownSplitterError("its split pattern is not one that was compared")
    return pattern["Regex"]


def _isolated(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _require_keys(step: dict[str, Any], *allowed: str) -> None:
    others = sorted(set(step) - {"type", *allowed})
    if others:
        raise UnknownSplitterError(f"its step {step['type']} has {', '.join(others)}")


def flatten(step: dict[str, Any] | None, members: str) -> list[dict[str, Any]]:
    """A step, or the steps of a sequence."""
    if step is None:
        return []
    return list(step[members]) if step["type"] == "Sequence" else [step]
