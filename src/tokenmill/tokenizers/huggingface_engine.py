"""Hugging Face `tokenizers`: the reference engine for any `tokenizer.json`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.engine import Encoded, narrowed

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenmill.job import TokenizerSpec


class HuggingFaceEngine:
    """Encodes with `tokenizers`: no special tokens added, none recognised in text, nothing cut or padded."""

    name = "tokenizers"

    def __init__(self, spec: TokenizerSpec, path: str) -> None:
        self._spec = spec
        # Its thread pool would compete with the other workers, and hang in a child forked after its first use.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
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
        encodings = self._tokenizer.encode_batch_fast(text.to_pylist(), add_special_tokens=False)
        documents = [narrowed(self._spec, np.array(encoding.ids, np.uint32)) for encoding in encodings]
        return Encoded.join(self._spec, documents)
