"""Rows that are in no file: each kind gives the store that the same rows in a Parquet file give."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON
from tests.support.inline_executor import InlineExecutor
from tokenmill.errors import JobChanged, SourceError, StoreError, UsageError
from tokenmill.pipeline.rows import spool as spooling
from tokenmill.store.spool import RECORD

ROWS = 2500
TEXTS = [None if row % 97 == 5 else f"row {row} " + "tells a little more " * (row % 13) for row in range(ROWS)]
IDS = [f"id-{row % 50}" for row in range(ROWS)]
TABLE = pa.table({"id": IDS, "text": TEXTS})
CALL: dict[str, Any] = {"tokenizer": SMALL_JSON, "keep": "id", "max_skipped": 1.0}


def prepare(rows: Any, out: Path, **options: Any) -> tokenmill.results.PrepareResult:
    """A store of rows, made in this process."""
    return tokenmill.prepare(rows, out=out, executor=InlineExecutor(), **{**CALL, **options})


def content(store: Any) -> tuple[list[list[int]], list[Any]]:
    """The documents and the kept columns of a store."""
    opened = tokenmill.open(store)
    return [list(document) for document in opened], opened.columns()["id"].to_pylist()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[list[int]], list[Any]]:
    """The content of the store of the rows in a Parquet file."""
    folder = tmp_path_factory.mktemp("parquet")
    pq.write_table(TABLE, folder / "a.parquet")
    return content(prepare(folder / "a.parquet", folder / "out"))


def dicts() -> Iterator[dict[str, Any]]:
    """The rows one by one."""
    return ({"id": name, "text": text} for name, text in zip(IDS, TEXTS, strict=True))


def dictionaries() -> pa.Table:
    """The rows with a dictionary in each column, and strings in views."""
    coded = TABLE.set_column(0, "id", TABLE["id"].dictionary_encode())
    return coded.set_column(1, "text", TABLE["text"].cast(pa.string_view()))


KINDS: dict[str, Callable[[], Any]] = {
    "pandas": lambda: pd.DataFrame({"id": pd.Categorical(IDS), "text": TEXTS}, index=np.arange(ROWS) * 2),
    "polars": lambda: pl.DataFrame({"id": pl.Series(IDS, dtype=pl.Categorical), "text": TEXTS}),
    "table": lambda: TABLE,
    "dictionaries": dictionaries,
    "reader": lambda: pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=7)),
    "generator": dicts,
    "dataset": lambda: datasets.Dataset.from_dict({"id": IDS, "text": TEXTS}),
    "selected": lambda: datasets.Dataset.from_dict({"id": IDS[::-1], "text": TEXTS[::-1]}).select(
        range(ROWS - 1, -1, -1)
    ),
    "stream": lambda: datasets.IterableDataset.from_generator(dicts),
    "transformed": lambda: datasets.Dataset.from_dict({"n": list(range(ROWS))}).with_transform(
        lambda batch: {"id": [IDS[n] for n in batch["n"]], "text": [TEXTS[n] for n in batch["n"]]}
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_rows_give_the_store_of_a_file(kind: str, tmp_path: Path, expected: Any) -> None:
    """Documents and kept columns are the same; the same rows find the store complete, and no rows do, too."""
    result = prepare(KINDS[kind](), tmp_path / "out")
    assert content(result) == expected
    assert result.skipped_rows == sum(text is None for text in TEXTS)
    assert (tmp_path / "out" / RECORD).exists()
    for rows in (KINDS[kind](), iter(())):
        assert prepare(rows, tmp_path / "out").units_done_now == 0
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == result.documents


def test_strings_are_documents(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, and a lone surrogate, are bad documents. None has no text."""
    rows = ["one", None, b"two", b"\xff", "\ud800", "", np.str_("three")]
    result = prepare(iter(rows), tmp_path / "out", keep=None, max_bad=1.0)
    assert (result.documents, result.skipped_rows, result.quarantined) == (4, 3, 2)


def test_dicts_may_have_any_keys_and_values_of_json(tmp_path: Path) -> None:
    """The schema is not that of the first row. Arrays of NumPy, bytes and times become JSON."""
    rows = [{"a": 1}, {"text": "one", "id": np.int64(3)}, {"text": b"two", "list": np.arange(2)}, {"text": "three"}]
    result = prepare(iter(rows), tmp_path / "out", keep=None)
    assert (result.documents, result.skipped_rows) == (3, 1)
    with pytest.raises(UsageError, match=r"row 1 cannot be a document\n.*complex is no value of JSON"):
        prepare(iter([{"text": "a"}, {"text": 1j}]), tmp_path / "bad", keep=None)


