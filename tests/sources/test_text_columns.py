"""Text from nested columns, lists of strings and templates is the same in Parquet, Arrow and JSON Lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_JSON
from tests.support.source_files import source
from tokenmill import sources
from tokenmill.errors import SourceError, UsageError
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.text_columns import parse_template

ROWS: list[dict[str, Any]] = [
    {"a": {"t": "x"}, "n": 1, "m": [{"r": "u", "c": "hi"}, {"r": "b", "c": "ho"}], "l": ["p", "q"], "t": "T", "b": "B"},
    {"a": {"t": None}, "n": 2, "m": [], "l": [], "t": None, "b": "B\u2028"},
    {"a": None, "n": 3, "m": None, "l": None, "t": None, "b": None},
    {
        "a": {"t": "é"},
        "n": 4,
        "m": [{"r": "u", "c": None}, {"r": "u", "c": "z"}],
        "l": ["p", None],
        "t": "T",
        "b": None,
    },
]
KINDS = ("parquet", "arrow", "jsonl")


def write(directory: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    path = directory / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "arrow":
        feather.write_feather(pa.Table.from_pylist(rows), str(path), compression="uncompressed")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=3)
    return path


def texts(path: Path, **options: Any) -> list[str | None]:
    file, reading = source(str(path)), ReadOptions(**options)
    slices = sources.split_file(file, reading, 1 << 30)
    return [text for batch in sources.read_documents(file, slices.whole(), reading) for text in batch.text.to_pylist()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"column": "a.t"}, ["x", None, None, "é"]),
        ({"column": "m.c"}, ["hi\nho", "", None, "z"]),
        ({"column": "m.c", "join": " | "}, ["hi | ho", "", None, "z"]),
        ({"column": "l", "join": "\n"}, ["p\nq", "", None, "p"]),
        ({"template": "{t}: {b}."}, ["T: B.", None, None, None]),
        ({"template": "{t}: {b}.", "null": "empty"}, ["T: B.", ": B\u2028.", None, "T: ."]),
        ({"template": "{{{a.t}}} {l}", "join": ","}, ["{x} p,q", None, None, "{é} p"]),
        ({"template": "{{{a.t}}} {l}", "join": ",", "null": "empty"}, ["{x} p,q", "{} ", None, "{é} p"]),
    ],
)
def test_text_is_the_same_in_every_kind(
    tmp_path: Path, kind: str, options: dict[str, Any], expected: list[str | None]
) -> None:
    """Paths through structs and lists, joined lists, and templates with nulls."""
    assert texts(write(tmp_path, kind, ROWS), **options) == expected


@pytest.mark.parametrize("kind", ["parquet", "arrow", "jsonl"])
@pytest.mark.parametrize("column", ["messages.content", "messages.role", "a.messages.content", "messages"])
def test_conversations_are_refused(tmp_path: Path, kind: str, column: str) -> None:
    """Joined messages would lose who says what, so the texts are joined only if `join` asks for it."""
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}]
    path = write(tmp_path, kind, [{"messages": messages, "a": {"messages": messages}}])
    call = ("prepare", path, "--column", column, "--tokenizer", SMALL_JSON, "--out", tmp_path / "out")
    shown = command.run(*call, code=2).stderr
    assert f"the column '{column}' holds messages with roles" in shown
    assert "--join" in shown
    if column != "messages":
        command.run(*call, "--join", r"\n")
    if column.endswith("content"):
        assert tokenmill.open(tmp_path / "out").text(0) == "hi"


def test_a_line_of_json_does_not_depend_on_its_neighbours(tmp_path: Path) -> None:
    """Lines whose values have other shapes are read one by one, and mean the same in any order."""
    rows: list[dict[str, Any]] = [
        {"a": {"t": "x"}},
        {"a": [{"t": "y"}, {"t": "z"}]},
        {"a.t": "key"},
        {"a": {"t": ["1", "2"]}},
        {"a": {"t": "\ud800"}},
    ]
    expected = ["x", "y\nz", "key", "1\n2", "\ufffd"]
    for shift in range(len(rows)):
        path = write(tmp_path, "jsonl", rows[shift:] + rows[:shift])
        assert texts(path, column="a.t") == expected[shift:] + expected[:shift]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_without_text_is_refused_with_its_fields(tmp_path: Path, kind: str) -> None:
    """The error names the fields that hold text, or the field that is missing."""
    path = write(tmp_path, kind, ROWS)
    for column, message in (
        ("a", "its text fields are a.t"),
        ("m", "its text fields are m.r, m.c"),
        ("a.x", "no field 'x'"),
        ("n", "not text"),
        ("x.y", "no column named 'x.y'"),
    ):
        with pytest.raises(SourceError, match=message):
            texts(path, column=column)


@pytest.mark.parametrize("kind", KINDS)
def test_nested_values_can_be_filtered(tmp_path: Path, kind: str) -> None:
    """A filter reads fields of structs."""
    assert texts(write(tmp_path, kind, ROWS), column="b", where="a.t = 'x' or n = 3") == ["B", None]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_path_through_a_list_is_refused_as_a_value(tmp_path: Path, kind: str) -> None:
    """A filter and a kept column need one value in each row."""
    file = source(str(write(tmp_path, kind, ROWS)))
    with pytest.raises(SourceError, match=r"'m\.r' goes through a list"):
        sources.require_columns(file, ("m.r",))
    sources.require_columns(file, ("a.t", "n"))


@pytest.mark.parametrize("levels", [1, 2])
def test_values_below_a_null_list_are_skipped(tmp_path: Path, levels: int) -> None:
    """A null in an Arrow list may have values below it."""
    values = pa.array(list("abcdef"))
    column = pa.ListArray.from_arrays(pa.array([0, 2, 4, 6], pa.int32()), values, mask=pa.array([False, True, False]))
    if levels == 2:
        column = pa.ListArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), column)
    path = tmp_path / "x.arrow"
    with pa.ipc.new_file(str(path), pa.schema([("text", column.type)])) as writer:
        writer.write_batch(pa.record_batch([column], ["text"]))
    assert texts(path) == ["a\nb", None if levels == 1 else "", "e\nf"]


def test_a_path_that_ends_early_names_the_value(tmp_path: Path) -> None:
    """The message has the value and its place, in the words of the file."""
    path = write(tmp_path, "jsonl", [{"a": {"t": "x"}}, {"a": 3}])
    with pytest.raises(SourceError, match="'a' is 3, not an object"):
        texts(path, column="a.t")


@pytest.mark.parametrize("text", ["", "text", "{}", "{a", "a}", "{a}{"])
def test_templates_that_are_refused(text: str) -> None:
    """A template needs a column, and every brace needs its partner."""
    with pytest.raises(UsageError):
        parse_template(text)
