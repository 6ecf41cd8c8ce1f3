"""Hugging Face `tokenizers`: the reference engine for any `tokenizer.json`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.engines.protocol import CannotEncode, Encoded, Tokens, is_refusal, narrowed

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenmill.tokenizers.spec import TokenizerSpec

PARALLELISM = "TOKENIZERS_PARALLELISM"


class HuggingFaceEngine:
    """Encodes with `tokenizers`: no special tokens added or recognized, no truncation, no padding."""

    name = "tokenizers"

    def __init__(self, spec: TokenizerSpec, content: bytes) -> None:
        self._spec = spec
        import tokenizers  # noqa: PLC0415 - heavy, and needed by this engine only

        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except BaseException as error:  # the library raises bare Exception, and its Rust code may panic
            if not is_refusal(error):
                raise
            raise TokenizerError(f"{spec.name} is not a tokenizer.json", str(error)) from error
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """Equal to `tokenizers` with `add_special_tokens=False` and `encode_special_tokens=True`."""
        texts = text.to_pylist()
        try:
            documents = self._encode(texts)
        except BaseException as error:
            if not is_refusal(error):
                raise
            self._name_failure(texts)
            raise
        return Encoded.join(self._spec, documents)

    def _encode(self, texts: list[str]) -> list[Tokens]:
        with _one_thread():
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [narrowed(self._spec, np.array(encoding.ids, np.uint32)) for encoding in encodings]

    def _name_failure(self, texts: list[str]) -> None:
        """Encode documents one by one, and raise CannotEncode for the first on which the library fails."""
        for position, text in enumerate(texts):
            try:
                self._encode([text])
            except BaseException as error:
                if not is_refusal(error):
                    raise
                raise CannotEncode.at(position, self.name, error) from error


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Disable the library's thread pool, which would compete with other workers and hang in a forked child.

    Restores the setting afterwards, because the process may be the user's.
    """
    before = os.environ.get(PARALLELISM)
    os.environ[PARALLELISM] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ[PARALLELISM]
        else:
            os.environ[PARALLELISM] = before
