"""A tokenizer as a function that can be sent anywhere: to the workers of `datasets.map`, a Pool, Ray, Spark, torch.

What travels is a name and a hash. Each process builds the encoder on first use and keeps it. A forked child goes on
with its parent's, unless another thread of the parent was using it at the moment of the fork: then it builds its own.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tokenmill import machine
from tokenmill.errors import UsageError
from tokenmill.framing import framed
from tokenmill.tokenizers import shelf
from tokenmill.tokenizers.engine import Encoded
from tokenmill.tokenizers.tokenizer import Tokenizer, choose_engine
from tokenmill.tokenizers.vocabulary import boundary_token, end_token, portable, resolve


class TokenizeFn:
    """Tokenizes a row, a batch, a string, a list of strings or an Arrow table: `ids`, framed as declared, and `len`.

    `tokenize_fn` makes it. Two are equal to pickle, and to the fingerprint of `datasets`, if they give the same tokens.
    """

    __slots__ = ("_begin", "_column", "_digest", "_end", "_engine", "_name")

    def __init__(  # noqa: PLR0913, PLR0917 - what is pickled, in order
        self, name: str, digest: str, column: str, engine: str, begin: int | None, end: int | None
    ) -> None:
        self._name = name
        self._digest = digest
        self._column = column
        self._engine = engine
        self._begin = begin
        self._end = end

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenizeFn, (self._name, self._digest, self._column, self._engine, self._begin, self._end)

    def __repr__(self) -> str:
        return f"<tokenmill.tokenize_fn {self._name}, end token {self._end}, sha256 {self._digest[:16]}...>"

    def __call__(self, rows: Any) -> Any:
        """`{"ids": ..., "len": ...}` of one text or of many, or the same as a table if a table was given."""
        if isinstance(rows, pa.Table | pa.RecordBatch):
            return self._table(rows)
        texts = rows[self._column] if isinstance(rows, Mapping) or hasattr(rows, "columns") else rows
        if isinstance(texts, str) or texts is None:
            tokens = self._encode(_as_arrow([texts])).tokens
            return {"ids": tokens, "len": len(tokens)}
        encoded = self._encode(_as_arrow(texts))
        edges = encoded.offsets.tolist()
        ids = [encoded.tokens[start:stop] for start, stop in itertools.pairwise(edges)]
        return {"ids": ids, "len": np.diff(encoded.offsets).tolist()}

    def _table(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        return pa.table(token_columns(self._encode(_as_arrow(rows.column(self._column)))))

    def _encode(self, text: pa.LargeStringArray) -> Encoded:
        if text.null_count:
            raise ValueError(
                f"row {np.flatnonzero(text.is_null())[0]} of what was given has no text; leave such rows out first: "
                f"dataset.filter(lambda row: row[{self._column!r}] is not None)"
            )
        with _in_use:
            tokenizer = _tokenizer(self._name, self._digest, self._engine)
            encoded = tokenizer.give_up_if_wrong(lambda: tokenizer.encode(text))
            tokenizer.trim(_cache_bytes())
            for notice in tokenizer.take_notices():
                warnings.warn(f"tokenmill: {notice}", RuntimeWarning, stacklevel=4)
        return framed(encoded, self._begin, self._end)


def tokenize_fn(
    tokenizer: str,
    *,
    column: str = "text",
    engine: str = "auto",
    eot: str | int | None = None,
    bos: str | int | None = None,
) -> TokenizeFn:
    """A function for `datasets.map`, batched or not, with any `num_proc` and any start method.

    `tokenizer`, `column`, `engine`, `eot` and `bos` mean what they mean to `tokenmill prepare`.
    """
    vocabulary = resolve(tokenizer)
    choose_engine(vocabulary, engine)  # to refuse here what could not work there
    shelf.keep(vocabulary)
    spec = vocabulary.spec
    begin, end = boundary_token(spec, "--bos", bos, None), end_token(spec, eot)
    return TokenizeFn(portable(tokenizer), shelf.digest_of(vocabulary), column, engine, begin, end)


def token_columns(encoded: Encoded) -> dict[str, pa.Array]:
    """The columns that `datasets` gets: `ids`, a list of each row's tokens, and `len`."""
    offsets = encoded.offsets
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UsageError("a batch has more than 2,147,483,647 tokens", "Make it smaller: batch_size=100.")
    ids = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(encoded.tokens))
    return {"ids": ids, "len": pa.array(np.diff(offsets))}


def _as_arrow(texts: Any) -> pa.LargeStringArray:
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if isinstance(texts, pa.Array):
        text = texts.cast(pa.large_string())
        text.validate(full=True)  # an array of strings may hold any bytes
        return text
    try:
        return pa.array(texts, pa.large_string())
    except UnicodeEncodeError:  # lone surrogates: as tiktoken does
        return pa.array([_without_surrogates(text) for text in texts], pa.large_string())


def _without_surrogates(text: str | None) -> str | None:
    return None if text is None else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


# One encoder for all functions of a process that name the same tokenizer, used by one thread at a time.
_in_use = threading.Lock()
_loaded: dict[tuple[str, str], Tokenizer] = {}
_left: list[dict[tuple[str, str], Tokenizer]] = []


def _tokenizer(name: str, digest: str, engine: str) -> Tokenizer:
    if (digest, engine) not in _loaded:
        vocabulary, path = shelf.find(name, digest)
        _loaded[digest, engine] = Tokenizer(vocabulary.spec, path, choose_engine(vocabulary, engine).engine)
    return _loaded[digest, engine]


@functools.cache
def _cache_bytes() -> int:
    return machine.default_memory_budget() // machine.cores()


def _after_fork() -> None:
    """In the child: a lock that a thread of the parent held would never be released, nor what it was doing finished."""
    global _in_use, _loaded  # noqa: PLW0603 - the child's own
    if _in_use.locked():
        _left.append(_loaded)  # not freed: its native state is that of a moment in the middle of something
        _loaded = {}
    _in_use = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
