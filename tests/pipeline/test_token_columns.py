"""Columns of token ids (`--tokens-column`): documents are taken as they are, and rows of a stream become documents."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, part_bytes
from tests.support.inline_executor import InlineExecutor
from tokenmill.errors import SourceError, TokenmillError, UsageError
from tokenmill.results import PrepareResult
from tokenmill.storage import folder_at
from tokenmill.store.job import require_run
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.tokenizer import Tokenizer

KINDS = ("parquet", "jsonl", "arrow")
END = 1199
Documents = list[list[int] | None]


def prepare(source: str | Path, out: Path, **options: Any) -> PrepareResult:
    given = {"tokenizer": SMALL_JSON, "tokens_column": "ids", "unit_bytes": 1500, "executor": InlineExecutor()}
    return tokenmill.prepare(source, out=str(out), **{**given, "eot": END, "trust_tokens": True, **options})


def random_documents(count: int, seed: int) -> Documents:
    """Documents of random ids, some without tokens, some null."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 40, count)
    documents: Documents = [random.integers(0, 1000, length).tolist() for length in lengths]
    documents[3], documents[4] = None, []
    return documents


def write(path: Path, documents: Documents, kind: pa.DataType | None = None) -> Path:
    """Write lists of ids as a file of the kind that its name says."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"id": row, "ids": ids}) + "\n" for row, ids in enumerate(documents)))
        return path
    table = pa.table({"id": range(len(documents)), "ids": pa.array(documents, kind or pa.list_(pa.uint16()))})
    if path.suffix == ".arrow":
        pyarrow.feather.write_feather(table, path, chunksize=50)
    else:
        pq.write_table(table, path, row_group_size=50)
    return path


def stored(store: PrepareResult) -> list[list[int]]:
    """The tokens of all documents, without the end token of the store."""
    opened = tokenmill.open(store)
    documents = [opened[position].tolist() for position in range(len(opened))]
    assert all(ids[-1] == END for ids in documents)
    return [ids[:-1] for ids in documents]


@pytest.mark.parametrize("kind", KINDS)
def test_documents_are_the_lists_of_the_column(kind: str, tmp_path: Path) -> None:
    documents = random_documents(300, 7)
    result = prepare(write(tmp_path / f"a.{kind}", documents), tmp_path / "store", keep="id")
    assert stored(result) == [ids for ids in documents if ids is not None]
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == result.documents
    again = prepare(tmp_path / f"a.{kind}", tmp_path / "other", keep="id", workers=2, executor=None)
    assert tokenmill.open(again).digest == tokenmill.open(result).digest


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64()),
        pa.large_list(pa.uint32()),
        pa.list_(pa.int32()),
        pa.list_(pa.uint64()),
        pa.list_(pa.int16()),
    ],
    ids=str,
)
def test_lists_of_all_whole_numbers_are_the_same(kind: pa.DataType, tmp_path: Path) -> None:
    documents = random_documents(60, 1)
    expected = prepare(write(tmp_path / "a.parquet", documents), tmp_path / "expected")
    result = prepare(write(tmp_path / "b.parquet", documents, kind), tmp_path / "store")
    assert stored(result) == stored(expected)


def test_lists_of_one_length_are_read_if_they_are_documents(tmp_path: Path) -> None:
    documents: Documents = [[row] * 130 for row in range(40)]
    source = write(tmp_path / "a.parquet", documents, pa.list_(pa.int32(), 130))
    with pytest.raises(SourceError, match="all rows of the sources have 130 tokens, so they may not be documents"):
        prepare(source, tmp_path / "store")
    assert stored(prepare(source, tmp_path / "store", rows="documents")) == documents


@pytest.mark.parametrize("kind", KINDS)
def test_the_frame_of_the_sources_is_found_and_removed(kind: str, tmp_path: Path) -> None:
    """A document without the end token, such as one that was cut, is as it is."""
    documents = [ids or [] for ids in random_documents(200, 5)]
    framed: Documents = [[1198, *ids, END] for ids in documents]
    framed[7] = documents[7]
    found = prepare(write(tmp_path / f"a.{kind}", framed), tmp_path / "store", bos=1198)
    given = prepare(tmp_path / f"a.{kind}", tmp_path / "given", bos=1198, source_bos=1198, source_eot=END)
    assert stored(found) == [[1198, *ids] for ids in documents]
    assert part_bytes(found.directory) == part_bytes(given.directory)
    as_it_is = prepare(tmp_path / f"a.{kind}", tmp_path / "whole", source_bos="none", source_eot="none")
    assert stored(as_it_is) == framed
    resumed = prepare(tmp_path / f"a.{kind}", tmp_path / "store", bos=1198)
    assert resumed.documents == found.documents


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_do_not_hold_ids_are_bad(kind: str, tmp_path: Path) -> None:
    documents = random_documents(50, 2)
    documents[8], documents[9] = [5, -1], [1 << 33]
    source = write(tmp_path / f"a.{kind}", documents, pa.list_(pa.int64()))
    result = prepare(source, tmp_path / "store", max_bad=0.1)
    kept = [ids for row, ids in enumerate(documents) if row not in {3, 8, 9}]
    assert stored(result) == kept
    assert tokenmill.status(result.directory).quarantined == 2
    with pytest.raises(TokenmillError, match="a row does not hold token ids"):
        prepare(source, tmp_path / "strict", on_bad="fail")


def test_an_id_that_the_vocabulary_does_not_have_ends_the_run(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [[5], [6, 60_000, 7]])
    with pytest.raises(TokenmillError, match="the id 60000 is not a token of small") as caught:
        prepare(source, tmp_path / "store")
    assert "byte 22" in str(caught.value)


def test_a_column_of_something_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"ids": ["text"] * 3}), tmp_path / "a.parquet")
    with pytest.raises(SourceError, match="the column 'ids' is string, not a list of whole numbers for each row"):
        prepare(tmp_path / "a.parquet", tmp_path / "store")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"column": "text"}, "column= cannot be used with tokens_column="),
        ({"special": "parse"}, "special= cannot be used with tokens_column="),
        ({"fim_rate": 0.5}, "fim_rate= cannot be used with tokens_column="),
        ({"tokens_column": None, "rows": "stream"}, "rows= needs tokens_column="),
        ({"rows": "both"}, "rows= is documents, stream or overlap, not 'both'"),
        ({"rows": "stream", "keep": "id"}, "keep= cannot be used with rows="),
        ({"engine": "gigatoken"}, 'engine="gigatoken" has no effect'),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", [[1], [2]])
    with pytest.raises(UsageError, match=message):
        prepare(source, tmp_path / "store", **options)


def rows_of(documents: list[list[int]], length: int, *, overlap: bool, first: bool) -> Documents:
    """Documents as rows of one length, as people pack them; the last row may be shorter."""
    framed = [[END, *ids] if first else [*ids, END] for ids in documents]
    stream = [token for ids in framed for token in ids]
    step = length - overlap
    return [stream[start : start + length] for start in range(0, len(stream) - overlap, step)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("overlap", [False, True], ids=["stream", "overlap"])
@pytest.mark.parametrize("first", [False, True], ids=["end-after", "end-before"])
def test_rows_of_a_stream_become_documents(kind: str, overlap: bool, first: bool, tmp_path: Path) -> None:
    """Documents of no token and of many rows, in units that begin in the middle of a document."""
    documents = [ids for ids in random_documents(150, 11) if ids is not None]
    documents[20] = list(range(700))
    documents[-1] = documents[-1] or [1]
    rows = rows_of(documents, 17, overlap=overlap, first=first)
    source = write(tmp_path / f"a.{kind}", rows)
    options = {"rows": "overlap" if overlap else "stream", "unit_bytes": 400}
    result = prepare(source, tmp_path / "store", **options)
    assert stored(result) == documents
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == len(documents)
    whole = prepare(source, tmp_path / "whole", **{**options, "unit_bytes": "1MB"})
    assert stored(whole) == documents
    assert kind == "arrow" or tokenmill.status(result.directory).units > 1


def test_a_stream_without_an_end_token_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "a.parquet", [[1, 2, 3]] * 20)
    with pytest.raises(SourceError, match="the rows of the sources have no end token"):
        prepare(source, tmp_path / "store", rows="stream")


def test_the_tokens_of_another_tokenizer_are_refused(tmp_path: Path) -> None:
    """A sample is decoded and encoded; the run records what that gave."""
    texts = [f"Document {row} says that {row} is not {row + 1}." for row in range(60)]
    vocabulary = resolve(SMALL_JSON)
    encoded = Tokenizer(vocabulary.spec, vocabulary.content, "reference").encode(pa.array(texts, pa.large_string()))
    documents: Documents = [encoded.document(row).tolist() for row in range(len(texts))]
    result = prepare(write(tmp_path / "a.parquet", documents), tmp_path / "store", trust_tokens=False)
    check = require_run(folder_at(result.directory)).token_check
    assert check == {"documents": 60, "equal": 60, "differs": 0, "not_utf8": 0}
    reversed_: Documents = [(ids or [])[::-1] for ids in documents]
    source = write(tmp_path / "b.parquet", reversed_)
    with pytest.raises(UsageError, match="the tokens of a source are not those of small") as caught:
        prepare(source, tmp_path / "other", trust_tokens=False)
    assert "of 60 sampled documents" in str(caught.value)
    assert "trust_tokens=True" in str(caught.value)
    assert stored(prepare(source, tmp_path / "other")) == reversed_
