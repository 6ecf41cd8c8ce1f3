"""A run that loses many of its rows because they have no text fails, with the counts, examples and the option."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.inline_executor import InlineExecutor
from tokenmill.errors import JobChanged, RunFailed, UsageError
from tokenmill.results import PrepareResult


def write_lines(path: Path, good: int, **lines: int) -> str:
    """JSON Lines with so many documents, rows without the column, and nulls."""
    rows: list[dict[str, Any]] = [{"text": "abc"}] * good + [{"content": "abc"}] * lines.get("missing", 0)
    rows += [{"text": None}] * lines.get("null", 0)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def prepare(source: str, out: Path, **options: Any) -> PrepareResult:
    """Prepare a store in this process."""
    return tokenmill.prepare(source, tokenizer=SMALL_JSON, out=out, executor=InlineExecutor(), **options)


def test_losing_most_of_a_corpus_fails(tmp_path: Path) -> None:
    """Rows without the column and nulls are counted apart. No option about bad documents changes that."""
    source = write_lines(tmp_path / "a.jsonl", 500, missing=4500, null=5)
    call = ("prepare", source, "--tokenizer", SMALL_JSON, "--out", tmp_path / "out")
    failed = command.run(*call, "--on-bad", "fail", "--max-bad", "0", code=1).stderr
    assert "4,505 rows of 5,005 without text: 90.01%, more than --max-skipped 1%\n" in failed
    assert re.search(r"\n +4,500  missing\n +5  null\n", failed)
    assert f"first        {source}, line 501 (byte 8,000): missing\n" in failed
    assert "Check the column 'text'" in failed
    assert failed.endswith("--max-skipped 100%\n")
    done = command.run(*call, "--max-skipped", "100%").stdout
    assert "4,505 rows without text (4,500 missing, 5 null)" in done
    assert "4,500 missing, 5 null" in command.run("stats", tmp_path / "out").stdout
    tokenmill.verify(tmp_path / "out", all=True, workers=1)


def test_nulls_of_parquet_are_counted(tmp_path: Path) -> None:
    """With the number of the first row. A limit that is met is no error."""
    source = write_parquet(tmp_path / "a.parquet", ["x"] * 97 + [None] * 97)
    with pytest.raises(RunFailed, match=r"97 rows of 194 without text: 50\.00%") as caught:
        prepare(source, tmp_path / "out")
    assert f"{source}, row 97: null" in caught.value.text
    done = prepare(source, tmp_path / "out", max_skipped=0.5)
    assert (done.documents, done.skipped_reasons) == (97, {"null": 97})
    with pytest.raises(RunFailed, match="more than max_skipped"):  # the limit is not part of the job
        prepare(source, tmp_path / "out", max_skipped="40%")


def test_a_run_without_hope_is_given_up(tmp_path: Path) -> None:
    """Not every unit is tokenized if the rows of the first ones are too many already."""
    texts = ["x" * 100] * 10 + [None] * 90
    source = write_parquet(tmp_path / "a.parquet", texts * 10, row_group_size=100)
    with pytest.raises(RunFailed, match=r"0 of the [1-5]00 rows read so far without text: 90"):
        prepare(source, tmp_path / "out", unit_bytes=1000, workers=1)


@pytest.mark.parametrize(
    ("good", "null", "limit", "fails"),
    [
        (5, 1, "1%", False),
        (11, 10, "1%", False),
        (10, 10, "1%", False),
        (9, 10, "1%", True),
        (0, 1, "1%", True),
        (100, 11, "1%", True),
        (1089, 11, "1%", False),
        (5, 1, "0", True),
        (5, 0, "0", False),
    ],
)
def test_a_few_rows_of_a_small_corpus_are_accepted(
    tmp_path: Path, good: int, null: int, limit: str, fails: bool
) -> None:
    """Ten rows are not too many if most rows have text, unless the limit is 0."""
    source = write_lines(tmp_path / "a.jsonl", good, null=null)
    if not fails:
        assert prepare(source, tmp_path / "out", max_skipped=limit).documents == good
        return
    with pytest.raises(RunFailed, match="max_skipped"):
        prepare(source, tmp_path / "out", max_skipped=limit)


def test_rows_that_an_option_leaves_out_are_not_counted(tmp_path: Path) -> None:
    """A limit is a fraction of the rows that the options let in."""
    rows = [{"text": "x", "n": 0}] * 5000 + [{"text": None, "n": 1}] * 40 + [{"text": "y", "n": 1}] * 10
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(RunFailed, match="40 rows of 50 without text"):
        prepare(str(tmp_path / "a.jsonl"), tmp_path / "out", where="n = 1")
    assert prepare(str(tmp_path / "a.jsonl"), tmp_path / "all").documents == 5010


def test_finish_has_the_same_limit(tmp_path: Path) -> None:
    """It completes a store whose rows are within it."""
    source = write_lines(tmp_path / "a.jsonl", 10, missing=40)
    with pytest.raises(RunFailed):
        prepare(source, tmp_path / "out")
    with pytest.raises(RunFailed, match="40 rows of 50 without text"):
        tokenmill.finish(tmp_path / "out", executor=InlineExecutor())
    assert tokenmill.finish(tmp_path / "out", max_skipped=1, executor=InlineExecutor()).documents == 10


def test_a_limit_is_a_fraction(tmp_path: Path) -> None:
    """Anything else is refused before any work."""
    with pytest.raises(UsageError, match="max_skipped=2 is not a fraction"):
        prepare(write_lines(tmp_path / "a.jsonl", 1), tmp_path / "out", max_skipped="2")


SAMPLES = [
    {"prompt": "p", "completion": "c"},
    {"prompt": "p", "completion": None},
    {"prompt": "p"},
    {"completion": "\ud800"},
    {"prompt": None, "completion": None},
]


def test_half_a_sample_is_no_document(tmp_path: Path) -> None:
    """A row with a null in a column of a template is skipped and counted, unless nulls are empty text."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SAMPLES))
    call: dict[str, Any] = {"template": "{prompt} {completion}", "max_skipped": 1}
    skipped = prepare(str(tmp_path / "a.jsonl"), tmp_path / "skip", **call)
    assert (skipped.documents, skipped.skipped_reasons) == (1, {"missing": 2, "null": 2})
    kept = prepare(str(tmp_path / "a.jsonl"), tmp_path / "empty", **call, null="empty")
    assert (kept.documents, kept.skipped_reasons) == (4, {"null": 1})
    assert tokenmill.open(tmp_path / "empty").run.job.null == "empty"
    with pytest.raises(JobChanged, match=r"(?s)null=.*was empty"):
        prepare(str(tmp_path / "a.jsonl"), tmp_path / "empty", **call)
    assert prepare(str(tmp_path / "a.jsonl"), tmp_path / "skip", **call, null="skip").units_done_now == 0


def test_a_store_like_another_has_its_nulls(tmp_path: Path) -> None:
    """Unless the option, or another template or column, is given."""
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SAMPLES))
    call: dict[str, Any] = {"executor": InlineExecutor(), "max_skipped": 1}
    source = tmp_path / "a.jsonl"
    prepare(str(source), tmp_path / "like", template="{prompt} {completion}", null="empty", max_skipped=1)
    options: list[dict[str, Any]] = [{}, {"null": "skip"}, {"column": "prompt"}, {"template": "{prompt}{completion}"}]
    stores = [
        tokenmill.prepare(source, like=tmp_path / "like", out=tmp_path / str(number), **call, **each)
        for number, each in enumerate(options)
    ]
    assert [store.documents for store in stores] == [4, 1, 3, 1]


def test_null_needs_a_template(tmp_path: Path) -> None:
    """It has no effect on one column."""
    source = write_lines(tmp_path / "a.jsonl", 1)
    with pytest.raises(UsageError, match="null= needs template="):
        prepare(source, tmp_path / "out", null="empty")
    with pytest.raises(UsageError, match="null= is skip or empty, not 'drop'"):
        prepare(source, tmp_path / "out", null="drop", template="{text}")
