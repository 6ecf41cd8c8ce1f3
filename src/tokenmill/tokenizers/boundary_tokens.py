"""The begin and end tokens of a run: `--bos`, `--eot` and the tokenizer's own."""

from __future__ import annotations

from tokenmill.errors import UsageError
from tokenmill.tokenizers.spec import TokenizerSpec
from tokenmill.tokenizers.tokenizer_json import template_begin
from tokenmill.tokenizers.vocabularies import Vocabulary


def end_token(spec: TokenizerSpec, value: str | int | None) -> int | None:
    """The id of `--eot`, or the tokenizer's end token if unset. Raises UsageError if there is neither."""
    if value is None and spec.end_of_text is None:
        known = ", ".join(f"{spelling} {token}" for spelling, token in list(spec.special_tokens.items())[:6])
        raise UsageError(
            f"{spec.name} does not define its end-of-text token (eot)",
            f"special tokens   {known or 'none'}",
            "Set it with --eot ID, or use --eot none for no token between documents.",
        )
    return boundary_token(spec, "--eot", value, spec.end_of_text)


def boundary_token(spec: TokenizerSpec, option: str, value: str | int | None, default: int | None) -> int | None:
    """The id of `--eot` or `--bos`, given as an id, a special token's spelling or `none`; the default if unset."""
    if value is None:
        return default
    if value == "none":
        return None
    if isinstance(value, str) and value in spec.special_tokens:
        return spec.special_tokens[value]
    try:
        token = int(value)
    except ValueError:
        known = ", ".join(list(spec.special_tokens)[:8]) or "none"
        raise UsageError(
            f"{option} {value!r} is neither an id, a special token of {spec.name}, nor none",
            f"special tokens   {known}",
        ) from None
    if not 0 <= token < spec.vocabulary_size:
        raise UsageError(
            f"{option} {token} is not a token of {spec.name}", f"ids go from 0 to {spec.vocabulary_size - 1}"
        )
    return token


def begin_note(vocabulary: Vocabulary, value: str | int | None) -> str | None:
    """The note that the tokenizer's own template begins a document with a token, if `--bos` is not given."""
    spec = vocabulary.spec
    found = template_begin(vocabulary.content) if value is None and spec.kind == "huggingface" else None
    if found is None:
        return None
    spelling, token = found
    return f"the template of {spec.name} begins each document with {spelling}; this run does so with --bos {token} only"