def test_nested_columns_keep_their_shape(tmp_path: Path) -> None:
    """Lists and structs are read by paths, as in a file."""
    rows = pa.table({"data": [{"parts": ["a", "b"]}, None, {"parts": []}]})
    pq.write_table(rows, tmp_path / "a.parquet")
    options: dict[str, Any] = {"column": "data.parts", "keep": None}
    results = [prepare(given, tmp_path / str(n), **options) for n, given in enumerate([rows, tmp_path / "a.parquet"])]
    assert len({(result.documents, result.tokens, result.skipped_rows) for result in results}) == 1


def test_the_files_of_a_dataset_are_read_where_they_are(tmp_path: Path, expected: Any) -> None:
    """Nothing is copied, unless the rows are not those of the files."""
    datasets.Dataset.from_dict({"id": IDS, "text": TEXTS}).save_to_disk(str(tmp_path / "saved"), num_shards=3)
    rows = datasets.load_from_disk(str(tmp_path / "saved"))
    result = prepare(rows, tmp_path / "out")
    assert content(result) == expected
    assert not (tmp_path / "out/spool").exists()
    assert set(tokenmill.open(result).sources["path"].to_pylist()) == {str(path) for path in tmp_path.glob("*/*.arrow")}
    for number, other in enumerate((rows.select(range(10)), rows.shuffle(seed=1), rows.rename_column("id", "name"))):
        prepare(other, tmp_path / str(number), keep=None)
        assert (tmp_path / str(number) / RECORD).exists()


def test_splits_are_chosen_as_in_files(tmp_path: Path) -> None:
    """Splits are not mixed by accident. Chosen ones can be held out."""
    parts = {name: datasets.Dataset.from_dict({"text": [name] * 3}) for name in ("train", "test")}
    rows = datasets.DatasetDict(parts)
    with pytest.raises(UsageError, match=r"a DatasetDict has 2 splits, which would be mixed\n.*train +3 rows"):
        prepare(rows, tmp_path / "out", keep=None)
    with pytest.raises(UsageError, match="no split 'dev'"):
        prepare(rows, tmp_path / "out", keep=None, split="dev")
    with pytest.raises(UsageError, match="no source has splits"):
        prepare(parts["train"], tmp_path / "out", keep=None, split="train")
    assert not (tmp_path / "out").exists()
    assert prepare(rows, tmp_path / "one", keep=None, split="test").documents == 3
    both = prepare(rows, tmp_path / "both", keep=None, split="all", to="nanogpt", val="split:test")
    assert tokenmill.open(both).sources["split"].to_pylist() == ["train", "test"]


def test_other_rows_are_refused(tmp_path: Path) -> None:
    """Rows that differ, are fewer or are more; the spool stays as it is."""
    prepare(TABLE, tmp_path / "out")
    before = (tmp_path / "out" / RECORD).read_bytes()
    for other in (
        TABLE.slice(1),
        TABLE.slice(0, 9),
        pa.concat_tables([TABLE, TABLE]),
        TABLE.rename_columns(["i", "t"]),
    ):
        with pytest.raises(JobChanged, match="the rows from a Table are not those"):
            prepare(other, tmp_path / "out")
    assert (tmp_path / "out" / RECORD).read_bytes() == before


