"""The text of tokens: what a document said before it was encoded, as far as its vocabulary can tell.

Tokens of byte-level vocabularies and of SentencePiece's kind are bytes: those of a document are its text. All other
vocabularies are decoded by the reference.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, TokenizerError
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.tokenization.engines.huggingface import HuggingFaceEngine
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.token_bytes import known_bytes_lookup

IntArray = npt.NDArray[np.int64]

# The steps of a decoder that only join the bytes of tokens, apart from a space at the start.
_BYTE_STEPS = frozenset({"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace"})
# A byte that no UTF-8 has, for ids without a token.
_NO_TEXT = b"\xff"


class NotText(TokenizerError):  # noqa: N818 - like CannotEncode
    """The tokens of a document are not UTF-8; `position` is the document's index in the batch."""

    position = 0


class TokenText:
    """Decodes documents without their begin and end tokens. Special tokens inside them become their spelling.

    `control_tokens` counts them.
    """

    def __init__(self, spec: TokenizerSpec, content: bytes, begin: int | None, end: int | None) -> None:
        self._begin, self._end, self._empty = begin, end, spec.vocabulary_size
        self.vocabulary_size = spec.vocabulary_size
        self.control_tokens = 0
        self._reference: HuggingFaceEngine | None = None
        self._is_control = np.zeros(2 * spec.vocabulary_size + 1, np.bool_)
        self._is_control[list(spec.special_tokens.values())] = True
        lookup = known_bytes_lookup(spec, content)
        tokens = [_NO_TEXT if text is None else text for text in map(lookup, range(self._empty))]
        self._strips = False
        if spec.kind == "huggingface":
            pipeline = _pipeline(spec, content)
            self._strips = _adds_space(pipeline)
            if not _is_bytes(pipeline):
                self._reference = HuggingFaceEngine(spec, content)
        # Then come no text, and the tokens without the space that the tokenizer put before a document.
        stripped = [text.removeprefix(b" ") for text in tokens] if self._strips else []
        self._bytes = pa.array([*tokens, b"", *stripped], pa.large_binary())

    def __call__(self, tokens: npt.NDArray[np.integer[Any]], lengths: IntArray) -> pa.LargeStringArray:
        """Return the text of documents with these lengths. Raises NotText for the first one that is not UTF-8."""
        offsets = np.append(0, np.cumsum(lengths))
        ids, is_text = tokens.astype(np.int64), lengths > 0
        first, last = offsets[:-1][is_text], offsets[1:][is_text] - 1
        if self._end is not None:
            ids[last[ids[last] == self._end]] = self._empty
        if self._begin is not None:
            has_begin = ids[first] == self._begin
            ids[first[has_begin]] = self._empty
            first = (first + has_begin)[first + has_begin <= last]
        self.control_tokens += int(self._is_control[ids].sum())
        if self._reference is not None:
            return self._by_reference(self._reference, ids, offsets)
        if self._strips:
            first = first[(ids[first] != self._empty) & ~self._is_control[ids[first]]]
            ids[first] += self._empty + 1
        data, edges = text_buffers(self._bytes.take(pa.array(ids)))
        buffers = [None, pa.py_buffer(np.ascontiguousarray(edges[offsets])), pa.py_buffer(data)]
        documents = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)
        try:
            return documents.cast(pa.large_string())
        except pa.ArrowInvalid as error:
            raise _first_bad(documents) from error

    def _by_reference(self, reference: HuggingFaceEngine, ids: IntArray, offsets: IntArray) -> pa.LargeStringArray:
        is_kept = ids != self._empty
        kept, edges = ids[is_kept], np.append(0, np.cumsum(is_kept))[offsets].tolist()
        documents = [kept[start:stop].tolist() for start, stop in itertools.pairwise(edges)]
        return pa.array(reference.decode(documents), pa.large_string())


