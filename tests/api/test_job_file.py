"""A job as a file: what --print-job prints, --job reads, and Python reads the same."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_JSON, SMALL_TIKTOKEN
from tokenmill.api.job_file import KEYS, as_toml
from tokenmill.api.prepare import read_call
from tokenmill.cli import cli
from tokenmill.cli.options import DeclaredOption
from tokenmill.errors import UsageError
from tokenmill.options import PrepareOptions
from tokenmill.sources import discover

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="{}\0"), min_size=1).filter(lambda text: text != "none")
# Options of the job with any of their values, as the command line takes them.
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "bos": st.sampled_from(["1", "none"]),
    "separator": TEXT,
    "join": TEXT,
    "template": TEXT.map(lambda text: f"{{title}}{text}{{text}}"),
    "keep": st.lists(st.sampled_from(["id", "url", "ä"]), min_size=1, unique=True).map(",".join),
    "where": st.sampled_from(["language = 'en'", "score > 0.5 and url is not null"]),
    "min_tokens": st.integers(0, 5).map(str),
    "max_tokens": st.integers(5, 9).map(str),
    "unit_bytes": st.sampled_from(["1", "16M"]),
    "limit_units": st.integers(1, 9),
    "max_document_bytes": st.sampled_from(["1k", "2GB"]),
    "dedup": st.sampled_from(["exact", "none"]),
    "split": st.lists(st.sampled_from(["train", "test"]), min_size=1, unique=True),
    "force": st.just(True),
    "shuffle": st.integers(0, 2**64 - 1),
    "to": st.just(["nanogpt", "llmc"]),
}
SETS = st.fixed_dictionaries(
    {"tokenizer": st.sampled_from([[SMALL_JSON], [SMALL_TIKTOKEN]]), "eot": st.sampled_from(["0", "none", "7"])},
    optional=OPTIONS,
).map(lambda options: options | ({"to": ["llmc"]} if "shuffle" in options else {}))


def arguments(options: dict[str, Any]) -> list[str]:
    """A command line with these options."""
    words = []
    flags = {each.name: each for each in cli.commands["prepare"].params if isinstance(each, DeclaredOption)}
    for name, value in options.items():
        for each in value if flags[name].multiple else [value]:
            text = str(each).replace("\\", "\\\\") if name in {"separator", "join", "template"} else str(each)
            words.append(flags[name].opts[0] if flags[name].is_flag else f"{flags[name].opts[0]}={text}")
    return words


def digest(source: Path, options: dict[str, Any]) -> str:
    """The digest of the job of these options."""
    call = read_call(PrepareOptions(**options))
    return call.request(call.tokenizers[0], discover([str(source)]), None).job.digest()


@settings(max_examples=10, deadline=None)
@given(SETS)
def test_a_printed_job_is_the_same_job(tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]) -> None:
    """For any options: those of the file have the job's digest, and print the same file again."""
    folder = tmp_path_factory.mktemp("job")
    (folder / "a.jsonl").write_text('{"text": "a"}\n')
    (folder / "job.toml").write_text(
        command.run("prepare", folder / "a.jsonl", *arguments(options), "--print-job").stdout
    )
    read = tomllib.loads((folder / "job.toml").read_text())
    assert read == {"sources": [str(folder / "a.jsonl")], **options}
    assert command.run("plan", "--job", folder / "job.toml", "--print-job").stdout == (folder / "job.toml").read_text()
    assert digest(folder / "a.jsonl", read) == digest(folder / "a.jsonl", {"sources": folder / "a.jsonl", **options})


def test_a_job_file_is_a_whole_command(tmp_path: Path) -> None:
    """For the command line and Python; what is given beside it wins, also with the value of a default."""
    source, job = tmp_path / "a.jsonl", tmp_path / "job.toml"
    source.write_text('{"body": "one", "text": "two"}\n')
    options = {"sources": source, "tokenizer": SMALL_JSON, "out": tmp_path / "one", "column": "body", "workers": 1}
    job.write_text(as_toml({**options, "max_bad": 0.5}) + "# a comment\n")
    command.run("prepare", "--job", job)
    assert tokenmill.open(tmp_path / "one").decode(0).startswith("one")
    assert tokenmill.prepare(job=job).units_done_now == 0
    assert tokenmill.plan(job=job, eot=3).end_token == 3
    tokenmill.prepare(job=job, out=tmp_path / "two", column="text")
    assert tokenmill.open(tmp_path / "two").decode(0).startswith("two")
    printed = command.run("prepare", source, "--job", job, "--max-bad", "0.1%", "--print-job").stdout
    assert tomllib.loads(printed)["max_bad"] == "0.1%"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("out = 'a'\nshard-tokens = 5", ["'shard-tokens', line 2", "Did you mean shard_tokens?"]),
        ("job = 'a.toml'", ["'job', line 1"]),
        ("executor = 'x'", ["'executor', line 1"]),
        ("[prepare]\nout = 'a'", ["'prepare', line 1"]),
        ("\n\n workers = '2'", ["workers has to be a whole number, not '2' (str), line 3"]),
        ("force = 1", ["force has to be True or False, not 1 (int), line 1"]),
        ("keep = ['a', 1]", ["keep has to be a text or a list of texts, not ['a', 1] (list), line 1"]),
        ("workers = 0", ["--workers must be at least 1, line 1"]),
        ("out = 'a'\nout = 'b'", ["not valid TOML", "line 2"]),
        ("out", ["not valid TOML", "line 1"]),
    ],
)
def test_a_mistake_in_a_job_file_is_named(tmp_path: Path, text: str, lines: list[str]) -> None:
    """With its key and its line, before any work."""
    job = tmp_path / "job.toml"
    job.write_text(f"{text}\n")
    stderr = command.run("prepare", "--job", job, code=2).stderr
    assert [line for line in (str(job), *lines) if line not in stderr] == []


def test_a_job_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """With the reason; the same for bytes that are not UTF-8."""
    with pytest.raises(UsageError, match=r"job file .*job.toml cannot be read\n.*No such file"):
        tokenmill.prepare(job=tmp_path / "job.toml")
    (tmp_path / "job.toml").write_bytes(b"out = '\xff'")
    with pytest.raises(UsageError, match="not valid TOML"):
        tokenmill.prepare(job=tmp_path / "job.toml")


def test_each_option_is_a_key() -> None:
    """But for the file itself and objects of Python."""
    options = {each.name for each in cli.commands["prepare"].params if isinstance(each, DeclaredOption)}
    assert set(KEYS) == options - {"job"} | {"sources"}
