"""gigatoken: the fast engine, for the vocabularies it supports. It is trusted but checked, by `tokenizer.Tokenizer`."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.engine import Encoded, narrowed, text_buffers
from tokenmill.tokenizers.gigatoken_support import TIKTOKEN_SCHEMES

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenmill.job import TokenizerSpec

FEW = 32
"""So many documents are encoded one by one: that takes less time than to make a batch of them, and no awkward array,
whose library takes half a second to load. Rows that come one by one never need it."""


class GigatokenEngine:
    """Encodes with `gigatoken` on the calling thread. Its word cache grows without bound: call `forget` to empty it."""

    name = "gigatoken"

    def __init__(self, spec: TokenizerSpec, path: str) -> None:
        self._spec = spec
        self._path = path
        self._tokenizer = self._build()

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """The tokens of each document; never touches gigatoken's thread pool."""
        data, offsets = text_buffers(text)
        if len(text) <= FEW:
            whole = data.tobytes()
            documents = [self._tokenizer.encode(whole[start:stop]) for start, stop in itertools.pairwise(offsets)]
            return Encoded.join(self._spec, [narrowed(self._spec, tokens) for tokens in documents])
        import awkward  # noqa: PLC0415 - heavy, and needed by this engine only

        strings = awkward.contents.ListOffsetArray(
            awkward.index.Index64(offsets),
            awkward.contents.NumpyArray(data, parameters={"__array__": "char"}),
            parameters={"__array__": "string"},
        )
        result = self._tokenizer.encode_batch(awkward.Array(strings), parallel=False).layout
        return Encoded(narrowed(self._spec, np.asarray(result.content.data)), np.asarray(result.offsets.data))

    def forget(self) -> None:
        """Drop the word cache by building the tokenizer anew."""
        del self._tokenizer
        self._tokenizer = self._build()

    def _build(self) -> Any:
        import gigatoken  # noqa: PLC0415 - heavy, and needed by this engine only

        try:
            if self._spec.kind == "tiktoken":
                scheme = TIKTOKEN_SCHEMES[self._spec.scheme or ""]
                return gigatoken.Tokenizer.from_tiktoken(self._path, pretokenizer=scheme, special_tokens={})
            return gigatoken.Tokenizer.from_json(_without_special_tokens(self._path))
        except Exception as error:  # the library raises what its parser meets
            raise TokenizerError(f"gigatoken does not support {self._spec.name}", str(error)) from error


def _without_special_tokens(path: str) -> str:
    """The tokenizer.json with its special tokens removed, so that their spelling in a text stays text."""
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    content["added_tokens"] = [token for token in content.get("added_tokens") or [] if not token.get("special")]
    content["truncation"] = content["padding"] = content["post_processor"] = None
    return json.dumps(content)
