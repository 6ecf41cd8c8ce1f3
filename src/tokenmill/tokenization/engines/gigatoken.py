"""gigatoken: the fast engine, for the vocabularies it supports. `tokenizer.Tokenizer` checks its tokens."""

from __future__ import annotations

import itertools
import json
import os
import tempfile
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.tokenization.cutting import ByteArray, Cutter, crosses_safe_cuts, cut_long_documents
from tokenmill.tokenization.engines.protocol import Encoded, Offsets, narrowed, raising
from tokenmill.tokenization.gigatoken_support import TIKTOKEN_SCHEMES, falls_back, natively_matched
from tokenmill.tokenization.split_patterns import flatten, recognize_splitter
from tokenmill.tokenization.unicode_gap import NFC_GAP, SPLIT_GAP

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenmill.tokenization.spec import TokenizerSpec

# Up to this many documents are encoded one by one, which is faster than building a batch. It also avoids the import of
# awkward, which takes half a second and is never needed for single rows.
MAX_SINGLE_DOCUMENTS = 32
# Threads share a batch in pieces of this size. Each thread has a word cache of its own.
PIECE_BYTES = 4 << 20


class GigatokenEngine:
    """Encodes with `gigatoken`, on the calling thread unless `use_threads` is called.

    Its word cache grows without bound; `clear_cache` empties it.
    """

    name = "gigatoken"

    def __init__(self, spec: TokenizerSpec, content: bytes) -> None:
        self._spec = spec
        self._content = content
        self._cutter = Cutter([], None)
        # Documents with a character of this table go to the reference.
        self.gap = SPLIT_GAP
        self._threads = 1
        self._may_cut = True
        if spec.kind != "tiktoken":
            self._content = self._adapt(json.loads(content))
        elif spec.parse_special:
            self._may_cut = not crosses_safe_cuts(spec.special_tokens)
            self._cutter = Cutter.of(spec.special_tokens)
        self._tokenizer = self._build()

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """The tokens of each document. Uses gigatoken's thread pool only after `use_threads`."""
        data, offsets = text_buffers(text)
        with raising(lambda error: EngineFailed(f"gigatoken failed on a batch of documents ({str(error)[:200]})")):
            return self._cutter.encode(data, offsets, lambda slices: self._encode_slices(data, slices))

    def use_threads(self, threads: int) -> None:
        """Share large batches among this many threads. Only for a process that has not used gigatoken's pool yet."""
        self._threads = threads
        os.environ["RAYON_NUM_THREADS"] = str(threads)

    def _encode_slices(self, data: ByteArray, offsets: Offsets) -> Encoded:
        if self._threads > 1 and self._may_cut and offsets[-1] - offsets[0] > PIECE_BYTES:
            pieces = cut_long_documents(data, offsets, PIECE_BYTES)
            encoded = self._encode_batch(data, pieces, parallel=True)
            return Encoded(encoded.tokens, encoded.offsets[np.searchsorted(pieces, offsets)])
        if len(offsets) <= MAX_SINGLE_DOCUMENTS:
            whole = data.tobytes()
            documents = [self._tokenizer.encode(whole[start:stop]) for start, stop in itertools.pairwise(offsets)]
            return Encoded.join(self._spec, [narrowed(self._spec, tokens) for tokens in documents])
        return self._encode_batch(data, offsets)

    def _encode_batch(self, data: ByteArray, offsets: Offsets, *, parallel: bool = False) -> Encoded:
        import awkward  # noqa: PLC0415 - heavy, and needed by this engine only

        strings = awkward.contents.ListOffsetArray(
            awkward.index.Index64(offsets),
            awkward.contents.NumpyArray(data, parameters={"__array__": "char"}),
            parameters={"__array__": "string"},
        )
        result = self._tokenizer.encode_batch(awkward.Array(strings), parallel=parallel).layout
        return Encoded(narrowed(self._spec, np.asarray(result.content.data)), np.asarray(result.offsets.data))

    def clear_cache(self) -> None:
        """Drop the word cache by building the tokenizer anew."""
        del self._tokenizer
        self._tokenizer = self._build()

    def _build(self) -> Any:
        refusal = f"gigatoken does not support {self._spec.name}"
        with raising(lambda error: TokenizerError(refusal, str(error)[:200])):  # its Rust code may panic
            return self._load()

    def _adapt(self, content: dict[str, Any]) -> bytes:
        """The tokenizer.json for gigatoken: without the tokens that the cutter matches, and split as gigatoken can."""
        added = content.get("added_tokens") or []
        content["truncation"] = content["padding"] = content["post_processor"] = None
        if falls_back(content):
            self.gap, self._may_cut = (), False
            self._cutter = Cutter(added, None)
            return json.dumps(content | {"added_tokens": []}).encode()
        splitter = recognize_splitter(content["pre_tokenizer"])
        native = natively_matched(added)
        self._may_cut = not crosses_safe_cuts(token["content"] for token in added)
        self._cutter = Cutter([token for token in added if token not in native], splitter.digits)
        self.gap = SPLIT_GAP + NFC_GAP + splitter.gap
        content["added_tokens"] = native
        content["pre_tokenizer"] = splitter.pre_tokenizer()
        if not flatten(content.get("normalizer"), "normalizers"):
            content["normalizer"] = None
        return json.dumps(content).encode()

    def _load(self) -> Any:
        import gigatoken  # noqa: PLC0415 - heavy, and needed by this engine only

        if self._spec.kind != "tiktoken":
            return gigatoken.Tokenizer.from_json(self._content.decode())
        scheme = TIKTOKEN_SCHEMES[self._spec.scheme or ""]
        # The library accepts only a path. The file is readable by this user only, and holds the checked bytes.
        with tempfile.NamedTemporaryFile(prefix="tokenmill-", suffix=".tiktoken") as file:
            file.write(self._content)
            file.flush()
            return gigatoken.Tokenizer.from_tiktoken(file.name, pretokenizer=scheme, special_tokens={})


class EngineFailed(TokenizerError):  # noqa: N818 - the name is written to logs if an audit raises it
    """The fast engine raised an error or panicked while it encoded."""
