"""A tokenizer as a function that can be pickled: for `datasets.map`, a Pool, Ray, Spark or torch workers.

The pickle holds a name and a hash. Each process builds the encoder on first use and keeps it. A forked child uses its
parent's encoder: a fork waits until no thread is encoding or importing the modules for its first encoding.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
import warnings
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import UsageError
from tokenmill.humanize import did_you_mean
from tokenmill.storage.arrow_text import as_utf8, is_text
from tokenmill.system import machine
from tokenmill.system.arguments import checked
from tokenmill.tokenization import vocabulary_cache
from tokenmill.tokenization.boundary_tokens import boundary_token, end_token
from tokenmill.tokenization.engines.protocol import Encoded, framed
from tokenmill.tokenization.objects import TokenizerObject
from tokenmill.tokenization.resolve import absolute_name, resolve
from tokenmill.tokenization.tokenizer import Tokenizer, choose_engine


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TokenizeFn:
    """Tokenizes a row, a batch, a string, a list of strings or an Arrow table: `ids`, with boundary tokens, and `len`.

    With `output`, the tokens are in the column of that name, and there is no `len`. Created by `tokenize_fn`. Two that
    produce the same tokens have the same pickle and the same `datasets` fingerprint.
    """

    _name: str
    _digest: str
    _column: str
    _engine: str
    _begin: int | None
    _end: int | None
    _output: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TokenizeFn, (self._name, self._digest, self._column, self._engine, self._begin, self._end, self._output)

    def __repr__(self) -> str:
        return f"<tokenmill.tokenize_fn {self._name}, end token {self._end}, {self._digest[:16]}...>"

    def __call__(self, rows: Any) -> Any:
        """`{"ids": ..., "len": ...}` of one text or of many. Returns a table for a table, and a frame for a frame."""
        if isinstance(rows, pa.Table | pa.RecordBatch):
            self._check_columns(rows.schema.names)
            return self._table(rows.column(self._column))
        if hasattr(rows, "columns"):  # a pandas or polars frame; datasets expects the same type back
            self._check_columns([str(name) for name in rows.columns])
            return _as_frame(rows, self._table(rows[self._column]))
        texts = rows
        if isinstance(rows, Mapping):
            self._check_columns([str(name) for name in rows])
            texts = rows[self._column]
        if isinstance(texts, str | bytes) or texts is None:
            tokens = self._encode([texts]).tokens
            return self._named(tokens, len(tokens))
        if (
            type(rows).__name__ == "LazyRow"
            or isinstance(texts, Mapping | AbstractSet)
            or not isinstance(texts, Iterable)
        ):
            raise self._no_text(f"its value is of the type {type(texts).__name__}")
        encoded = self._encode(texts)
        ids = [encoded.tokens[start:stop] for start, stop in itertools.pairwise(encoded.offsets.tolist())]
        return self._named(ids, np.diff(encoded.offsets).tolist())

    def _table(self, texts: Any) -> pa.Table:
        return pa.table(token_columns(self._encode(texts), output=self._output))

    def _named(self, tokens: Any, lengths: Any) -> dict[str, Any]:
        return {"ids": tokens, "len": lengths} if self._output is None else {self._output: tokens}

    def _check_columns(self, names: list[str]) -> None:
        """Raise UsageError if the column of the text is missing, or if the tokens would replace a column."""
        if self._column not in names:
            raise UsageError(
                f"there is no column {self._column!r}",
                f"columns      {', '.join(names)}",
                *did_you_mean(self._column, names),
                "Name the column that holds the text: column=...",
            )
        refuse_overwriting(names, self._output)

    def _encode(self, texts: Any) -> Encoded:
        with _lock:
            text = self._as_text(texts)
            if text.null_count:
                row = np.flatnonzero(text.is_null())[0]
                remedy = f"dataset.filter(lambda row: row[{self._column!r}] is not None)"
                raise ValueError(f"row {row} of what was given has no text; remove such rows first: {remedy}")
            tokenizer = _tokenizer(self._name, self._digest, self._engine)
            encoded = tokenizer.retry_with_reference(lambda: tokenizer.encode(text))
            tokenizer.trim(_cache_bytes())
            for notice in tokenizer.take_notices():
                warnings.warn(f"tokenmill: {notice}", RuntimeWarning, stacklevel=4)
            return framed(encoded, self._begin, self._end)

    def _as_text(self, texts: Any) -> pa.LargeStringArray:
        try:
            return _as_arrow(texts)
        except (pa.ArrowTypeError, pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise self._no_text(_first_bad_row(texts) or str(error)) from error

    def _no_text(self, reason: str) -> UsageError:
        return UsageError(
            f"the column {self._column!r} does not hold text",
            f"reason       {reason}",
            "Name the column that holds the text: column=..., or make it text first.",
        )


@checked
def tokenize_fn(  # noqa: PLR0913 - the options of the command, by their names
    tokenizer: str | os.PathLike[str] | TokenizerObject,
    *,
    column: str = "text",
    engine: Literal["auto", "gigatoken", "tiktoken", "tokenizers"] = "auto",
    eot: str | int | None = None,
    bos: str | int | None = None,
    output: str | None = None,
) -> TokenizeFn:
    """A function for `datasets.map`, batched or not, with any `num_proc` and any start method.

    Args:
        tokenizer: An encoding of OpenAI (`"gpt2"`); a model on the Hub (`"ORG/MODEL"`); a `.tiktoken` file; a
            `tokenizer.json` or its directory; a tokenizer of `tokenizers`, `tiktoken` or `transformers`.
        column: The column with the text.
        engine: The library that encodes. All engines produce the same tokens.
        eot: The end token: an id, its spelling, or `"none"`. Default: the end token of the tokenizer.
        bos: The begin token: an id, its spelling, or `"none"`. Default: none.
        output: The column of the tokens, such as `"input_ids"`. Default: `ids`, with their number in `len`.
    """
    vocabulary = resolve(tokenizer)
    choose_engine(vocabulary, engine)  # raises here what would otherwise fail in a worker
    vocabulary_cache.save(vocabulary)
    spec = vocabulary.spec
    begin, end = boundary_token(spec, "--bos", bos, None), end_token(spec, eot)
    return TokenizeFn(
        absolute_name(tokenizer, vocabulary),
        vocabulary_cache.vocabulary_digest(vocabulary),
        column,
        engine,
        begin,
        end,
        output,
    )


def refuse_overwriting(names: Iterable[str], output: str | None) -> None:
    """Raise UsageError if the columns of the tokens are there already."""
    replaced = [name for name in (("ids", "len") if output is None else (output,)) if name in names]
    if replaced:
        raise UsageError(
            f"the column {replaced[0]!r} is there already, and the tokens would replace it",
            "Name another column for the tokens, such as output='input_ids', or rename the one that is there.",
        )


def token_columns(
    encoded: Encoded, is_null: npt.NDArray[np.bool_] | None = None, output: str | None = None
) -> dict[str, pa.Array]:
    """The columns for `datasets`: `ids`, a list of each row's tokens, and `len`. Both are null where the text is."""
    lengths = np.diff(encoded.offsets)
    if is_null is not None:
        present, lengths = lengths, np.zeros(len(is_null), np.int64)
        lengths[~is_null] = present
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise UsageError("a batch has more than 2,147,483,647 tokens", "Make it smaller: batch_size=100.")
    mask = None if is_null is None else pa.array(is_null)
    ids = pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(encoded.tokens), mask=mask)
    return {"ids": ids, "len": pa.array(lengths, mask=is_null)} if output is None else {output: ids}


