"""Decodes documents that are ids of another tokenizer. Runs in a worker."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import TokenizerError
from tokenmill.sources.bad_rows import UNDECODABLE, bad_row, without_long, without_rows
from tokenmill.sources.documents import Documents, ReadOptions, SourceFile
from tokenmill.sources.line_numbers import place
from tokenmill.sources.spelled import refuse_spelled
from tokenmill.storage import folder_at
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.store.job import Job, read_vocabulary
from tokenmill.tokenization.token_text import NotText, TokenText

Ids = npt.NDArray[np.unsignedinteger[Any]]
Offsets = npt.NDArray[np.int64]

_loaded: dict[tuple[str, str], TokenText] = {}


def decoder(directory: str, job: Job) -> TokenText:
    """The decoder of the ids in the sources of a job. A worker keeps the last one."""
    key = (directory, job.digest())
    if key not in _loaded:
        content = read_vocabulary(folder_at(directory), job.ids_tokenizer)
        _loaded.clear()
        _loaded[key] = TokenText(job.ids_tokenizer, content, *job.stored_frame)
    return _loaded[key]


def decoded(file: SourceFile, rows: Documents, decode: TokenText, job: Job, options: ReadOptions) -> Documents:
    """The text of documents of ids. Those whose ids are not text, and those that are too long, are bad rows."""
    data, offsets = text_buffers(rows.text.fill_null(b""))
    ids, offsets = data.view(job.ids_type), offsets // np.dtype(job.ids_type).itemsize
    _refuse_unknown(file, rows, ids, offsets, decode)
    failures = dict[int, NotText]()
    text = pa.concat_arrays([pa.array([], pa.large_string()), *_texts(decode, ids, offsets, 0, failures)])
    text = pc.if_else(rows.text.is_valid(), text, None) if rows.text.null_count else text
    documents = replace(rows, text=text)
    if failures:
        bad = [
            bad_row(int(rows.rows[index]), UNDECODABLE, failure.details[0], rows.text[index].as_py())
            for index, failure in failures.items()
        ]
        is_bad = np.isin(np.arange(len(rows.rows)), list(failures))
        documents = without_rows(file, documents, is_bad, bad, options)
    return refuse_spelled(file, without_long(file, documents, options), options)


def _texts(
    decode: TokenText, ids: Ids, offsets: Offsets, first: int, failures: dict[int, NotText]
) -> Iterator[pa.LargeStringArray]:
    """The texts of documents, of which the first one has the number `first`: empty for one that is added to failures.

    A batch with such a document is divided in two.
    """
    try:
        yield decode(ids[offsets[0] : offsets[-1]], np.diff(offsets))
    except NotText as failure:
        if len(offsets) == 2:
            failures[first] = failure
            yield pa.array([""], pa.large_string())
            return
        middle = len(offsets) // 2
        yield from _texts(decode, ids, offsets[: middle + 1], first, failures)
        yield from _texts(decode, ids, offsets[middle:], first + middle, failures)


def _refuse_unknown(file: SourceFile, rows: Documents, ids: Ids, offsets: Offsets, decode: TokenText) -> None:
    if len(ids) and int(ids.max()) >= decode.vocabulary_size:
        first = int(np.argmax(ids >= decode.vocabulary_size))
        row = rows.rows[np.searchsorted(offsets, first, side="right") - 1]
        raise TokenizerError(
            f"the id {ids[first]} is not a token of the tokenizer of the sources, whose ids go from 0 to "
            f"{decode.vocabulary_size - 1}",
            f"file         {file.path}",
            f"found at     {place(file.kind, row)}",
            "The tokens are those of another tokenizer.",
        )
