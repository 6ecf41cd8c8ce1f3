"""Kept columns in Parquet exports: equal to the store in any order, empty for erased documents, part of the job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_TIKTOKEN
from tokenmill.errors import CorruptStore, JobChanged, UsageError
from tokenmill.exports import converge_shard, sorted_runs
from tokenmill.exports.job import RUNS
from tokenmill.storage import folder_at
from tokenmill.store.part import PartContent
from tokenmill.token_files import parquet
from tokenmill.token_files.protocol import ExportedColumn

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1}
NAMES = ("id", "url", "score", "ok")


def rows(first: int = 0, count: int = 60) -> list[dict[str, Any]]:
    """Rows with columns of every plain type, some values missing."""
    return [
        {
            "text": f"document {row} " + "of some words " * (row % 9),
            "id": row,
            "url": None if row % 13 == 3 else f"https://example.org/{row}?q=é" * (row % 4),
            "score": row / 4 if row % 5 else None,
            "ok": row % 2 == 0,
        }
        for row in range(first, first + count)
    ]


def make_store(folder: Path, values: list[dict[str, Any]], keep: Any = NAMES) -> Path:
    """A store of some rows in several units."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(values), folder / "a.parquet", row_group_size=10)
    tokenmill.prepare(folder / "a.parquet", out=folder / "store", keep=keep, unit_bytes=700, **CALL)
    return folder / "store"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with four kept columns."""
    return make_store(tmp_path_factory.mktemp("with"), rows())


def read(directory: Path) -> list[dict[str, Any]]:
    """All rows of an export, in the order of its files."""
    files = sorted(directory.glob("*.parquet"))
    assert len({pq.read_schema(file).remove_metadata() for file in files}) == 1
    return [row for file in files for row in pq.read_table(file).to_pylist()]


@pytest.mark.parametrize("shuffle", [None, 3])
@pytest.mark.parametrize("val", ["none", 0.3])
def test_each_document_has_its_values(
    tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch, shuffle: int | None, val: Any
) -> None:
    """The added columns follow the documents through splits, shuffles, shards and row groups."""
    monkeypatch.setattr(parquet, "GROUP_TOKENS", 60)
    out = tmp_path / "out"
    options: dict[str, Any] = {"to": "parquet", "val": val, "shuffle": shuffle, "shard_tokens": 200, "workers": 1}
    tokenmill.export(store, out=out, with_columns=NAMES, **options)
    plain = tmp_path / "plain"
    tokenmill.export(store, out=plain, **options)
    expected = {row["id"]: {name: row[name] for name in NAMES} for row in rows()}
    found = read(out)
    assert [{name: row[name] for name in NAMES} for row in found] == [expected[row["row"]] for row in found]
    assert [{key: row[key] for key in ("input_ids", "source", "row")} for row in found] == read(plain)
    assert len(found) == len(expected)
    assert len(list(out.glob("*.parquet"))) > 3
    kinds = {field.name: str(field.type) for field in pq.read_schema(next(out.glob("train*")))}
    assert [kinds[name] for name in NAMES] == ["int64", "string", "double", "bool"]
    assert tokenmill.verify(out).exports
    assert tokenmill.export(store, out=out, with_columns="id,url,score,ok", **options).shards_done_now == 0


def test_the_command_and_the_job_have_the_option(tmp_path: Path, store: Path) -> None:
    """`--with` names the columns. Another choice is another job."""
    arguments = ("export", store, "--to", "parquet", "--out", tmp_path / "out", "--workers", "1")
    command.run(*arguments, "--with", "url,id")
    assert list(read(tmp_path / "out")[0]) == ["input_ids", "source", "row", "url", "id"]
    refused = command.run(*arguments, "--with", "id", code=1).stderr
    assert "another --with" in refused
    assert "was url (string), id (int64), is now id (int64)" in refused
    with pytest.raises(JobChanged, match=r"was url .*, is now none"):
        tokenmill.export(store, to="parquet", out=tmp_path / "out", workers=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"with_columns": "uri"}, "does not keep the column 'uri'\n.*id, url, score, ok\n.*url"),
        ({"with_columns": ["id", "row"]}, "with_columns='row' is the name of another column"),
        ({"with_columns": "id", "columns": "id"}, "another column of the file\n.*id, source, row\n.*columns=NAME"),
        ({"with_columns": "id,id"}, "a column twice"),
        ({"with_columns": "id,"}, "an empty column"),
        ({"with_columns": ["id,url"]}, r"'id,url' in with_columns has a comma\n.*with_columns=\['id', 'url'\]"),
        ({"with_columns": "id", "to": "nanogpt"}, "nanogpt has no columns\n.*with_columns= is for parquet"),
    ],
)
def test_columns_that_cannot_be_added_are_refused(
    tmp_path: Path, store: Path, options: dict[str, Any], message: str
) -> None:
    """The error has the columns that there are; nothing is written."""
    with pytest.raises(UsageError, match=message):
        tokenmill.export(store, out=tmp_path / "out", workers=1, **{"to": "parquet", **options})
    assert not list((tmp_path).glob("out/**/*.json"))


def test_several_stores_have_one_type(tmp_path: Path, store: Path) -> None:
    """Numbers of two types become floating point numbers or text; a store without the column has no values."""
    other = [{"text": f"other {row}", "id": row + 0.5, "score": "high", "new": None} for row in range(20)]
    two = make_store(tmp_path / "two", other, ["id", "score", "new"])
    out = tmp_path / "out"
    tokenmill.export(
        [store, two], to="parquet", out=out, with_columns=["id", "score", "ok", "new"], shuffle=5, workers=1
    )
    found = sorted(read(out), key=lambda row: (row["source"].endswith("two/a.parquet"), row["row"]))
    first = [{"id": float(row["id"]), "score": row["score"], "ok": row["ok"]} for row in rows()]
    assert [row["id"] for row in found] == [*(row["id"] for row in first), *(row["id"] for row in other)]
    assert [row["ok"] for row in found] == [*(row["ok"] for row in first), *[None] * 20]
    assert {row["new"] for row in found} == {None}
    texts = [None if row["score"] is None else float(row["score"]) for row in found[:60]]
    assert texts == [row["score"] for row in first]
    assert [row["score"] for row in found[60:]] == ["high"] * 20
    assert str(pq.read_schema(next(out.glob("*.parquet"))).field("new").type) == "string"


def test_an_erasure_empties_the_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Erased documents are null in each added column, other values stay, and the types of the export stay."""
    values = [{**row, "id": "x" if row["id"] == 7 else None} for row in rows()]
    store = make_store(tmp_path, values)
    options: dict[str, Any] = {"to": "parquet", "with_columns": NAMES, "shard_tokens": 300, "workers": 1}
    tokenmill.export(store, **options)
    tokenmill.export(store, out=tmp_path / "shuffled", shuffle=1, **options)
    source = str(tmp_path / "a.parquet")
    tokenmill.erase(store, rows=[(source, 7), (source, 30)], workers=1)
    for out in (store / "parquet", tmp_path / "shuffled"):
        found = read(out)
        for row in found:
            expected: dict[str, Any] = {} if row["row"] in (7, 30) else values[row["row"]]
            assert [row[name] for name in NAMES] == [expected.get(name) for name in NAMES]
        assert len(found) == 60
    exports = tokenmill.verify(store, workers=1).exports
    assert exports == {
        name: len(list((store / name).glob("*.parquet"))) for name in ("parquet", str(tmp_path / "shuffled"))
    }
    assert tokenmill.export(store, **options).shards_done_now == 0
    new = tmp_path / "new"
    tokenmill.export(store, out=new, **options)
    assert {row["row"] for row in read(new)} == set(range(60)) - {7, 30}

    monkeypatch.setattr(converge_shard, "nulled", lambda table, _: table)
    tokenmill.erase(store, rows=[(source, 11)], workers=1)
    with pytest.raises(CorruptStore, match="holds tokens or values of documents that were erased"):
        tokenmill.verify(store, workers=1)


