"""The number of text bytes of each token, to locate the tokens of a slice among the tokens of its document."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.tokenization.cutting import crosses_safe_cuts
from tokenmill.tokenization.engines.protocol import Tokens
from tokenmill.tokenization.gigatoken_support import falls_back
from tokenmill.tokenization.spec import TokenizerSpec

IntArray = npt.NDArray[np.int64]

TOKENS_PER_CHUNK = 1 << 16


class TokenLengths:
    """The token lengths of a vocabulary that the fast engine supports. Computed on first use."""

    def __init__(self, spec: TokenizerSpec, content: bytes) -> None:
        self._size = spec.vocabulary_size
        self._is_tiktoken = spec.kind == "tiktoken"
        self._content = content
        self._parsed = spec.special_tokens if self._is_tiktoken and spec.parse_special else {}

    @cached_property
    def _json(self) -> dict[str, Any]:
        """The needed facts of a tokenizer.json. The vocabulary itself is not kept, only its lengths."""
        content = json.loads(self._content)
        vocabulary = content["model"]["vocab"]
        plain = [token for token in content.get("added_tokens") or [] if not token.get("special")]
        texts = [token["content"] for token in plain]
        lengths = {number: len(token) for token, number in vocabulary.items()}  # one character per byte
        return {
            "lengths": lengths | {token["id"]: len(token["content"].encode()) for token in plain},
            "can_cut": not falls_back(content) and not crosses_safe_cuts(texts),
            "normalizes": content.get("normalizer") is not None,
            "inexact": '"add_prefix_space": true' in json.dumps(content["pre_tokenizer"])
            or any(text in vocabulary and not text.isascii() for text in texts),
        }

    @cached_property
    def lengths(self) -> npt.NDArray[np.uint16]:
        """The number of bytes of each token; zero for ids that no text produces."""
        lengths = np.zeros(self._size, np.uint16)
        if self._is_tiktoken:
            by_rank = _base64_lengths(np.frombuffer(self._content, np.uint8))
            lengths[: len(by_rank)] = by_rank  # line n has rank n: gigatoken_support.unsupported checks that
            for text, token in self._parsed.items():
                lengths[token] = len(text.encode())
            return lengths
        by_id = self._json["lengths"]
        lengths[list(by_id)] = list(by_id.values())
        return lengths

    @property
    def can_cut(self) -> bool:
        """Whether no token can cross a cut before a space that follows an ASCII letter."""
        return not crosses_safe_cuts(self._parsed) if self._is_tiktoken else bool(self._json["can_cut"])

    def is_exact(self, before: npt.NDArray[np.uint8]) -> bool:
        """Whether the lengths of the tokens of a text that begins with `before` add up to its bytes."""
        if self._is_tiktoken:
            return True
        if self._json["inexact"]:
            return False
        return not self._json["normalizes"] or bool((before < 0x80).all())

    def token_indices(self, tokens: Tokens, starts: IntArray) -> IntArray:
        """For each byte position of a document, sorted: the index of the token that begins there, or -1."""
        indices = np.full(len(starts), -1, np.int64)
        position = 0
        for first in range(0, len(tokens), TOKENS_PER_CHUNK):
            lengths = self.lengths[tokens[first : first + TOKENS_PER_CHUNK]]
            stop = position + int(lengths.sum(dtype=np.int64))
            low, high = np.searchsorted(starts, [position, stop])
            if low < high:
                begins = position + np.cumsum(lengths, dtype=np.int64) - lengths
                nearest = np.searchsorted(begins, starts[low:high]).clip(max=len(begins) - 1)
                indices[low:high] = np.where(begins[nearest] == starts[low:high], first + nearest, -1)
            if high == len(starts):
                break
            position = stop
        return indices


def _base64_lengths(data: npt.NDArray[np.uint8]) -> IntArray:
    """The decoded length of the base64 field of each line."""
    ends = np.flatnonzero(data == ord(" "))
    starts = np.concatenate([[0], np.flatnonzero(data == ord("\n"))[:-1] + 1])
    padding = (data[ends - 1] == ord("=")).astype(np.int64) + (data[ends - 2] == ord("="))
    return np.asarray((ends - starts) // 4 * 3 - padding)
