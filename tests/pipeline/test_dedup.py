"""`--dedup exact`: one document of each group of equal texts is left, the first by source and row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN, part_bytes
from tokenmill.errors import JobChanged
from tokenmill.pipeline.planning.deduplicate import HASHED_ROW, later_rows

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": "none", "workers": 1, "unit_bytes": 400, "keep": "id"}
CALL["max_skipped"] = 1

Row = dict[str, Any]


def write(directory: Path) -> list[Row]:
    """Four files of three kinds whose texts repeat within a file and across files; some rows have no text."""
    rng = np.random.default_rng(7)
    rows: list[Row] = []
    directory.mkdir()
    for number, kind in enumerate(("parquet", "jsonl", "csv", "parquet")):
        texts = [f"text number {pick} äöü" * (1 + pick % 3) for pick in rng.integers(0, 90, 120).tolist()]
        table = [
            {"file": f"{number}.{kind}", "row": row, "id": 1000 * number + row, "text": text}
            for row, text in enumerate(texts)
        ]
        for row in table[::17] if kind != "csv" else ():
            row["text"] = None
        path = directory / f"{number}.{kind}"
        columns = [{name: row[name] for name in ("id", "text")} for row in table]
        if kind == "parquet":
            pq.write_table(pa.Table.from_pylist(columns), path, row_group_size=20)
        elif kind == "jsonl":
            path.write_text("".join(json.dumps(row) + "\n" for row in columns))
        else:
            path.write_text("id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in columns))
        rows += table
    return rows


def sources(directory: Path) -> list[Path]:
    """The files, each by its name: a CSV file in a directory is not a source."""
    return sorted((directory / "in").iterdir())


def pq_bytes(table: pa.Table) -> bytes:
    """A table as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def firsts(rows: list[Row], *, but: set[int] | frozenset[int] = frozenset()) -> list[int]:
    """The ids of the first row of each text, in order, without the rows that are excluded for another reason."""
    seen: dict[str, int] = {}
    for row in rows:
        if row["text"] is not None and row["id"] not in but:
            seen.setdefault(row["text"], row["id"])
    return sorted(seen.values())


def ids(store: str | Path) -> list[int]:
    """The ids of the documents of a store, in order."""
    return [int(value) for value in tokenmill.open(store).columns("id")["id"].to_pylist()]


@pytest.mark.processes
def test_the_first_of_each_group_is_left(tmp_path: Path) -> None:
    """Any number of workers and any size of units leave the same documents; the store verifies and has no duplicate."""
    rows = write(tmp_path / "in")
    expected = firsts(rows)
    with_text = sum(row["text"] is not None for row in rows)
    result = tokenmill.prepare(sources(tmp_path), out=tmp_path / "out", dedup="exact", **CALL)
    assert ids(tmp_path / "out") == expected
    assert result.skipped_reasons["duplicate"] == with_text - len(expected) > 50
    assert (result.quarantined, result.documents) == (0, len(expected))
    duplicates = tokenmill.stats(tmp_path / "out", workers=1).duplicates
    assert duplicates is not None
    assert duplicates.documents == 0
    assert tokenmill.verify(tmp_path / "out", all=True, workers=1).documents == len(expected)
    two = tokenmill.prepare(sources(tmp_path), out=tmp_path / "two", dedup="exact", **CALL | {"workers": 2})
    assert part_bytes(tmp_path / "two") == part_bytes(tmp_path / "out")
    assert two.skipped_reasons == result.skipped_reasons
    tokenmill.prepare(sources(tmp_path), out=tmp_path / "one", dedup="exact", **CALL | {"unit_bytes": "1MB"})
    assert ids(tmp_path / "one") == expected


def test_excluded_rows_have_no_duplicates(tmp_path: Path) -> None:
    """A row that --deny or --where excludes is not the first of its group: the next one is."""
    rows = write(tmp_path / "in")
    denied = set(firsts(rows)[::3])
    (tmp_path / "deny").write_text("".join(f'{{"column": "id", "value": {number}}}\n' for number in denied))
    tokenmill.prepare(sources(tmp_path), out=tmp_path / "deny-out", dedup="exact", deny=tmp_path / "deny", **CALL)
    assert ids(tmp_path / "deny-out") == firsts(rows, but=denied)
    below = {row["id"] for row in rows if row["id"] <= 1030}
    where = tokenmill.prepare(sources(tmp_path), out=tmp_path / "where", dedup="exact", where="id > 1030", **CALL)
    assert ids(tmp_path / "where") == firsts(rows, but=below)
    assert set(where.skipped_reasons) == {"null", "filtered", "duplicate"}
    tokenmill.verify(tmp_path / "where", all=True, workers=1)
    left = set(firsts(rows, but=below))
    stores = tokenmill.open(tmp_path / "where")
    for row in (row for row in rows if row["file"] in {"0.parquet", "3.parquet"}):  # rows of JSON Lines are positions
        source = [str(path) for path in sources(tmp_path)].index(str(tmp_path / "in" / row["file"]))
        reason = "filtered" if row["id"] in below else "null" if row["text"] is None else "duplicate"
        if row["id"] not in left:
            assert stores.collection.members[0].why_not(source, row["row"]) == reason


def test_two_tokenizers_leave_the_same_documents(tmp_path: Path) -> None:
    """Both stores have the first document of each group."""
    rows = write(tmp_path / "in")
    both = CALL | {"tokenizer": [SMALL_TIKTOKEN, SMALL_JSON]}
    result = tokenmill.prepare(sources(tmp_path), out=tmp_path / "out", dedup="exact", **both)
    for store in (result, *result.others):
        assert ids(store.directory) == firsts(rows)


