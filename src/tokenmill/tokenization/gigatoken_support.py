"""Decide whether gigatoken encodes a vocabulary exactly as the reference does.

gigatoken loads many tokenizer.json files that it then encodes differently, without a warning. So a file must be of a
kind that scripts/derive_unicode_gap.py compared code point by code point. All others are encoded by the reference.
`byte_fallback.py` has the rules for vocabularies of SentencePiece's kind.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from tokenmill.tokenization.byte_fallback import unsupported_fallback
from tokenmill.tokenization.split_patterns import UnknownSplitterError, flatten, recognize_splitter
from tokenmill.tokenization.token_bytes import BYTE_CHARACTERS, TEXT_CHARACTERS

if TYPE_CHECKING:
    from tokenmill.tokenization.resolve import Vocabulary
    from tokenmill.tokenization.spec import TokenizerSpec

# gigatoken's name for the split pattern of each scheme.
TIKTOKEN_SCHEMES = {
    "gpt2": "gpt2",
    "r50k_base": "gpt2",
    "p50k_base": "gpt2",
    "cl100k_base": "gpt4",
    "o200k_base": "o200k",
}

_STEPS = ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model")
_FILE_KEYS = ("version", "truncation", "padding", "added_tokens", *_STEPS)
_ADDED_TOKEN_KEYS = ("id", "content", "single_word", "lstrip", "rstrip", "normalized", "special")
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
# The same for models that fall back to bytes. Each byte has a token in them, so the unknown token is never given.
ALLOWED_FALLBACK = ALLOWED | {
    "unk_token": (None, "<unk>"),
    "fuse_unk": (None, False, True),
    "byte_fallback": (True,),
    "ignore_merges": (None, False),
}


def unsupported(vocabulary: Vocabulary) -> str | None:
    """The reason why gigatoken must not be used for this vocabulary, or None if it may be used.

    This is an allowlist of keys and values: anything else is a reason, even if it may be harmless.
    """
    spec = vocabulary.spec
    if spec.kind == "tiktoken":
        return _unsupported_ranks(vocabulary) or (_unsupported_special(spec) if spec.parse_special else None)
    try:
        return _unsupported_json(json.loads(vocabulary.content, object_pairs_hook=_without_repeats))
    except _RepeatedKeyError as repeated:
        return f"its file has the key {str(repeated)!r} twice"
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, RecursionError):
        return "its file is not of the form that was compared"


def _unsupported_json(content: dict[str, Any]) -> str | None:
    return (
        _unsupported_keys("its file", content, _FILE_KEYS)
        or _unsupported_options(content)
        or _unsupported_template(content.get("post_processor"))
        or _unsupported_added_tokens(content)
        or (unsupported_fallback if falls_back(content) else _unsupported_byte_level)(content)
    )


def falls_back(content: dict[str, Any]) -> bool:
    """Whether this tokenizer.json has characters as tokens, and bytes for those that it lacks."""
    return content["model"].get("byte_fallback") is True


def _unsupported_byte_level(content: dict[str, Any]) -> str | None:
    plain = (token for token in content.get("added_tokens") or [] if not token["special"])
    return (
        _unsupported_normalizer(content.get("normalizer"))
        or _unsupported_splitter(content.get("pre_tokenizer"))
        or next(filter(None, (_unsupported_plain_token(content, token) for token in plain)), None)
        or _unsupported_vocabulary(content["model"]["vocab"])
        or _unsupported_merges(content["model"]["vocab"], content["model"]["merges"])
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


def _unsupported_special(spec: TokenizerSpec) -> str | None:
    """If two special tokens begin at a position, tiktoken takes one of them by the order of a hash table."""
    texts = sorted(spec.special_tokens)
    is_prefix = any(other.startswith(text) for text, other in itertools.pairwise(texts))
    return "one of its special tokens begins with another" if is_prefix else None


def _unsupported_keys(what: str, record: dict[str, Any], allowed: Collection[str]) -> str | None:
    others = sorted(set(record) - set(allowed))
    return f"{what} has {', '.join(others)}" if others else None


def _unsupported_step(step: dict[str, Any], allowed: Collection[str]) -> str | None:
    return _unsupported_keys(f"its step {step['type']}", step, ("type", *allowed))


def _unsupported_normalizer(normalizer: dict[str, Any] | None) -> str | None:
    steps = flatten(normalizer, "normalizers")
    names = [step["type"] for step in steps]
    if names not in ([], ["NFC"]):
        return f"it normalizes with {', '.join(names)}"
    sequence = _unsupported_step(normalizer, ("normalizers",)) if normalizer else None
    return sequence or (_unsupported_step(steps[0], ()) if steps else None)


def _unsupported_splitter(pre_tokenizer: dict[str, Any] | None) -> str | None:
    try:
        recognize_splitter(pre_tokenizer)
    except UnknownSplitterError as error:
        return str(error)
    return None


def _unsupported_template(step: dict[str, Any] | None) -> str | None:
    """A post-processor changes the text's tokens only if it is a template that does not contain the text once."""
    for processor in flatten(step, "processors"):
        if processor.get("type") not in ("ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing"):
            return f"its post-processor is {processor.get('type')}"
        items = processor.get("single", [{"Sequence": {"id": "A"}}])
        if not isinstance(items, list) or sum("Sequence" in item for item in items) != 1:
            return "its template does not have the text once"
    return None