def _as_frame(frame: Any, table: pa.Table) -> Any:
    """A table as a frame of the same library as `frame`."""
    library = type(frame).__module__.partition(".")[0]
    return sys.modules[library].from_arrow(table) if library == "polars" else table.to_pandas()


def _first_bad_row(texts: Any) -> str | None:
    """What the first row that is not text holds."""
    for row, value in enumerate(texts.to_pylist() if isinstance(texts, pa.Array | pa.ChunkedArray) else texts):
        try:
            pa.array([value], pa.large_string()).validate(full=True)
        except (pa.ArrowException, UnicodeEncodeError):
            found = (
                "bytes that are not UTF-8"
                if isinstance(value, bytes)
                else f"a value of the type {type(value).__name__}"
            )
            return f"row {row} of what was given holds {found}"
    return None


def _as_arrow(texts: Any) -> pa.LargeStringArray:
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    if isinstance(texts, pa.Array):
        if not is_text(texts.type):
            raise pa.ArrowTypeError(f"its type is {texts.type}")
        text = texts.cast(pa.large_string())
        text.validate(full=True)  # a string array may contain invalid UTF-8
        return text
    if isinstance(texts, np.ndarray):
        texts = texts.tolist()  # NumPy pads strings of a fixed width with NUL, which pyarrow would keep
    try:
        return pa.array(texts, pa.large_string())
    except UnicodeEncodeError:  # lone surrogates are replaced, as in tiktoken
        return pa.array([as_utf8(text) if isinstance(text, str) else text for text in texts], pa.large_string())


# All functions of a process share one encoder per tokenizer; one thread uses it at a time.
_lock = threading.RLock()
_loaded: dict[tuple[str, str], Tokenizer] = {}


def _tokenizer(name: str, digest: str, engine: str) -> Tokenizer:
    if (digest, engine) not in _loaded:
        vocabulary = vocabulary_cache.find(name, digest)
        choice = choose_engine(vocabulary, engine)
        _loaded[digest, engine] = Tokenizer(vocabulary.spec, vocabulary.content, choice.engine)
    return _loaded[digest, engine]


@functools.cache
def _cache_bytes() -> int:
    return machine.default_memory_budget() // machine.cores()


# A lock that another thread holds during a fork stays locked in the child: this one, and those of running imports.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
