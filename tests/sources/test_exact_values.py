"""Columns are those that were asked for, and their values are exact: what --where, --deny and --keep see."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenmill import sources
from tokenmill.sources.columnar import text_column
from tokenmill.sources.documents import ReadOptions, SourceFile
from tokenmill.sources.plain_values import inferred, unify
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.store.deny import DenyList

PAIR = pa.struct([("role", pa.string()), ("content", pa.string())])
BIG = 1580661436132757506


class PairType(pa.ExtensionType):
    """A type of another library, stored as a struct."""

    def __init__(self) -> None:
        super().__init__(PAIR, "tokenmill.test.pair")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> PairType:
        del storage_type, serialized
        return cls()


KINDS = {
    "list": pa.list_(PAIR),
    "large_list": pa.large_list(PAIR),
    "fixed": pa.list_(PAIR, 1),
    "list_view": pa.list_view(PAIR),
    "large_list_view": pa.large_list_view(PAIR),
    "map": pa.map_(pa.string(), PAIR),
    "struct": PAIR,
    "nested": pa.struct([("a", pa.list_view(pa.struct([("x", PAIR), ("y", pa.int64())])))]),
    "extension": PairType(),
    "dictionary": pa.dictionary(pa.int32(), pa.string()),
}
LEAVES = {"map": 3, "nested": 3, "dictionary": 1}


@pytest.mark.parametrize("name", KINDS)
def test_columns_before_the_text_are_counted(name: str) -> None:
    """A file of Parquet has a column for each field, and the text is found after all of them."""
    schema = pa.schema([("before", KINDS[name]), ("text", pa.string())])
    file = SourceFile(0, "a.parquet", "parquet", 1, "")
    assert text_column(file, schema, "text").leaf == LEAVES.get(name, 2)


@pytest.mark.parametrize("name", ["list", "list_view", "large_list_view"])
def test_the_text_is_read_after_nested_columns(tmp_path: Path, name: str) -> None:
    """Without the footer from the plan, as in a unit of several small files."""
    pair: dict[str, Any] = {"role": "SA", "content": "SB"}
    table = pa.table({"x": pa.array([[pair]] * 2, KINDS[name]), "y": ["no", "no"], "text": ["t1", "t2"]})
    try:
        pq.write_table(table, tmp_path / "a.parquet")
    except pa.ArrowNotImplementedError:
        pytest.skip("this pyarrow does not write such columns")
    file = sources.file_at(sources.discover([str(tmp_path / "a.parquet")]).table, 0)
    slices = sources.split_file(file, ReadOptions(), 1 << 30)
    (documents,) = sources.read_documents(file, slices.whole(), ReadOptions())
    assert documents.text.to_pylist() == ["t1", "t2"]
    (columns,) = sources.read_columns(file, slices.whole(), ("y",), ReadOptions())
    assert columns.values["y"].to_pylist() == ["no", "no"]


def values(tmp_path: Path, lines: list[str], name: str) -> list[Any]:
    """The values of a key in JSON Lines."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    file = sources.file_at(sources.discover([str(path)]).table, 0)
    (columns,) = sources.read_columns(file, None, (name,), ReadOptions())
    return list(columns.values[name].to_pylist())


@pytest.mark.parametrize("other", ["7" * 5000, "[" * 1100 + "]" * 1100])
@pytest.mark.parametrize("name", ["lang", "meta.lang"])
def test_lines_that_python_cannot_parse_have_values(tmp_path: Path, other: str, name: str) -> None:
    """Pyarrow reads the text of such a line, so a filter or a list has to see its columns."""
    rows = [f'{{"text": "t", "lang": "{lang}", "meta": {{"lang": "{lang}"}}, "n": {other}}}' for lang in ("de", "en")]
    rows.append('{"text": "\\ud800", "lang": "fr", "meta": {"lang": "fr"}}')  # pyarrow refuses this block
    assert values(tmp_path, rows, name) == ["de", "en", "fr"]


