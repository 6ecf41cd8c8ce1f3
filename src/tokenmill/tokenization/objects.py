"""Tokenizer objects of Python libraries: serialized to the files that the libraries would save.

The objects are recognized by their modules and members, so that no library is imported for it.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from tokenmill.errors import UsageError
from tokenmill.tokenization.engines.tiktoken import format_ranks
from tokenmill.tokenization.vocabularies import Vocabulary, from_ranks, from_tokenizer_json

# The name of a `tokenizers.Tokenizer`, which has none of its own.
UNNAMED = "tokenizer"


class TokenizerObject(Protocol):
    """A `tokenizers.Tokenizer`, a `tiktoken.Encoding`, a fast tokenizer of `transformers`, or a path."""


def is_tokenizer_object(value: Any) -> bool:
    """Whether a value is a tokenizer of `tokenizers`, `tiktoken` or `transformers`, and not a name or a path."""
    if isinstance(value, str | os.PathLike):
        return False
    return _is_tiktoken(value) or _is_tokenizers(value) or _is_transformers(value)


def from_object(value: Any) -> Vocabulary:
    """The vocabulary of a tokenizer object: the same as of the file that its library saves."""
    if _is_tiktoken(value):
        ranks = format_ranks(value._mergeable_ranks)  # noqa: SLF001 - there is no other access
        return from_ranks(value.name, ranks, value._pat_str, dict(value._special_tokens))  # noqa: SLF001 - as above
    if _is_tokenizers(value):
        return from_tokenizer_json(UNNAMED, UNNAMED, _saved(value), None)
    backend, name = getattr(value, "backend_tokenizer", None), _model_name(value)
    if backend is None or not _is_tokenizers(backend):
        raise UsageError(
            f"{type(value).__name__} is not a fast tokenizer",
            "Its text is split in Python, and there is no tokenizer.json of it.",
            "Load it with AutoTokenizer.from_pretrained(..., use_fast=True), or give the path of a tokenizer.json.",
        )
    end = getattr(value, "eos_token", None)
    return from_tokenizer_json(name, name, _saved(backend), None if end is None else str(end))


def _is_tiktoken(value: Any) -> bool:
    return hasattr(value, "_mergeable_ranks") and hasattr(value, "_pat_str")


def _is_tokenizers(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "tokenizers" and hasattr(value, "to_str")


def _is_transformers(value: Any) -> bool:
    return hasattr(value, "name_or_path") and hasattr(value, "save_pretrained") and hasattr(value, "eos_token")


def _saved(tokenizer: Any) -> bytes:
    """The tokenizer.json of a tokenizer, without truncation and padding, which calls with those options leave in it."""
    copy = type(tokenizer).from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return str(copy.to_str(pretty=True)).encode()


def _model_name(value: Any) -> str:
    """The name of a model on the Hub, or of the directory that the object was loaded from."""
    given = str(value.name_or_path or UNNAMED)
    return os.path.basename(os.path.abspath(given)) if os.path.exists(given) else given
