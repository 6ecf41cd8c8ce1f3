"""Decide whether the model of a tokenizer.json gives the same tokens in gigatoken as in `tokenizers`.

Both merge the pair of the lowest rank first, the leftmost of equal ones. In `tokenizers`, the rank is the pair's index
in the list; for a pair that is listed twice, it uses the last index and gigatoken the first. If the ids of the merged
tokens rise along the list, gigatoken uses that id as the rank, so pairs that make the same token have the same rank.
This changes nothing if both ids of each pair are lower than the merged id: then merges happen in the order of ids, and
only one of the pairs that make a token can occur. Otherwise gigatoken uses the index in the list as well.
"""

from __future__ import annotations

import itertools
from typing import Any

from tokenmill.tokenizers.token_bytes import BYTE_CHARACTERS, TEXT_CHARACTERS

_NOTHING: tuple[Any, ...] = (None, "")
# The options of a model, and the values with which both engines were compared.
ALLOWED: dict[str, tuple[Any, ...]] = {
    "type": (None, "BPE"),
    "dropout": (None,),
    "unk_token": (None,),
    "continuing_subword_prefix": _NOTHING,
    "end_of_word_suffix": _NOTHING,
    "fuse_unk": (None, False),
    "byte_fallback": (None, False),
    "ignore_merges": (None, False, True),
}


def unsupported_model(model: dict[str, Any]) -> str | None:
    """The reason why gigatoken must not be used for this model, or None if it may be used."""
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        return f"its model is {model.get('type')}, not BPE"
    for option, value in model.items():
        if option in ("vocab", "merges"):
            continue
        if option not in ALLOWED or not any(value is allowed or value == allowed for allowed in ALLOWED[option]):
            return f"its model has {option}"
    return _unsupported_vocabulary(model["vocab"]) or _unsupported_merges(model["vocab"], model["merges"])


def _unsupported_vocabulary(vocabulary: dict[str, int]) -> str | None:
    if set(vocabulary.values()) != set(range(len(vocabulary))):
        return "its ids have gaps, or two tokens have the same"
    if not all(vocabulary) or not set().union(*vocabulary) <= BYTE_CHARACTERS:
        return "its tokens are not all written as bytes"
    return None if vocabulary.keys() >= TEXT_CHARACTERS else "a byte of UTF-8 has no token"


def _unsupported_merges(vocabulary: dict[str, int], merges: list[Any]) -> str | None:
    pairs = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges]
    if any(len(pair) != 2 for pair in pairs):
        return "one of its merges is not a pair"
    if len(set(pairs)) != len(pairs):
        return "one of its merges is listed twice"
    numbers = [(vocabulary.get(a), vocabulary.get(b), vocabulary.get(f"{a}{b}")) for a, b in pairs]
    known = [(a, b, merged) for a, b, merged in numbers if a is not None and b is not None and merged is not None]
    if len(known) != len(numbers):
        return "one of its merges has no token"
    ranks = [merged for _, _, merged in known]
    is_rising = all(before <= after for before, after in itertools.pairwise(ranks))
    has_ties = len(set(ranks)) != len(ranks)
    if is_rising and has_ties and any(max(a, b) >= merged for a, b, merged in known):
        return "several of its merges make the same token"
    return None