@pytest.mark.skipif(not hasattr(pa, "uuid"), reason="this pyarrow reads UUIDs as bytes")
def test_uuids_are_text(tmp_path: Path) -> None:
    """Their bytes are not UTF-8. A null stays null."""
    wanted = [UUID(int=BIG << 64), None, UUID(int=5)]
    storage = pa.array([None if value is None else value.bytes for value in wanted], pa.binary(16))
    ids = pa.ExtensionArray.from_storage(pa.uuid(), storage)
    pq.write_table(pa.table({"text": ["a", "b", "c"], "id": ids}), tmp_path / "a.parquet")
    file = sources.file_at(sources.discover([str(tmp_path / "a.parquet")]).table, 0)
    slices = sources.split_file(file, ReadOptions(), 1 << 30)
    (columns,) = sources.read_columns(file, slices.whole(), ("id",), ReadOptions())
    assert columns.values["id"].to_pylist() == [None if value is None else str(value) for value in wanted]


def test_a_line_that_is_not_json_has_no_values(tmp_path: Path) -> None:
    """It is a bad row."""
    assert values(tmp_path, ['{"a": 1}', "{broken}", '{"a": "x"}'], "a") == ["1", "x"]


def test_whole_numbers_beside_fractions_are_not_rounded(tmp_path: Path) -> None:
    """A number with more digits than a floating point number has makes the column text."""
    rows = [json.dumps({"id": value}) for value in (2**53 + 1, 0.5, 2**53)]
    assert values(tmp_path, rows, "id") == ["9007199254740993", "0.5", "9007199254740992"]
    rows = [json.dumps({"id": value}) for value in (2**53 - 1, 0.5)]
    assert values(tmp_path, rows, "id") == [2.0**53 - 1, 0.5]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([f"{BIG}", f"{BIG + 1}"], [BIG, BIG + 1]),
        (["9223372036854775808", "5"], ["9223372036854775808", "5"]),
        ([f"{BIG}", "0.5"], [f"{BIG}", "0.5"]),
        (["12345678901234567.5", "1"], ["12345678901234567.5", "1"]),
        (["12345678901234567e0", "1"], ["12345678901234567e0", "1"]),
        (["1e400", "2e400"], ["1e400", "2e400"]),
        (["1.50", "1e5"], [1.5, 100000.0]),
        (["0.9534847736358643", "0.5"], [0.9534847736358643, 0.5]),
        (["7", "0"], [7, 0]),
    ],
)
def test_numbers_of_csv_keep_their_digits(fields: list[str], expected: list[Any]) -> None:
    """A type that would lose digits is not taken."""
    assert inferred(pa.array(fields)).to_pylist() == expected


def test_numbers_of_two_files_keep_their_digits() -> None:
    """Whole numbers of one file and fractions of another become text if a whole number would be rounded."""
    whole, fractions = pa.array([2**53 + 1]), pa.array([0.5])
    assert [array.to_pylist() for array in unify([whole, fractions])] == [["9007199254740993"], ["0.5"]]
    assert [array.to_pylist() for array in unify([pa.array([5]), fractions])] == [[5.0], [0.5]]


@pytest.mark.parametrize("wanted", ["1.50", "1.5", "150e-2"])
def test_numbers_are_denied_in_any_spelling(wanted: str) -> None:
    """A list may have a number as it is written in the file."""
    rules = DenyList(values={"n": [wanted, "x"]})
    table = pa.table({"n": [1.5, 2.0]})
    assert rules.matches(table).tolist() == [True, False]
    assert wanted in rules.matched(table)["n"][0]
    assert rules.matches(pa.table({"n": ["1.5", "1.50"]})).tolist() == [wanted == "1.5", wanted == "1.50"]


def test_another_column_in_a_batch_is_refused(tmp_path: Path) -> None:
    """A reader that finds another column than it was asked for does not use it."""
    file = SourceFile(0, str(tmp_path / "a.parquet"), "parquet", 1, "")
    path = text_column(file, pa.schema([("text", pa.string())]), "text")
    with pytest.raises(MalformedDataError, match="where the column text has to be"):
        path.text(pa.record_batch({"y": ["no"]}), "")
