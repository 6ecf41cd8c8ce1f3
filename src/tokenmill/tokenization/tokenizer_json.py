"""The parts of a tokenizer.json that tokenmill reads, with checked types."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenmill.storage.untrusted.malformed import MalformedDataError, decode


class AddedTokenEntry(msgspec.Struct):
    """A token that is matched before the model sees the text."""

    id: int
    content: str
    special: bool


class PipelineStep(msgspec.Struct):
    """A normalizer or a pre-tokenizer, or a sequence of them."""

    type: str
    normalizers: list[PipelineStep] | None = None
    pretokenizers: list[PipelineStep] | None = None
    pattern: dict[str, Any] | None = None


class ModelEntry(msgspec.Struct):
    """The vocabulary: ids by token, or tokens with their scores in the order of their ids."""

    vocab: dict[str, int] | list[tuple[str, float]]
    type: str | None = None
    dropout: float | None = None


class TokenizerJson(msgspec.Struct):
    """The parts that define the ids, and those that decide whether the fast engine supports the tokenizer."""

    model: ModelEntry
    added_tokens: list[AddedTokenEntry] | None = None
    normalizer: PipelineStep | None = None
    pre_tokenizer: PipelineStep | None = None
    decoder: Any = None

    def ids(self) -> dict[str, int]:
        """The id of every token, added ones included."""
        vocabulary = self.model.vocab
        tokens = vocabulary if isinstance(vocabulary, dict) else {token: n for n, (token, _) in enumerate(vocabulary)}
        return tokens | {token.content: token.id for token in self.added_tokens or []}


class PostProcessor(msgspec.Struct):
    """What adds special tokens: a template, a pair of BERT's or RoBERTa's kind, or a sequence of steps."""

    type: str
    processors: list[PostProcessor] | None = None
    single: list[dict[str, Any]] | None = None
    special_tokens: dict[str, Any] | None = None
    cls: tuple[str, int] | None = None


class _WithPostProcessor(msgspec.Struct):
    """The one part of a tokenizer.json that adds tokens to a document."""

    post_processor: PostProcessor | None = None


def template_begin(content: bytes) -> tuple[str, int] | None:
    """The spelling and id of the token that a tokenizer.json puts before a document; None if it puts no token there."""
    try:
        step = decode(content, _WithPostProcessor).post_processor
    except MalformedDataError:
        return None
    return _first_token(step) if step is not None else None


def _first_token(step: PostProcessor) -> tuple[str, int] | None:
    if step.processors is not None:
        return next((found for found in map(_first_token, step.processors) if found), None)
    if step.cls is not None:
        return step.cls
    special = (step.single or [{}])[0].get("SpecialToken")
    spelling = special.get("id") if isinstance(special, dict) else None
    token = (step.special_tokens or {}).get(spelling) if isinstance(spelling, str) else None
    ids = token.get("ids") if isinstance(token, dict) else None
    return (spelling, ids[0]) if isinstance(spelling, str) and ids and isinstance(ids[0], int) else None


def read_tokenizer_json(content: bytes) -> TokenizerJson:
    """Parse a tokenizer.json. Raises MalformedDataError."""
    try:
        content.decode()  # msgspec does not check the UTF-8 of the parts that it skips
    except UnicodeDecodeError as error:
        raise MalformedDataError(str(error)) from error
    parsed = decode(content, TokenizerJson)
    if parsed.model.dropout:
        raise MalformedDataError(f"model.dropout is {parsed.model.dropout}: its tokens are random. Set it to null")
    for step, members in ((parsed.normalizer, "normalizers"), (parsed.pre_tokenizer, "pretokenizers")):
        if step is not None and step.type == "Sequence" and getattr(step, members) is None:
            raise MalformedDataError(f"a sequence has no {members}")
    return parsed
