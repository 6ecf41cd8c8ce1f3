"""A column that no line of JSON Lines has is an error before any work, also as a path or in a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_JSON
from tests.support.inline_executor import InlineExecutor
from tokenmill import sources
from tokenmill.errors import RunFailed, SourceError
from tokenmill.pipeline.planning import split_sources
from tokenmill.pipeline.planning.split_sources import plan_units
from tokenmill.sources import missing_column
from tokenmill.sources.documents import ReadOptions

ROW = {"title": "T", "data": {"text": "x"}, "messages": [{"role": "user"}]}


def plan(directory: Path, *files: list[dict[str, Any]], **options: Any) -> int:
    """How many units the files have, each of which is a list of objects."""
    for index, rows in enumerate(files):
        (directory / f"{index}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = sources.discover([str(directory)]).table
    return len(plan_units(table, ReadOptions(**options), 1 << 20, InlineExecutor()))


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        ({"column": "data.txet"}, "'data.txet'"),
        ({"column": "title.text"}, "'title.text'"),
        ({"column": "messages.rolle"}, "'messages.rolle'"),
        ({"column": "title", "required": ("data.txet",)}, "'data.txet'"),
        ({"column": "title", "required": ("messages.role",)}, "'messages.role'"),
        ({"template": "{title}\n{txet}"}, "'txet'"),
        ({"template": "{ttile}\n{txet}"}, "'ttile' or 'txet'"),
    ],
)
def test_a_column_that_no_line_has_is_refused(tmp_path: Path, options: dict[str, Any], missing: str) -> None:
    """The whole path counts, and each name of a template. A value for a filter is not in a list."""
    with pytest.raises(SourceError, match=f"has the column {missing}\n"):
        plan(tmp_path, [{"data": None, "messages": []}, ROW], **options)


def test_a_column_may_be_missing_in_some_lines_and_files(tmp_path: Path) -> None:
    """A name of a template may be in other files. A null or an empty list shows nothing about a path."""
    assert plan(tmp_path, [{"data": None}], [ROW], column="data.text", required=("title",)) == 1
    assert plan(tmp_path, [{"text": "x"}], [ROW], template="{title}{text}") == 1
    assert plan(tmp_path, [ROW], [ROW], column="messages.role", join="\n", required=("data.text",)) == 1


@pytest.mark.parametrize("unit_bytes", [1 << 10, 1 << 16, 1 << 20])
@pytest.mark.parametrize("rows", [10, 20_000])
def test_a_column_may_appear_late(tmp_path: Path, rows: int, unit_bytes: int) -> None:
    """Rows before it are rows without text, however the file is cut. 20,000 of them are more than a short read."""
    lines = '{"id": 1, "other": "xxxxx"}\n' * rows + '{"text": "abc"}\n' * 5
    (tmp_path / "late.jsonl").write_text(lines)
    done = tokenmill.prepare(
        tmp_path / "late.jsonl",
        tokenizer=SMALL_JSON,
        out=tmp_path / "out",
        unit_bytes=unit_bytes,
        max_skipped="100%",
        executor=InlineExecutor(),
    )
    assert (done.documents, done.skipped_reasons) == (5, {"missing": rows})


def test_a_late_column_of_another_option_is_found(tmp_path: Path) -> None:
    """--keep and --where search like --column."""
    rows = [{"text": "x", "n": 1}] * 12_000
    assert plan(tmp_path, [*rows, {"text": "x", "url": "y"}], required=("url",)) == 1
    with pytest.raises(SourceError, match="has the column 'lru'"):
        plan(tmp_path, rows, required=("lru",))


def test_the_search_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is in none of the lines that were looked at is refused, with their number."""
    monkeypatch.setattr(missing_column, "SEARCH_BYTES", 1 << 20)
    rows = [{"body": "x" * 1000}] * 3000
    with pytest.raises(SourceError, match=r"(?s)no line of a source .*looked at    the first 1,0[0-9]{2} lines\n"):
        plan(tmp_path, rows)
    with pytest.raises(SourceError, match=r"(?s)no line of the sources .*0.jsonl, and 1 more file\n.*looked at    2,0"):
        plan(tmp_path, rows, rows)


def test_a_corpus_without_the_column_fails_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside sources of another kind, and where the search has found nothing to go by."""
    (tmp_path / "a.jsonl").write_text('{"body": "x"}\n' * 9)
    monkeypatch.setattr(split_sources, "_find_text", lambda *_: None)
    with pytest.raises(RunFailed, match="none of the 9 rows has the column 'text'") as caught:
        tokenmill.prepare(tmp_path, tokenizer=SMALL_JSON, out=tmp_path / "out", executor=InlineExecutor())
    assert "choose a new --out" in caught.value.text


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ((), "Did you mean Text?"),
        (("--column", "txet"), "Did you mean Text?"),
        (("--column", "Text", "--keep", "urll"), "Did you mean url?"),
        (("--column", "Text", "--where", "urls = 'x'"), "Did you mean url?"),
        (("--template", "{Txt} {url}"), "Did you mean Text?"),
    ],
)
def test_a_mistyped_column_is_guessed(tmp_path: Path, kind: str, words: tuple[str, ...], meant: str) -> None:
    """The error names the column that is most like the one that is missing, and the option that named it."""
    rows = {"Text": "a", "url": "u"}
    path = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist([rows]), path)
    else:
        path.write_text(json.dumps(rows) + "\n")
    shown = command.run("prepare", path, "--tokenizer", SMALL_JSON, *words, "--out", tmp_path / "out", code=None).stderr
    assert meant in shown
    assert ("--keep" in shown) == ("--keep" in words or "--where" in words)
    assert "--template" in shown or "--keep" in shown
