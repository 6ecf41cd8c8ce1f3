"""The control tokens of fill-in-the-middle: those before the prefix, the suffix and the middle of a document."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenmill.errors import UsageError
from tokenmill.tokenization.spec import TokenizerSpec

# The tokens before prefix, suffix and middle, by the family of models that introduced them.
FAMILIES = {
    "qwen": ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    "starcoder": ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    "santacoder": ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    "deepseek": ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>"),
    "codellama": ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>"),
    "glm": ("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
}
PIECES = ("prefix", "suffix", "middle")
_LOOKS_LIKE_FIM = re.compile(r"fim|prefix|suffix|middle|<(?:PRE|SUF|MID)>", re.IGNORECASE)
# How many tokens a message lists.
MAX_LISTED = 20


def find_fim_tokens(spec: TokenizerSpec, wanted: Sequence[str]) -> tuple[str, ...]:
    """The tokens before prefix, suffix and middle: of a family, of three texts, or of the family that a vocabulary has.

    Raises UsageError if the vocabulary lacks one of them, and without `wanted`, if it does not have exactly one family.
    """
    if not wanted:
        families = [name for name, tokens in FAMILIES.items() if set(tokens) <= set(spec.added_tokens)]
        if len(families) != 1:
            has = f"has the tokens of {' and '.join(families)}" if families else "has no FIM tokens of a known family"
            raise UsageError(f"{spec.name} {has}", *_advice(spec))
        wanted = families
    tokens = FAMILIES.get(wanted[0], tuple(wanted)) if len(wanted) == 1 else tuple(wanted)
    if len(tokens) != len(PIECES) or len(set(tokens)) != len(PIECES):
        raise UsageError(f"--fim-tokens {','.join(wanted)} is no family, and not three tokens", *_advice(spec))
    for token, piece in zip(tokens, PIECES, strict=True):
        if token not in spec.added_tokens:
            raise UsageError(f"{spec.name} has no token {token}, which is to stand before the {piece}", *_advice(spec))
    return tokens


def _advice(spec: TokenizerSpec) -> tuple[str, ...]:
    similar = [token for token in spec.added_tokens if _LOOKS_LIKE_FIM.search(token)]
    listed = " ".join(similar[:MAX_LISTED]) + (" ..." if len(similar) > MAX_LISTED else "")
    return (
        f"similar      {listed or 'none of its added tokens'}",
        f"families     {', '.join(FAMILIES)}",
        "Give --fim-tokens FAMILY, or PREFIX,SUFFIX,MIDDLE: the three tokens, in this order.",
    )