def test_a_run_is_continued_with_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources are not searched again; a lost list is made again; without the option the command is refused."""
    write(tmp_path / "in")
    out = tmp_path / "out"
    result = tokenmill.prepare(sources(tmp_path), out=out, dedup="exact", **CALL)
    before = part_bytes(out)
    (out / "parts/00000003.arrow").unlink()
    (out / "manifest.parquet").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(
            "tokenmill.pipeline.planning.freeze.find_duplicates", lambda *_: pytest.fail("the sources were read")
        )
        again = tokenmill.prepare(sources(tmp_path), out=out, dedup="exact", **CALL)
        unchanged = tokenmill.prepare(sources(tmp_path), out=out, dedup="exact", **CALL)
    assert part_bytes(out) == before
    assert result.skipped_reasons == again.skipped_reasons == unchanged.skipped_reasons
    (list_file,) = (out / "deny").glob("*.parquet")
    content = list_file.read_bytes()
    list_file.unlink()
    with pytest.raises(tokenmill.TokenmillError, match="is missing"):
        tokenmill.verify(out, workers=1)
    restored = tokenmill.prepare(sources(tmp_path), out=out, dedup="exact", **CALL)
    assert any("made again" in note for note in restored.notices)
    assert list_file.read_bytes() == content
    list_file.unlink()
    (out / "run.json").unlink()
    tokenmill.prepare(sources(tmp_path), out=out, dedup="exact", **CALL)
    assert (list_file.read_bytes(), part_bytes(out)) == (content, before)
    list_file.write_bytes(pq_bytes(pq.read_table(list_file).slice(1)))
    with pytest.raises(tokenmill.TokenmillError, match="is not the list"):
        tokenmill.verify(out, workers=1)
    list_file.write_bytes(content)
    with pytest.raises(JobChanged, match="another dedup="):
        tokenmill.prepare(sources(tmp_path), out=out, **CALL)
    tokenmill.prepare(sources(tmp_path), out=tmp_path / "plain", **CALL)
    with pytest.raises(JobChanged, match="another dedup="):
        tokenmill.prepare(sources(tmp_path), out=tmp_path / "plain", dedup="exact", **CALL)


def test_changed_sources_with_other_duplicates_are_refused(tmp_path: Path) -> None:
    """A run that is not complete: a change that keeps the duplicates is taken, another one is refused."""
    rows = write(tmp_path / "in")
    out = tmp_path / "out"
    tokenmill.prepare(sources(tmp_path), out=out, dedup="exact", **CALL)
    before = part_bytes(out)
    (out / "manifest.parquet").unlink()
    (tmp_path / "in/2.csv").touch()
    tokenmill.prepare(sources(tmp_path), out=out, dedup="exact", **CALL)
    assert part_bytes(out) == before
    (out / "manifest.parquet").unlink()
    assert 2119 in {row["id"] for row in rows} - set(firsts(rows))
    lines = (tmp_path / "in/2.csv").read_text().splitlines(keepends=True)
    (tmp_path / "in/2.csv").write_text("".join(lines[:-1]) + "2119,a text that no other row has\n")
    with pytest.raises(JobChanged, match="other duplicates now"):
        tokenmill.prepare(sources(tmp_path), out=out, dedup="exact", **CALL)
    assert part_bytes(out) == before


def test_a_store_like_another_is_searched_by_itself(tmp_path: Path) -> None:
    """--like takes the option from the store; documents of that store are not compared."""
    rows = write(tmp_path / "in")
    tokenmill.prepare(sources(tmp_path), out=tmp_path / "out", dedup="exact", **CALL)
    like = tokenmill.prepare(tmp_path / "in/3.parquet", like=tmp_path / "out", out=tmp_path / "like", workers=1)
    assert ids(tmp_path / "like") == firsts([row for row in rows if row["file"] == "3.parquet"])
    assert like.skipped_reasons["duplicate"] > 10
    stores = tokenmill.open([tmp_path / "out", tmp_path / "like"])
    assert len(stores) == len(tokenmill.open(tmp_path / "out")) + like.documents


def test_the_command_reports_duplicates(tmp_path: Path) -> None:
    """The result has a line for them, and `inspect --skipped` names the reason."""
    write(tmp_path / "in")
    command = ("prepare", tmp_path / "in/0.parquet", "--tokenizer", SMALL_TIKTOKEN, "--eot", "none", "--workers", "1")
    result = run(*command, "--out", tmp_path / "out", "--dedup", "exact")
    assert re.search(r"duplicates +\d+ rows left out \(--dedup\)", result.stdout)
    assert "duplicate" in run("inspect", tmp_path / "out", "--skipped").stdout
    run(*command, "--out", tmp_path / "x", "--dedup", "near", code=2)


def test_later_rows_of_random_hashes() -> None:
    """The rows of each hash but the first, against a dictionary."""
    rng = np.random.default_rng(3)
    rows = np.zeros(5000, HASHED_ROW)
    rows["high"], rows["low"] = rng.integers(0, 40, 5000), rng.integers(0, 40, 5000)
    rows["source"], rows["row"] = np.repeat(np.arange(5), 1000), np.tile(np.arange(1000), 5)
    seen: set[tuple[int, int]] = set()
    expected = []
    for high, low, source, row in rows.tolist():
        if (high, low) in seen:
            expected.append((source, row))
        seen.add((high, low))
    for order in (np.arange(5000), rng.permutation(5000)):
        assert later_rows(rows[order])[["source", "row"]].tolist() == expected
