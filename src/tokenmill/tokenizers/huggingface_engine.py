"""Hugging Face `tokenizers`: the reference engine for any `tokenizer.json`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.engine import Encoded, narrowed

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenmill.job import TokenizerSpec

PARALLELISM = "TOKENIZERS_PARALLELISM"


class HuggingFaceEngine:
    """Encodes with `tokenizers`: no special tokens added, none recognised in text, nothing cut or padded."""

    name = "tokenizers"

    def __init__(self, spec: TokenizerSpec, path: str) -> None:
        self._spec = spec
        import tokenizers  # noqa: PLC0415 - heavy, and needed by this engine only

        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(path)
        except Exception as error:  # the library raises bare Exception
            raise TokenizerError(f"{spec.name} is not a tokenizer.json", str(error)) from error
        self._tokenizer.encode_special_tokens = True
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """Equal to `tokenizers` with `add_special_tokens=False` and `encode_special_tokens=True`."""
        with _one_thread():
            encodings = self._tokenizer.encode_batch_fast(text.to_pylist(), add_special_tokens=False)
        documents = [narrowed(self._spec, np.array(encoding.ids, np.uint32)) for encoding in encodings]
        return Encoded.join(self._spec, documents)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keep the library's thread pool out of it: it would compete with other workers, and hang in a forked child.

    The setting is the user's again afterwards: the process may be theirs.
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