def lost_text(spec: TokenizerSpec, content: bytes) -> str:
    """What of a text its tokens cannot tell, in words; empty if they can tell all of it."""
    return _lost(spec, _pipeline(spec, content)) if spec.kind == "huggingface" else ""


def _first_bad(documents: pa.LargeBinaryArray) -> NotText:
    """The error for the first document that is not UTF-8."""
    for position, document in enumerate(documents):
        try:
            document.as_py().decode()
        except UnicodeDecodeError as error:
            failure = NotText("the tokens of a document are not text", f"reason       {error}")
            failure.position = position
            return failure
    raise AssertionError("Arrow and Python differ about UTF-8")


def _pipeline(spec: TokenizerSpec, content: bytes) -> dict[str, Any]:
    try:
        return decode(content, dict[str, Any])
    except MalformedDataError as damage:
        raise CorruptStore(f"the vocabulary {spec.file} is damaged", f"found        {damage}") from damage


def _steps(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The steps of a part of a tokenizer.json: one, those of a sequence, or none."""
    if not step:
        return []
    members = next((step[name] for name in ("decoders", "normalizers", "pretokenizers") if name in step), None)
    return [step] if members is None else [inner for member in members for inner in _steps(member)]


def _is_bytes(pipeline: dict[str, Any]) -> bool:
    """Whether the tokens of a document are its bytes."""
    steps = _steps(pipeline.get("decoder"))
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        return kinds <= {"ByteLevel", "Fuse"}
    replaces = [step for step in steps if step["type"] == "Replace"]
    is_plain = all(step["pattern"] == {"String": "\u2581"} and step["content"] == " " for step in replaces)
    return bool(replaces or "Metaspace" in kinds) and kinds <= _BYTE_STEPS and is_plain


def _adds_space(pipeline: dict[str, Any]) -> bool:
    """Whether the tokenizer puts a space before a document."""
    steps = [*_steps(pipeline.get("normalizer")), *_steps(pipeline.get("pre_tokenizer"))]
    return any(
        step["type"] == "Prepend"
        or (step["type"] == "ByteLevel" and bool(step.get("add_prefix_space")))
        or (step["type"] == "Metaspace" and _scheme(step) != "never")
        for step in steps
    )


def _scheme(step: dict[str, Any]) -> str:
    """When Metaspace puts a space before a word. Older files have a flag instead."""
    legacy = "always" if step.get("add_prefix_space", True) else "never"
    return str(step.get("prepend_scheme") or legacy)


def _lost(spec: TokenizerSpec, pipeline: dict[str, Any]) -> str:
    """What of a text the tokens of a tokenizer.json cannot tell, in words; empty if nothing is lost."""
    steps, splits = _steps(pipeline.get("normalizer")), _steps(pipeline.get("pre_tokenizer"))
    replaced = [step for step in steps if step["type"] not in {"Prepend", "Replace"} or _is_other(step)]
    lost = [f"what {' and '.join(sorted({step['type'] for step in replaced}))} changes"] if replaced else []
    if any(step["type"] in {"ByteLevel", "Metaspace"} for step in splits) and _adds_space(pipeline):
        lost.append("a space before a document")
    model = pipeline.get("model") or {}
    has_bytes = any(step["type"] == "ByteLevel" for step in [*splits, *steps]) or bool(model.get("byte_fallback"))
    if not has_bytes and (model.get("unk_token") is not None or model.get("unk_id") is not None):
        lost.append("characters that it does not know")
    if not _is_bytes(pipeline):
        lost.append("white space that its decoder does not restore")
    return f"{spec.name} does not keep {', '.join(lost)}" if lost else ""


def _is_other(step: dict[str, Any]) -> bool:
    """Whether a Replace or Prepend is of something else than the space."""
    space = {"pattern": {"String": " "}, "content": "\u2581"}
    if step["type"] == "Prepend":
        return step.get("prepend") != "\u2581"
    return any(step.get(name) != value for name, value in space.items())
