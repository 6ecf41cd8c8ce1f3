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


def read_tokenizer_json(content: bytes) -> TokenizerJson:
    """Parse a tokenizer.json. Raises MalformedDataError."""
    try:
        content.decode()  # msgspec does not check the UTF-8 of the parts that it skips
    except UnicodeDecodeError as error:
        raise MalformedDataError(str(error)) from error
    parsed = decode(content, TokenizerJson)
    for step, members in ((parsed.normalizer, "normalizers"), (parsed.pre_tokenizer, "pretokenizers")):
        if step is not None and step.type == "Sequence" and getattr(step, members) is None:
            raise MalformedDataError(f"a sequence has no {members}")
    return parsed
