"""`--like` takes the options of a store. Each can be replaced, and `none` switches it off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_TIKTOKEN
from tokenmill.errors import SourceError, UsageError
from tokenmill.storage import folder_at
from tokenmill.store.job import Job, require_run

ROWS = [{"text": f"words of row {number}", "id": number, "title": "t", "parts": ["a", "b"]} for number in range(5)]
OPTIONS: dict[str, Any] = {
    "keep": "id",
    "where": "id >= 0",
    "dedup": "exact",
    "min_tokens": 1,
    "max_tokens": 1000,
    "template": "{title} {text}",
    "join": "; ",
    "deny": "deny.jsonl",
}


def write(path: Path, *columns: str) -> Path:
    """JSON Lines with some of the columns."""
    path.write_text("".join(json.dumps({name: row[name] for name in columns}) + "\n" for row in ROWS))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every option that --like takes, and sources that lack the columns."""
    folder = tmp_path_factory.mktemp("like")
    write(folder / "all.jsonl", *ROWS[0])
    write(folder / "text.jsonl", "text")
    (folder / "deny.jsonl").write_text('{"column": "id", "value": 3}\n')
    options = {**OPTIONS, "deny": folder / "deny.jsonl"}
    tokenmill.prepare(folder / "all.jsonl", tokenizer=SMALL_TIKTOKEN, eot=0, workers=1, out=folder / "store", **options)
    return folder


def job(store: Path) -> Job:
    """The job of a store."""
    return require_run(folder_at(str(store))).job


def value(job: Job, name: str) -> object:
    """An option of a job; None if it is switched off."""
    found, (default,) = getattr(job, name), [field.default for field in fields(Job) if field.name == name]
    return None if found == default else found


def test_everything_is_taken(folder: Path, tmp_path: Path) -> None:
    """Without other options, the job is that of the store."""
    tokenmill.prepare(folder / "all.jsonl", like=folder / "store", out=tmp_path / "out", workers=1)
    assert job(tmp_path / "out") == job(folder / "store")
    assert all(value(job(tmp_path / "out"), name) is not None for name in OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_is_switched_off(folder: Path, tmp_path: Path, name: str) -> None:
    """By `none`, in Python; all others stay."""
    given: dict[str, Any] = {name: "none"}
    tokenmill.prepare(folder / "all.jsonl", like=folder / "store", out=tmp_path / "out", workers=1, **given)
    now = job(tmp_path / "out")
    assert [other for other in OPTIONS if value(now, other) is None] == [name]


def test_all_are_switched_off_by_the_command(folder: Path, tmp_path: Path) -> None:
    """Then sources without the columns are read. Before, the message names the value that helps."""
    options = (
        "prepare",
        folder / "text.jsonl",
        "--like",
        folder / "store",
        "--workers",
        "1",
        "--out",
        tmp_path / "out",
    )
    refused = command.run(*options, "--template", "none", code=1).stderr
    assert "none switches them off, also after --like" in refused
    off = [word for name in OPTIONS for word in (f"--{name.replace('_', '-')}", "none")]
    command.run(*options, *off)
    assert all(value(job(tmp_path / "out"), name) is None for name in OPTIONS)


def test_the_separator_of_text_files(tmp_path: Path) -> None:
    """It is taken, and switched off in the same way."""
    (tmp_path / "in.txt").write_text("one\n\ntwo\n\nthree")
    given: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 0, "separator": "\n\n"}
    assert tokenmill.prepare(tmp_path / "in.txt", out=tmp_path / "store", workers=1, **given).documents == 3
    documents = [
        tokenmill.prepare(
            tmp_path / "in.txt", like=tmp_path / "store", separator=separator, out=tmp_path / str(separator), workers=1
        ).documents
        for separator in (None, "none")
    ]
    assert documents == [3, 1]


def test_none_without_like_is_the_default(folder: Path, tmp_path: Path) -> None:
    """As if the option had not been given."""
    given: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 0, "workers": 1, "out": tmp_path / "out"}
    off: dict[str, Any] = dict.fromkeys(OPTIONS, "none")
    tokenmill.prepare(folder / "text.jsonl", **given, **off)
    assert tokenmill.prepare(folder / "text.jsonl", **given).units_done_now == 0


@pytest.mark.parametrize("tokens", ["some", "-1", "1.5", "9" * 5000])
def test_other_words_are_refused(folder: Path, tmp_path: Path, tokens: str) -> None:
    """A limit is a number or none."""
    with pytest.raises(UsageError, match="is not a number of tokens"):
        tokenmill.prepare(folder / "text.jsonl", like=folder / "store", out=tmp_path / "out", min_tokens=tokens)


def test_a_kept_column_that_is_missing(folder: Path, tmp_path: Path) -> None:
    """The advice is not what the person does already."""
    with pytest.raises(SourceError) as refused:
        tokenmill.prepare(
            folder / "text.jsonl", like=folder / "store", template="none", out=tmp_path / "out", workers=1
        )
    assert "store of their own" not in str(refused.value)
