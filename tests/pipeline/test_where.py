"""`prepare --where`: exactly the rows that satisfy the filter are documents, all others are counted as filtered."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, part_bytes
from tokenmill.errors import JobChanged, RunFailed, SourceError, UsageError

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1, "unit_bytes": 700}
WHERE = "language = 'en' and (score > 0.5 or score is null)"
ROWS = 60


def table() -> pa.Table:
    """Rows whose language changes every 12 rows, with nulls in every column."""
    numbers = range(ROWS)
    return pa.table(
        {
            "text": [None if n % 11 == 5 else f"row {n} " + "some words " * (n % 7) for n in numbers],
            "id": list(numbers),
            "language": [None if n % 13 == 0 else ["en", "de"][n // 12 % 2] for n in numbers],
            "score": [None if n % 7 == 0 else n % 10 / 10 for n in numbers],
        }
    )


def matches(row: dict[str, Any]) -> bool:
    return row["language"] == "en" and (row["score"] is None or row["score"] > 0.5)


def write(path: Path, values: pa.Table) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in values.to_pylist()))
    elif path.suffix == ".arrow":
        feather.write_feather(values, str(path), compression="uncompressed", chunksize=8)
    else:
        pq.write_table(values, path, row_group_size=6)
    return str(path)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "arrow"])
def test_rows_that_satisfy_the_filter_are_documents(tmp_path: Path, kind: str) -> None:
    """The others are counted with their reason, and verify, locate, inspect and stats know them."""
    values = table()
    source = write(tmp_path / f"in/x.{kind}", values)
    out = str(tmp_path / "out")
    result = tokenmill.prepare(source, out=out, where=WHERE, keep="id", **CALL)
    expected = [row for row in values.to_pylist() if matches(row) and row["text"] is not None]
    store = tokenmill.open(out)
    assert store.columns("id")["id"].to_pylist() == [row["id"] for row in expected]
    filtered = ROWS - sum(map(matches, values.to_pylist()))
    reasons = {"filtered": filtered, "null": ROWS - filtered - len(expected)}
    assert result.skipped_reasons == reasons
    assert (result.quarantined, result.documents + result.skipped_rows) == (0, ROWS)
    assert tokenmill.verify(out, all=True, workers=1).documents_compared == len(expected)
    assert tokenmill.stats(out, workers=1).skipped.reasons == reasons
    assert tokenmill.status(out).skipped_rows == result.skipped_rows
    log = [json.loads(line) for line in Path(out, "log.jsonl").read_text().splitlines()]
    assert sum(line.get("filtered_rows", 0) for line in log) == filtered
    if kind == "parquet":
        assert result.unread_row_groups >= 4  # those that are German
        assert sum(line.get("unread_row_groups", 0) for line in log) == result.unread_row_groups
    if kind != "jsonl":
        for row in expected[:3]:
            (located,) = tokenmill.locate(out, source=source, row=row["id"]).documents
            assert (located.row, located.columns["id"]) == (row["id"], row["id"])
        with pytest.raises(UsageError, match="filtered"):
            tokenmill.locate(out, source=source, row=15)
    assert "rows" in run("inspect", out, "--skipped").stdout
    shown = run("prepare", source, "--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", "--where", WHERE.upper()
                .replace("'EN'", "'en'").replace("LANGUAGE", "language").replace("SCORE", "score"),
                "--keep", "id", "--unit-bytes", "700", "--out", out)  # fmt: skip
    assert f"{filtered} rows (--where)" in shown.stdout
    assert "all units were done already" in shown.stdout


def test_the_filter_is_part_of_the_job(tmp_path: Path) -> None:
    """Another filter is refused, --like takes it, and a store without one says so."""
    source = write(tmp_path / "in/x.parquet", table())
    out, plain = tmp_path / "out", tmp_path / "plain"
    tokenmill.prepare(source, out=str(out), where=WHERE, **CALL)
    with pytest.raises(JobChanged, match="another where="):
        tokenmill.prepare(source, out=str(out), where="language = 'de'", **CALL)
    tokenmill.prepare(source, out=str(plain), **CALL)
    record = json.loads((plain / "run.json").read_text())
    assert record["job"]["where"] == ""
    (out / "log.jsonl").unlink()  # now the parts are compared with their sources
    (out / "manifest.parquet").unlink()
    assert tokenmill.prepare(source, out=str(out), where=WHERE, **CALL).units_done_now == 0
    tokenmill.prepare(source, out=str(tmp_path / "like"), like=str(out), workers=1, unit_bytes=700)
    assert part_bytes(tmp_path / "like") == part_bytes(out)


def test_filter_and_deny_list_and_two_tokenizers(tmp_path: Path) -> None:
    """A filtered row is not denied; the stores of two tokenizers have the same documents."""
    values = table()
    source = write(tmp_path / "in/x.parquet", values)
    (tmp_path / "deny").write_text('{"column": "id", "value": 6}\n{"column": "id", "value": 14}\n')
    out = tmp_path / "out"
    call = CALL | {"tokenizer": [SMALL_TIKTOKEN, SMALL_JSON], "eot": "none"}
    result = tokenmill.prepare(source, out=str(out), where=WHERE, deny=tmp_path / "deny", keep=["id"], **call)
    expected = [row["id"] for row in values.to_pylist() if matches(row) and row["text"] and row["id"] != 6]
    for each in (result, *result.others):
        assert tokenmill.open(each.directory).columns("id")["id"].to_pylist() == expected
        assert each.skipped_reasons["denied"] == 1


def test_bad_rows_that_the_filter_excludes_are_not_bad(tmp_path: Path) -> None:
    """Text that is not UTF-8 is no failure if its row is filtered. A line without an object stays a bad row."""
    texts = pa.array([b"good", b"\xff\xfe", b"fine"], pa.binary())
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"text": texts, "ok": [True, False, True]}), path)
    result = tokenmill.prepare(path, out=tmp_path / "out", where="ok = true", on_bad="fail", **CALL)
    assert (result.documents, result.skipped_reasons) == (2, {"filtered": 1})
    with pytest.raises(RunFailed, match="not valid UTF-8"):
        tokenmill.prepare(path, out=tmp_path / "fail", where="ok is not null", on_bad="fail", **CALL)
    lines = tmp_path / "x.jsonl"
    lines.write_text('{"text": "a", "ok": true}\nno object\n{"text": 5, "ok": false}\n')
    result = tokenmill.prepare(lines, out=tmp_path / "lines", where="ok = true", max_bad=1, **CALL)
    assert (result.documents, result.quarantined, result.skipped_reasons["filtered"]) == (1, 1, 1)


def test_columns_that_cannot_be_filtered_are_refused(tmp_path: Path) -> None:
    """A missing column is refused before any work; a wrong type and a text file are named."""
    source = write(tmp_path / "in/x.parquet", table())
    with pytest.raises(SourceError, match="'lang'"):
        tokenmill.prepare(source, out=tmp_path / "out", where="lang = 'en'", **CALL)
    with pytest.raises(UsageError, match="character 10"):
        tokenmill.prepare(source, out=tmp_path / "out", where="language ~ 'en'", **CALL)
    (tmp_path / "x.txt").write_text("words")
    with pytest.raises(UsageError, match="text files have no columns"):
        tokenmill.prepare(tmp_path / "x.txt", out=tmp_path / "out", where="language = 'en'", **CALL)
    assert not (tmp_path / "out").exists()
    with pytest.raises(tokenmill.TokenmillError, match="with a number, but its values are strings"):
        tokenmill.prepare(source, out=tmp_path / "out", where="language > 5", **CALL)


@pytest.mark.data
def test_corpus_by_language_has_the_rows_that_duckdb_selects(test_data: Path, tmp_path: Path) -> None:
    """Real files with statistics: the kept ids are those of DuckDB, in order."""
    files, found = [], set[str]()
    for path in sorted((test_data / "corpus/multi").glob("*.parquet"))[:2]:
        rows = pq.read_table(path).slice(0, 400).sort_by("language")  # so that statistics exclude row groups
        files.append(str(tmp_path / path.name))
        pq.write_table(rows, files[-1], row_group_size=50)
        found |= set(rows["language"].to_pylist())
    chosen = "', '".join(sorted(found)[: (len(found) + 1) // 2])
    where = f"language in ('{chosen}') and language_score >= 0.5 and not url is null"
    result = tokenmill.prepare(files, out=tmp_path / "out", where=where, keep=["id"], **CALL | {"unit_bytes": None})
    with duckdb.connect(config={"threads": 1}) as database:
        sql = f"select id from read_parquet({files}, filename=true, file_row_number=true)"
        selected = database.sql(f"{sql} where {where} order by filename, file_row_number").fetchall()
    assert selected
    assert tokenmill.open(tmp_path / "out").columns("id")["id"].to_pylist() == [row for (row,) in selected]
    assert result.unread_row_groups > 0
    assert tokenmill.verify(tmp_path / "out", all=True, workers=1).documents_compared == len(selected)
