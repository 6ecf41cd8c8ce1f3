"""Options that have no effect on any of the sources are refused before any work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.inline_executor import InlineExecutor
from tokenmill.errors import UsageError


def write(directory: Path, *names: str) -> Path:
    """Files of these names, each with one document."""
    directory.mkdir()
    for name in names:
        if name.endswith("parquet"):
            write_parquet(directory / name, ["x"])
        else:
            text = {"jsonl": '{"text": "x"}\n', "csv": "text,id\nx,1\n"}.get(name.rpartition(".")[2], "x")
            (directory / name).write_text(text)
    return directory


@pytest.mark.parametrize(
    ("names", "option", "value", "reason"),
    [
        (["a.txt"], "column", "text", "text files have no columns"),
        (["a.txt", "b.txt.gz"], "column", "body", "text files have no columns"),
        (["a.jsonl"], "separator", "\n\n", "no source is a .txt file"),
        (["a.parquet", "b.csv"], "separator", "\n", "no source is a .txt file"),
        (["a.txt", "b.csv"], "join", "-", "no source has lists of strings"),
    ],
)
def test_an_option_without_effect_is_refused(
    tmp_path: Path, names: list[str], option: str, value: str, reason: str
) -> None:
    """In `prepare` and `plan`. Nothing is written."""
    source = write(tmp_path / "in", *names)
    given: dict[str, Any] = {option: value, "executor": InlineExecutor()}
    with pytest.raises(UsageError, match=f"{option}=.* has no effect: {reason}"):
        tokenmill.prepare(source, tokenizer=SMALL_JSON, out=tmp_path / "out", **given)
    assert not (tmp_path / "out").exists()
    call = ("plan", source, "--tokenizer", SMALL_JSON, f"--{option}", value)
    assert f"Remove --{option}." in command.run(*call, code=2).stderr


@pytest.mark.parametrize("options", [{"column": "text"}, {"separator": "\n"}, {"join": "-"}])
def test_an_option_may_be_about_some_of_the_sources(tmp_path: Path, options: dict[str, Any]) -> None:
    """A folder with text and JSON Lines needs options of both."""
    source = write(tmp_path / "in", "a.txt", "b.jsonl")
    done = tokenmill.prepare(source, tokenizer=SMALL_JSON, out=tmp_path / "out", executor=InlineExecutor(), **options)
    assert done.documents == 2


def test_options_of_another_store_are_not_refused(tmp_path: Path) -> None:
    """With --like they were not given for these sources."""
    lines, text = write(tmp_path / "lines", "a.jsonl"), write(tmp_path / "text", "a.txt")
    call: dict[str, Any] = {"executor": InlineExecutor()}
    tokenmill.prepare(text, tokenizer=SMALL_JSON, separator="\n", out=tmp_path / "first", **call)
    tokenmill.prepare(lines, like=tmp_path / "first", out=tmp_path / "second", **call)
    tokenmill.prepare(text, like=tmp_path / "second", out=tmp_path / "third", **call)


def test_a_page_is_not_written_into_a_missing_folder(tmp_path: Path) -> None:
    """The name of the folder may be misspelled."""
    source = write(tmp_path / "in", "a.txt")
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=tmp_path / "out", executor=InlineExecutor())
    page = tmp_path / "no/such/page.html"
    told = command.run("report", tmp_path / "out", "--out", page, code=2).stderr
    assert f"there is no directory {tmp_path}/no/such\n" in told
    assert "give --out a file in another directory" in told
    assert not (tmp_path / "no").exists()
    page.parent.mkdir(parents=True)
    command.run("report", tmp_path / "out", "--out", page)
    assert page.exists()