def test_spool_files_follow_from_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows in other batches are the same files, of limited size."""
    monkeypatch.setattr(spooling, "BATCH_BYTES", 10_000)
    monkeypatch.setattr(spooling, "FILE_BYTES", 50_000)
    nested = TABLE.append_column("more", pa.array([[{"a": text}] if text else None for text in TEXTS]))
    names = set()
    for number, rows in enumerate((7, 1000, ROWS)):
        reader = pa.RecordBatchReader.from_batches(nested.schema, nested.to_batches(max_chunksize=rows))
        prepare(reader, tmp_path / str(number))
        names.add((tmp_path / str(number) / RECORD).read_bytes())
    (record,) = names
    assert len(json.loads(record)["files"]) > 5
    assert max(path.stat().st_size for path in (tmp_path / "0/spool").iterdir()) < 60_000


def broken() -> Iterator[str]:
    """Rows that end with an error."""
    yield from itertools.repeat("text", 5000)
    raise ValueError("the connection was lost")


def test_rows_that_raise_leave_nothing(tmp_path: Path) -> None:
    """The message has the number of rows and what was raised."""
    with pytest.raises(SourceError, match=r"error after 5,000 rows\n +raised +ValueError: the connection was lost"):
        prepare(broken(), tmp_path / "out", keep=None)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (iter(()), "no rows come from"),
        (iter(["a", {"text": "b"}]), "it is a dict, and the rows before are strings"),
        (iter([{"text": "b"}, "a"]), "it is a str, and the rows before are dicts"),
        (iter([5]), "it is a int, and the rows before are strings"),
        (pd.DataFrame([["a", "b"]], columns=["text", "text"]), "columns of one type each\n.*[Dd]uplicate"),
        (pd.DataFrame({"text": ["a", 5, [1]]}), "columns of one type each"),
        (pl.LazyFrame({"text": ["a"]}), "Collect it first"),
        (io.StringIO("text"), "an open file is no source"),
        (b"text", "not a bytes"),
    ],
)
def test_what_is_no_rows_is_refused(rows: Any, message: str, tmp_path: Path) -> None:
    """Nothing is left of the call."""
    with pytest.raises(UsageError, match=message):
        prepare(rows, tmp_path / "out", keep=None)
    assert not (tmp_path / "out").exists()


def test_files_are_needed_by_several_processes_and_stores(tmp_path: Path) -> None:
    """Ranks, clusters and several tokenizers are refused, with the way."""
    cases: tuple[dict[str, Any], ...] = ({"rank": 0, "of": 2}, {"tokenizer": [SMALL_JSON, "gpt2"]}, {"on": "ray"})
    for options in cases:
        with pytest.raises(UsageError, match="Write the rows to files first"):
            tokenmill.prepare(TABLE, out=tmp_path / "out", **{**CALL, **options})
    with pytest.raises(UsageError, match="stdin= has no effect"):
        prepare(TABLE, tmp_path / "out", stdin="text")


def test_a_table_without_rows_is_a_store_without_documents(tmp_path: Path) -> None:
    """Its columns are known."""
    result = prepare(TABLE.slice(0, 0), tmp_path / "out")
    assert result.documents == 0
    assert "the sources have no rows" in result.notices[-1]


def test_a_small_disk_is_refused_before_and_during_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of known size are compared with the disk before the copy, others while they are copied."""
    monkeypatch.setattr(spooling, "RESERVE_BYTES", 1 << 60)
    for rows, message in ((TABLE, "the disk is too small"), (dicts(), "the disk is nearly full")):
        with pytest.raises(StoreError, match=message) as raised:
            prepare(rows, tmp_path / "out")
        assert raised.value.exit_code == 75
        assert not (tmp_path / "out").exists()


def test_a_dropped_spool_is_still_recognized(tmp_path: Path) -> None:
    """Its text is gone, the same rows are known, other rows are refused, and `verify` says what it cannot compare."""
    out = tmp_path / "out"
    result = prepare(TABLE, out, drop_spool=True)
    assert [path.name for path in (out / "spool").iterdir()] == ["spool.json"]
    assert prepare(TABLE, out).units_done_now == 0
    assert prepare(iter(()), out, drop_spool=True).units_done_now == 0
    with pytest.raises(JobChanged, match="are not those"):
        prepare(TABLE.slice(1), out)
    verified = tokenmill.verify(result, all=True, executor=InlineExecutor())
    assert (verified.documents_compared, len(verified.notices)) == (0, 1)
    assert f"{ROWS:,} rows of {out} not compared" in verified.notices[0]
    assert tokenmill.verify(result, executor=InlineExecutor()).notices == []


def test_a_trial_keeps_its_spool(tmp_path: Path) -> None:
    """The units that are left need it."""
    options: dict[str, Any] = {"unit_bytes": 1, "drop_spool": True}
    prepare(TABLE, tmp_path / "out", limit_units=1, **options)
    assert (tmp_path / "out/spool/00000000.arrow").exists()
    assert prepare(iter(()), tmp_path / "out", **options).units > 1
    assert not (tmp_path / "out/spool/00000000.arrow").exists()
