"""`tokenmill tokenizers`: the families of tokenizers that are known, or one tokenizer, measured on this machine."""

from __future__ import annotations

import importlib.metadata
import os
from typing import overload

import msgspec

from tokenmill.humanize import Readable
from tokenmill.options import StrPath
from tokenmill.pipeline.bench.library import core_bytes_per_second
from tokenmill.system.arguments import checked
from tokenmill.tokenization.boundary_tokens import NO_END_ADVICE, end_note, no_end
from tokenmill.tokenization.families import FAMILIES, TokenizerFamily
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.tokenizer import REFERENCES, choose_engine
from tokenmill.tokenization.tokenizer_json import template_begin


class TokenizerInfo(Readable, msgspec.Struct, frozen=True):
    """A tokenizer as a run would use it. `bos` is the token that its own template puts before a document.

    `eot_note` is what `prepare` says about the default end token. The spelling of a special token in a text stays text
    (see `prepare --special`), that of a token in `plain_tokens` becomes its id.
    """

    tokenizer: str
    commit: str | None
    vocabulary_size: int
    dtype: str
    engine: str
    reason: str | None
    reference: str
    eot: int | None
    eot_note: str | None
    bos: int | None
    special_tokens: dict[str, int]
    plain_tokens: dict[str, int]
    bytes_per_second: float | None


@overload
def tokenizers(name: None = None) -> list[TokenizerFamily]: ...
@overload
def tokenizers(name: StrPath) -> TokenizerInfo: ...
@checked
def tokenizers(name: StrPath | None = None) -> list[TokenizerFamily] | TokenizerInfo:
    """The families of tokenizers that were compared with their reference, or one tokenizer as `prepare` would use it.

    Args:
        name: A tokenizer, as for `prepare`. Its speed on one core of this machine is measured.
    """
    return list(FAMILIES) if name is None else _info(os.fspath(name))


def _info(tokenizer: str) -> TokenizerInfo:
    vocabulary = resolve(tokenizer)
    spec, choice = vocabulary.spec, choose_engine(vocabulary, "auto")
    reference = REFERENCES[spec.kind].name
    begin = template_begin(vocabulary.content) if spec.kind == "huggingface" else None
    return TokenizerInfo(
        tokenizer=spec.name,
        commit=spec.commit or None,
        vocabulary_size=spec.vocabulary_size,
        dtype=spec.dtype,
        engine=choice.engine,
        reason=choice.reason,
        reference=f"{reference} {importlib.metadata.version(reference)}",
        eot=spec.end_of_text,
        eot_note=f"{no_end(spec)}. {NO_END_ADVICE}" if spec.end_of_text is None else end_note(spec),
        bos=None if begin is None else begin[1],
        special_tokens=spec.special_tokens,
        plain_tokens={text: token for text, token in spec.added_tokens.items() if text not in spec.special_tokens},
        bytes_per_second=core_bytes_per_second(vocabulary, choice.engine),
    )
