"""The begin and end tokens of a run: `--bos`, `--eot` and the tokenizer's own."""

from __future__ import annotations

from tokenmill.errors import UsageError
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.tokenizer_json import template_begin
from tokenmill.tokenization.vocabularies import DOCUMENT_ENDS, Vocabulary

NO_END_ADVICE = "Set it with --eot ID, or use --eot none for no token between documents."


def end_token(spec: TokenizerSpec, value: str | int | None) -> int | None:
    """The id of `--eot`, or the tokenizer's end token if unset. Raises UsageError if there is neither."""
    if value is None and spec.end_of_text is None:
        known = ", ".join(f"{spelling} {token}" for spelling, token in list(spec.special_tokens.items())[:6])
        raise UsageError(
            no_end(spec),
            f"special tokens   {known or 'none'}",
            NO_END_ADVICE,
        )
    return boundary_token(spec, "--eot", value, spec.end_of_text)


def no_end(spec: TokenizerSpec) -> str:
    """What is said of a tokenizer that has no default end token."""
    return f"{spec.name} does not define its end-of-text token (eot)"


def end_note(spec: TokenizerSpec, value: str | int | None = None) -> str | None:
    """The note that the vocabulary has another token that ends documents: the default one may end a turn of a chat."""
    if value is not None or spec.end_of_text is None:
        return None
    tokens = spec.added_tokens
    ends = [spelling for spelling in DOCUMENT_ENDS if spelling in tokens]
    if not ends or spec.end_of_text in [tokens[spelling] for spelling in ends]:
        return None
    declared = f"the eot token is {spec.shown(spec.end_of_text)}, which {spec.name} declares"
    return f"{declared}. For pretraining use --eot '{ends[0]}' ({tokens[ends[0]]}), which ends documents"


def boundary_token(spec: TokenizerSpec, option: str, value: str | int | None, default: int | None) -> int | None:
    """The id of `--eot` or `--bos`, given as an id, a special token's spelling or `none`; the default if unset."""
    if value is None:
        return default
    if value == "none":
        return None
    if isinstance(value, str) and value in spec.added_tokens:
        return spec.added_tokens[value]
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
