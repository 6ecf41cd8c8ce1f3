"""JSON arrays and pretty-printed JSON are read as JSON Lines, exactly."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill import sources
from tokenmill.errors import SourceError
from tokenmill.sources.documents import Documents, ReadOptions, SourceFile
from tokenmill.sources.json_values import ValueLines, are_values
from tokenmill.sources.missing_column import search_lines
from tokenmill.storage.untrusted.malformed import MalformedDataError

TEXT = st.text(alphabet=st.sampled_from('ab"\\{}[],:\n\r\t é日\x00'), max_size=12)
RECORD = st.fixed_dictionaries(
    {"text": TEXT, "other": st.recursive(TEXT | st.integers() | st.none(), lambda each: st.lists(each, max_size=3))}
)


def open_file(path: Path) -> SourceFile:
    """The file as discovery lists it."""
    return sources.file_at(sources.discover([str(path)]).table, 0)


def read(path: Path, **options: Any) -> list[Documents]:
    """The batches of a file."""
    file, read_options = open_file(path), ReadOptions(on_bad="quarantine", **options)
    slices = sources.split_file(file, read_options, 1)
    assert len(slices.start) == 1
    return list(sources.read_documents(file, slices.whole(), read_options))


@given(
    records=st.lists(RECORD, max_size=5),
    indent=st.sampled_from([None, 0, 1, "\t"]),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=4),
    is_array=st.booleans(),
)
def test_the_lines_are_the_values(records: list[Any], indent: Any, sizes: list[int], is_array: bool) -> None:
    """Whatever the layout and the chunks are: one line for each value, and no byte more or less."""
    values = records if is_array else [json.dumps(each, indent=indent) for each in records]
    content = (json.dumps(values, indent=indent) if is_array else "\n".join(values)).encode()
    lines, converted, position, number = ValueLines(), b"", 0, 0
    while position < len(content):
        size = sizes[number % len(sizes)]
        converted += lines.convert(content[position : position + size])
        position, number = position + size, number + 1
    assert lines.is_complete
    assert len(converted) == len(content)
    assert [json.loads(line) for line in converted.splitlines() if line.strip()] == records


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (b'[{"text": 1}]', True),
        (b" \n[\r\n  {", True),
        (b"[]", True),
        (b'\xef\xbb\xbf{\r\n  "text"', True),
        (b"{\n}", True),
        (b'{"text": "a"}\n{"text": "b"}', False),
        (b'["a", "b"]', False),
        (b"[7, 8]", False),
        (b"{\nnot JSON", False),
        (b"", False),
    ],
)
def test_the_first_bytes_decide_the_layout(start: bytes, expected: bool) -> None:
    """An array of objects, or an object whose brace is alone in its line."""
    assert are_values(start) is expected


def test_a_row_is_a_position_in_the_file(tmp_path: Path) -> None:
    """The row of a document is where its line starts, or the byte after the comma."""
    path = tmp_path / "array.json"
    content = b'[{"text": "a"}, {"text": "b"},\n {"text": null},\n {"text": "c"}]'
    path.write_bytes(content)
    (documents,) = read(path)
    rows = documents.rows.tolist()
    assert [content[row:].lstrip()[:12] for row in rows] == [
        b'{"text": "a"',
        b'{"text": "b"',
        b'{"text": nul',
        b'{"text": "c"',
    ]
    assert documents.text.to_pylist() == ["a", "b", None, "c"]


@pytest.mark.parametrize("batch_bytes", [1, 7, 64, 4 << 20])
def test_columns_and_text_have_the_same_rows(tmp_path: Path, batch_bytes: int) -> None:
    """Filters, kept columns and text see the same rows, for any size of batches."""
    path = tmp_path / "array.json"
    path.write_text(json.dumps([{"text": f'"{n}" {{', "n": n} for n in range(50)], indent=2))
    batches = read(path, batch_bytes=batch_bytes)
    rows = np.concatenate([batch.rows for batch in batches])
    assert [text for batch in batches for text in batch.text.to_pylist()] == [f'"{n}" {{' for n in range(50)]
    (columns,) = sources.read_columns(open_file(path), None, ("n",), ReadOptions(batch_bytes=batch_bytes))
    assert columns.rows.tolist() == rows.tolist()
    assert columns.values["n"].to_pylist() == list(range(50))


def test_an_element_that_is_no_document_is_a_bad_row(tmp_path: Path) -> None:
    """The elements beside it are documents."""
    path = tmp_path / "array.json.gz"
    path.write_bytes(gzip.compress(b'[{"text": "a"}, 7, "b", {"text": 8}, {"text": "d"}]'))
    (documents,) = read(path)
    assert documents.text.to_pylist() == ["a", "d"]
    assert len(documents.bad) == 3


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_truncated_array_is_refused(tmp_path: Path, cut: int) -> None:
    """A missing bracket is noticed, although every line before it is whole."""
    path = tmp_path / "array.json"
    content = json.dumps([{"text": "a"}, {"text": "b"}]).encode()
    path.write_bytes(content[:-cut])
    with pytest.raises(SourceError, match="ends within a JSON value"):
        read(path)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ([(b'"text 100"', b'"text" 100"'), (b'"text 200"', b'"text" 200"')], "text outside of quotes"),
        ([(b'"text 100"}, {', b'"text 100", {'), (b'"text 200"}, {', b'"text 200"}}, {')], "is not JSON"),
        ([(b'{"text": "text 100"}', b'[{"text": "text 100"}]')], "is an array"),
    ],
)
def test_damage_within_an_array_is_refused(tmp_path: Path, changes: list[tuple[bytes, bytes]], reason: str) -> None:
    """It would make one bad row of many documents, and --max-bad counts rows."""
    content = json.dumps([{"text": f"text {number}"} for number in range(300)]).encode()
    for change in changes:
        assert change[0] in content
        content = content.replace(*change)
    path = tmp_path / "array.json"
    path.write_bytes(content)
    with pytest.raises(SourceError, match=reason):
        read(path)


def test_a_bracket_that_closes_nothing_is_refused() -> None:
    """The text is not JSON, and no line of it is trusted."""
    with pytest.raises(MalformedDataError):
        ValueLines().convert(b'[{"text": "a"}]]')


def test_numbers_that_only_python_writes(tmp_path: Path) -> None:
    """`json.dump` writes NaN and Infinity, which JSON does not have. They are read, as in JSON Lines."""
    records = [{"text": "a", "score": float("nan")}, {"text": "b", "score": float("-inf")}]
    (tmp_path / "a.json").write_text(json.dumps(records))
    (batch,) = read(tmp_path / "a.json")
    assert batch.text.to_pylist() == ["a", "b"]


def test_an_empty_array_has_no_documents(tmp_path: Path) -> None:
    """It is read, and gives nothing."""
    path = tmp_path / "array.json"
    path.write_bytes(b"[\n]\n")
    assert read(path) == []


def test_a_missing_column_is_named_before_reading(tmp_path: Path) -> None:
    """The error lists the keys of the objects. A key of the last object is found."""
    path = tmp_path / "array.json"
    path.write_text(json.dumps([{"content": "a", "id": 1}] * 9000 + [{"text": "x"}], indent=2))
    file = open_file(path)
    assert search_lines([file], "text") == (file, None)
    found, error = search_lines([file], "txet")
    assert found is None
    assert "columns      content, id\n" in str(error)