def _unsupported_added_tokens(content: dict[str, Any]) -> str | None:
    """`tokenizers` must give the tokens the ids that the file says, and match them without looking around."""
    tokens = content.get("added_tokens") or []
    texts = [token["content"] for token in tokens]
    if "" in texts or len(set(texts)) != len(texts):
        return "an added token is empty, or listed twice"
    reasons = (_unsupported_keys(f"its added token {t['content']!r}", t, _ADDED_TOKEN_KEYS) for t in tokens)
    if [token["id"] for token in tokens] != _assigned_ids(content["model"]["vocab"], tokens):
        return "its added tokens have other ids than tokenizers gives them"
    return next(filter(None, reasons), None)


def _unsupported_plain_token(content: dict[str, Any], token: dict[str, Any]) -> str | None:
    text = token["content"]
    options = [option for option in ("single_word", "lstrip", "rstrip") if token.get(option) is not False]
    if options:
        return f"its added token {text!r} has {options[0]}"
    adds_space = recognize_splitter(content["pre_tokenizer"]).adds_space
    if adds_space and (text == " " or not _is_spaces(token)):  # the added space may complete the token
        return f"its added token {text!r} may be matched after a space is added"
    is_normalized = bool(flatten(content.get("normalizer"), "normalizers")) and token.get("normalized", True)
    if is_normalized and not _is_spaces(token):  # NFC neither makes nor removes a space
        return f"its added token {text!r} may be matched after normalization"
    return None


def natively_matched(tokens: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The added tokens that gigatoken matches itself, which is faster: spaces, if no other token has a space."""
    spaces = [token for token in tokens if _is_spaces(token)]
    others = [token for token in tokens if " " in token["content"] and not _is_spaces(token)]
    return spaces if len({token.get("normalized", True) for token in spaces}) == 1 and not others else []


def _is_spaces(token: dict[str, Any]) -> bool:
    return not token["special"] and not token["content"].strip(" ")


def _assigned_ids(vocabulary: dict[str, int], tokens: list[dict[str, Any]]) -> list[int]:
    """The ids that `tokenizers` assigns to added tokens, whatever the file says: the model's id, or the next free."""
    ids: list[int] = []
    for token in tokens:
        free = max(len(vocabulary), max(ids, default=-1) + 1)
        ids.append(vocabulary.get(token["content"], free))
    return ids


def _unsupported_options(content: dict[str, Any]) -> str | None:
    model = content["model"]
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        return f"its model is {model.get('type')}, not BPE"
    allowed = ALLOWED_FALLBACK if falls_back(content) else ALLOWED
    for option, value in model.items():
        if option not in ("vocab", "merges") and value not in allowed.get(option, ()):
            return f"its model has {option}"
    return None


def _unsupported_vocabulary(vocabulary: dict[str, int]) -> str | None:
    if set(vocabulary.values()) != set(range(len(vocabulary))):
        return "its ids have gaps, or two tokens have the same"
    if not all(vocabulary) or not set().union(*vocabulary) <= BYTE_CHARACTERS:
        return "its tokens are not all written as bytes"
    return None if vocabulary.keys() >= TEXT_CHARACTERS else "a byte of UTF-8 has no token"


def _unsupported_merges(vocabulary: dict[str, int], merges: list[Any]) -> str | None:
    """Both engines merge the pair of the lowest rank first, the leftmost of equal ones.

    In `tokenizers`, the rank is the pair's index in the list; for a pair that is listed twice, it uses the last index
    and gigatoken the first. If the ids of the merged tokens rise along the list, gigatoken uses that id as the rank, so
    pairs that make the same token have the same rank. This changes nothing if both ids of each pair are lower than the
    merged id: then merges happen in the order of ids, and only one of the pairs that make a token can occur. Otherwise
    gigatoken uses the index in the list as well.
    """
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
