"""Hugging Face `tokenizers`: the reference engine for any `tokenizer.json`."""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import TokenizerError
from tokenmill.tokenization.engines.protocol import Encoded, Tokens, encode_documents, raising
from tokenmill.tokenization.spec import TokenizerSpec

PARALLELISM = "TOKENIZERS_PARALLELISM"

Encode = Callable[[list[str]], list[Tokens]]
Decode = Callable[[list[list[int]]], list[str]]
Locate = Callable[[str], tuple[Tokens, npt.NDArray[np.int64]]]


class HuggingFaceEngine:
    """Encodes with `tokenizers`: special tokens are not added, nor parsed unless the spec says so. No truncation."""

    name = "tokenizers"

    def __init__(self, spec: TokenizerSpec, content: bytes) -> None:
        self._spec = spec
        with raising(lambda error: TokenizerError(f"{spec.name} is not a tokenizer.json", str(error))):
            self._encode_batch, self._decode_batch, self._locate = _load(content, encode_special=not spec.parse_special)

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """Equal to `tokenizers` with `add_special_tokens=False` and `encode_special_tokens=not parse_special`."""
        return encode_documents(self._spec, self.name, text.to_pylist(), self._encode)

    def locate(self, text: str) -> tuple[Tokens, npt.NDArray[np.int64]]:
        """The tokens of a document, and the characters of it at which each begins and ends."""
        if self._locate is None:
            raise TokenizerError(
                f"this version of tokenizers does not tell where the tokens of {self._spec.name} are in the text",
                "Install a version before 1.",
            )
        with _one_thread:
            return self._locate(text)

    def decode(self, documents: list[list[int]]) -> list[str]:
        """The text of each document, with the spelling of special tokens."""
        with _one_thread:
            return self._decode_batch(documents)

    def _encode(self, texts: list[str]) -> list[Tokens]:
        with _one_thread:
            return self._encode_batch(texts)


def _load(content: bytes, *, encode_special: bool) -> tuple[Encode, Decode, Locate | None]:
    """The functions of `tokenizers` that encode texts, that decode tokens, and that locate tokens in a text.

    The gate tests the next version, whose interface is another. It does not locate tokens.
    """
    import tokenizers  # noqa: PLC0415 - heavy, and needed by this engine only

    if hasattr(tokenizers.Tokenizer, "from_str"):
        tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        tokenizer.encode_special_tokens = encode_special
        tokenizer.no_truncation()
        tokenizer.no_padding()
        encode = functools.partial(tokenizer.encode_batch_fast, add_special_tokens=False)

        def locate(text: str) -> tuple[Tokens, npt.NDArray[np.int64]]:
            encoding = tokenizer.encode(text, add_special_tokens=False)
            return np.array(encoding.ids, np.uint32), np.array(encoding.offsets, np.int64).reshape(-1, 2)

        decode = functools.partial(tokenizer.decode_batch, skip_special_tokens=False)
        return lambda texts: [np.array(encoding.ids, np.uint32) for encoding in encode(texts)], decode, locate
    options: dict[str, Any] = {"add_special_tokens": False, "encode_special_tokens": encode_special}
    options |= {"padding": None, "truncation": None}
    # Version 1 accepts only a path. The file is readable by this user only, and holds the checked bytes.
    with tempfile.NamedTemporaryFile(prefix="tokenmill-", suffix=".json") as file:
        file.write(content)
        file.flush()
        newer: Any = tokenizers.Tokenizer.from_file(file.name)
    return (
        lambda texts: [encoding.ids_array for encoding in newer.encode_batch(texts, **options)],
        lambda documents: [newer.decode(ids, skip_special_tokens=False) for ids in documents],
        None,
    )


class _OneThread:
    """A block in which the library has no thread pool: it would compete with other workers, and hang in a forked child.

    The library has no other switch than a variable. The process may be the user's, so the last block to end restores
    the value that the first one found.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._before: str | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._before = os.environ.get(PARALLELISM)
                os.environ[PARALLELISM] = "false"
            self._blocks += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._blocks -= 1
            if self._blocks:
                return
            if self._before is None:
                os.environ.pop(PARALLELISM, None)
            else:
                os.environ[PARALLELISM] = self._before


_one_thread = _OneThread()