def test_a_recipe_exports_the_columns_of_each_copy(tmp_path: Path, store: Path) -> None:
    """A document that a recipe reads twice has its values twice; documents that a condition leaves out have no row."""
    recipe = tmp_path / "recipe.toml"
    budget = sum(len(tokens) for tokens in tokenmill.open(store)[30:]) * 3 // 2 // 8 * 8
    recipe.write_text(
        f"grain = 8\n[sources.a]\nstore = {str(store)!r}\nwhere = 'id >= 30'\nrepeat = 2.0\n"
        f"[[stages]]\nsequence_tokens = 8\nbatch_sequences = 1\ntokens = {budget}\nweights = {{ a = 1.0 }}\n"
    )
    tokenmill.export(recipe, to="parquet", out=tmp_path / "out", with_columns=["url", "id"], workers=1)
    found = read(tmp_path / "out")
    expected = {row["id"]: row for row in rows()}
    assert len(found) > 30
    assert {row["row"] for row in found} == set(range(30, 60))
    assert all((row["id"], row["url"]) == (row["row"], expected[row["row"]]["url"]) for row in found)


def test_a_damaged_run_is_sorted_again(tmp_path: Path) -> None:
    """The checksum of a run covers its kept columns, and each range of them can be read."""
    columns = [ExportedColumn("n", "int64"), ExportedColumn("t", "string"), ExportedColumn("b", "bool")]
    table = pa.table(
        {
            "n": pa.array([1 << 60, None, -3], pa.int64()),
            "t": pa.array(["é", "", None], pa.large_string()),
            "b": pa.array([None, True, False]),
        }
    )
    folder = folder_at(str(tmp_path))
    folder.create(RUNS)
    content = PartContent(np.zeros(3, np.uint16), np.arange(4), np.zeros(3, np.uint32), np.arange(3, dtype=np.uint64))
    kept = sorted_runs.encode_columns(table, columns)
    sorted_runs.publish_sorted_run(folder, 0, "0" * 64, content, np.zeros(3, np.int64), 1, kept)
    assert sorted_runs.is_intact(folder, 0, "0" * 64)
    run = sorted_runs.read_range(folder, 0, 0, 1)
    for start in range(3):
        for stop in range(start + 1, 4):
            assert run.columns(folder, columns, start, stop).equals(table.slice(start, stop - start))
    file = tmp_path / RUNS / "00000000.kept"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert not sorted_runs.is_intact(folder, 0, "0" * 64)
