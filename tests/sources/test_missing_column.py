"""A column that no line of JSON Lines has is an error before any work, also as a path or in a template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.inline_executor import InlineExecutor
from tokenmill import sources
from tokenmill.errors import SourceError
from tokenmill.pipeline.split_sources import plan_units
from tokenmill.sources.documents import ReadOptions

ROW = {"title": "T", "data": {"text": "x"}, "messages": [{"role": "user"}]}


def plan(directory: Path, *files: list[dict[str, Any]], **options: Any) -> int:
    """How many units the files have, each of which is a list of objects."""
    for index, rows in enumerate(files):
        (directory / f"{index}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = sources.discover([str(directory)]).table
    return len(plan_units(table, ReadOptions(**options), 1 << 20, None, InlineExecutor()))


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
    assert plan(tmp_path, [ROW], [ROW], column="messages.role", required=("data.text",)) == 1
