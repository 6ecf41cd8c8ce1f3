"""Filter expressions select the rows that DuckDB selects, and mistakes are shown at their place."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.source_files import source
from tokenmill import sources
from tokenmill.errors import SourceError, UsageError
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.where import parse_where

ROWS = pa.table(
    {
        "language": ["en", "de", None, "it's", "en", ""],
        "score": [0.9, 0.8, -0.0, None, -1.5, 0.0],
        "year": pa.array([2024, 1999, None, 2000, -3, 2024], pa.int64()),
        "ok": [True, False, None, True, False, None],
        "a b": ["x", None, "y", "x", "", "z"],
    }
)

_values = {
    "language": st.sampled_from(["'en'", "'de'", "''", "'it''s'", "'zz'"]),
    "score": st.sampled_from(["0.8", "-1.5", "0", "-0.0", "1e-1", ".9"]),
    "year": st.sampled_from(["2024", "1999.5", "-3", "2000"]),
    "ok": st.sampled_from(["true", "FALSE"]),
    '"a b"': st.sampled_from(["'x'", "'y'"]),
}


@st.composite
def _comparison(draw: st.DrawFn) -> str:
    column = draw(st.sampled_from(sorted(_values)))
    operator = draw(st.sampled_from(["=", "!=", "<>", "==", "<", "<=", ">", ">=", "in", "NOT IN", "is null", "null"]))
    if operator == "is null":
        return f"{column} is null"
    if operator == "null":
        return f"{column} IS NOT NULL"
    if operator in {"in", "NOT IN"}:
        return f"{column} {operator} ({', '.join(draw(st.lists(_values[column], min_size=1, max_size=3)))})"
    return f"{column}{operator} {draw(_values[column])}"


_expressions = st.recursive(
    _comparison(),
    lambda inner: st.one_of(
        st.builds("{} and {}".format, inner, inner),
        st.builds("{} OR {}".format, inner, inner),
        st.builds("not ({})".format, inner),
        st.builds("not {}".format, inner),
    ),
    max_leaves=6,
)


@functools.cache
def database() -> Any:
    """DuckDB with the rows as `documents`: a connection for each expression takes most of the time."""
    connection = duckdb.connect(config={"threads": 1})
    return connection.register("documents", ROWS.append_column("row", pa.array(range(len(ROWS)))))


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(_expressions)
def test_an_expression_selects_the_rows_that_duckdb_selects(text: str) -> None:
    """Rows and canonical text agree with DuckDB, with nulls in every column."""
    where = parse_where(text)
    selected = database().sql(f"select row from documents where {text} order by row").fetchall()
    expected = [row for (row,) in selected]
    assert where.matches(ROWS).nonzero()[0].tolist() == expected
    assert parse_where(str(where)) == where


def test_equal_filters_have_one_canonical_text() -> None:
    """Spaces, case of keywords, spellings of operators, order of a list and resolved negations do not matter."""
    for text, canonical in (
        ("  language=='en'  AND  score>.8 ", "language = 'en' and score > 0.8"),
        ("not (a = 1 or b in ('y', 'x', 'y'))", "a != 1 and b not in ('x', 'y')"),
        ("not not a is not null", "a is not null"),
        ("(a = 1 and (b = 2 and c = true)) or d = 3", "(a = 1 and b = 2 and c = true) or d = 3"),
        ('"metadata"."lang" <> \'x\'', "metadata.lang != 'x'"),
        ('"a b" = 1 and "in" = 2', '"a b" = 1 and "in" = 2'),
    ):
        assert str(parse_where(text)) == canonical
        assert str(parse_where(canonical)) == canonical
    assert parse_where("b = 1 or meta.a < 2 or b > 3").columns == ("b", "meta.a")


@pytest.mark.parametrize(
    ("text", "place", "message"),
    [
        ("", 1, "empty"),
        ("language = 'en' an score > 1", 17, "expected and, or"),
        ("language = 'en", 12, "quote is not closed"),
        ('language = "en"', 12, "single quotes: 'en'"),
        ("language = en", 12, "single quotes: 'en'"),
        ("a = null", 5, "is null"),
        ("a = 1 and", 10, "name of a column"),
        ("(a = 1", 7, "closing parenthesis"),
        ("a in (1, 'x')", 10, "all values of a list"),
        ("a in ()", 7, "a string, a number"),
        ("a like 'x%'", 3, "expected =, !="),
        ("0.8 < a", 1, "name of a column"),
        ("a = 99999999999999999999", 5, "64 bits"),
        ("a = 1e999", 5, "too large"),
        ("a = 1; drop", 6, "unexpected character"),
        ("a is 5", 6, "null or not null"),
        ("(" * 60 + "a = 1" + ")" * 60, 52, "parentheses inside"),
        (" or ".join(["a = 1"] * 501), 4501, "comparisons"),
    ],
)
def test_a_mistake_is_shown_at_its_place(text: str, place: int, message: str) -> None:
    """The error names the character, and a caret below the text points at it."""
    with pytest.raises(UsageError) as caught:
        parse_where(text)
    assert f"at character {place}:" in caught.value.headline
    assert message in str(caught.value)
    shown, caret = caught.value.details[:2]
    assert shown[caret.index("^") : caret.index("^") + 1] == text[place - 1 : place]


def test_a_column_of_another_type_is_refused() -> None:
    """A number is not compared with text. A column without any value has no type and matches nothing."""
    with pytest.raises(SourceError, match="'language' with a number, but its values are strings"):
        parse_where("language > 5").matches(ROWS)
    empty = pa.table({"language": pa.nulls(3, pa.large_string())})
    assert not parse_where("language > 5 or language in (1, 2) or not language = true").matches(empty).any()


@pytest.mark.parametrize("where", ["n = true", "flag = 5", "flag > 1", "n in (false, true)", "span > 5", "span = true"])
def test_statistics_do_not_hide_a_comparison_of_other_types(tmp_path: Path, where: str) -> None:
    """Statistics of booleans and durations can be compared with numbers. A row group that is read gives the error."""
    path = tmp_path / "x.parquet"
    spans = pa.array([0, 1], pa.duration("s"))
    pq.write_table(pa.table({"text": ["a", "b"], "n": [2, 3], "flag": [True, False], "span": spans}), path)
    file, options = source(str(path)), ReadOptions(where=where)
    slices = sources.split_file(file, options, 1 << 20)
    with pytest.raises(SourceError, match="the filter compares the column"):
        list(sources.read_documents(file, slices.whole(), options))


def test_a_comparison_that_would_round_is_refused(tmp_path: Path) -> None:
    """A whole number beyond 2**53 is not compared with a floating point number. The error names the file."""
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "a", "id": 9007199254740993}\n')
    file, options = source(str(path)), ReadOptions(where="id > 1.5")
    slices = sources.split_file(file, options, 1 << 20)
    with pytest.raises(SourceError, match="the filter compares 9007199254740993 with floating point") as caught:
        list(sources.read_documents(file, slices.whole(), options))
    assert str(path) in caught.value.text
    assert "damaged" not in caught.value.text


@pytest.mark.parametrize("values", [[1.5], [1.0], [float("nan"), None], [1]])
@pytest.mark.parametrize("operator", ["in (9007199254740993, 0)", "not in (-9007199254740993)", "= 9007199254740993"])
def test_the_number_that_would_be_rounded_is_named(values: list[float | None], operator: str) -> None:
    """Whether a filter is refused depends on the type of the column, and not on its values."""
    rows = pa.table({"c": values})
    where = parse_where(f"c {operator}")
    if rows["c"].type == pa.int64():
        assert where.matches(rows).tolist() == [operator.startswith("not")]
        return
    with pytest.raises(SourceError, match=r"compares -?9007199254740993 with floating point numbers"):
        where.matches(rows)
    with pytest.raises(SourceError, match=r"compares -?9007199254740993 with floating point numbers"):
        parse_where("c in (0.5, 9007199254740993)").matches(rows)
    assert parse_where("c != 9007199254740993.0").matches(rows).tolist() == [value is not None for value in values]


def test_nan_satisfies_no_comparison_but_unequal() -> None:
    """A negated comparison is the opposite comparison, also for NaN."""
    rows = pa.table({"score": [float("nan"), 1.0]})
    assert parse_where("not score < 1").matches(rows).tolist() == [False, True]
    assert parse_where("score != 1").matches(rows).tolist() == [True, False]


@pytest.mark.parametrize("value", ["0", "-0", "0.0", "-0.0"])
def test_negative_zero_is_zero(value: str) -> None:
    """Also in a list, which is compared by hash."""
    table = pa.table({"score": [-0.0, 0.0, 1.0]})
    for text in (f"score = {value}", f"score in ({value})", f"score in ({value}, 7.5)"):
        assert parse_where(text).matches(table).tolist() == [True, True, False]
        assert parse_where(f"not ({text})").matches(table).tolist() == [False, False, True]
