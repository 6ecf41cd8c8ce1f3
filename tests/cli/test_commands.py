"""The command: exit codes, JSON, help, and messages that say what to do."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click
import pytest

import tokenmill
from tests.support.command import run
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tokenmill.cli import COMMANDS, cli, hints, options
from tokenmill.errors import TokenizerError, UsageError
from tokenmill.humanize import wrap
from tokenmill.sources.named_datasets import resolve_sources
from tokenmill.storage import folder_at
from tokenmill.store.part import open_part, write_part
from tokenmill.tokenization.resolve import resolve

ENGINE = ("--engine", "tiktoken")
TOKENS = ("--tokenizer", SMALL_TIKTOKEN, "--eot", "1199", *ENGINE)


@pytest.fixture
def store(tmp_path: Path, parquet: str) -> Path:
    """A store made by the command."""
    run("prepare", parquet, *TOKENS, "--out", tmp_path / "out", "--quiet")
    return tmp_path / "out"


def test_prepare_says_what_it_does_before_it_does_it(tmp_path: Path, parquet: str) -> None:
    """Begin and end tokens, tokenizer and units are printed before the run; the result goes to stdout."""
    done = run("prepare", parquet, *TOKENS, "--bos", "3", "--out", tmp_path / "out")
    for expected in ("bos          3", "eot          1199", "small.tiktoken (1,200 ids, uint16)", "engine tiktoken"):
        assert expected in done.stderr
    assert "documents    30" in done.stdout
    assert str(tmp_path / "out") in done.stdout


def test_a_run_with_nothing_to_do_is_quiet_about_it(tmp_path: Path) -> None:
    """A corpus without documents makes a complete, empty store; workers that were not needed leave no trace."""
    (tmp_path / "a.jsonl").touch()
    done = run("prepare", tmp_path / "a.jsonl", *TOKENS, "--out", tmp_path / "out", "--quiet")
    assert not done.stderr
    assert "documents    0" in done.stdout
    assert run("verify", tmp_path / "out", "--all", "--quiet").stderr == ""


def test_every_command_prints_json(tmp_path: Path, parquet: str, store: Path) -> None:
    """--json gives one JSON object on stdout for every command."""
    results = {
        name: json.loads(run(name, *arguments, "--json", "--quiet").stdout)
        for name, arguments in {
            "prepare": (parquet, *TOKENS, "--out", store),
            "plan": (parquet, *TOKENS),
            "status": (store,),
            "verify": (store, "--all"),
            "inspect": (store, "--doc", "1"),
        }.items()
    }
    assert results["prepare"]["documents"] == results["plan"]["rows"] == results["verify"]["documents"] == 30
    assert results["status"]["state"] == "complete"
    assert results["verify"]["documents_compared"] == 30
    assert results["inspect"]["row"] == 1
    assert results["inspect"]["text"].startswith("A unit is the grain of work")


def test_inspect_shows_tokens_source_and_row(store: Path, parquet: str) -> None:
    """A document is shown token by token, special spellings and odd bytes readable, with its source and row."""
    shown = run("inspect", store, "--doc", "3").stdout
    assert f"source       {parquet}" in shown
    assert "row          3" in shown
    tokens = re.findall(r'^ *([\d,]+)  "(.*)"$', shown, re.MULTILINE)
    ids = json.loads(run("inspect", store, "--doc", "3", "--json").stdout)["tokens"]
    assert [int(token.replace(",", "")) for token, _ in tokens] == ids
    assert [text for _, text in tokens][:2] == ["def", " add"]
    assert "document     29\n" in run("inspect", store, "--doc", "-1").stdout
    overview = run("inspect", store).stdout
    assert "documents    30" in overview
    assert "eot          1199" in overview
    assert "there is no document 30" in run("inspect", store, "--doc", "30", code=2).stderr


def test_skipped_rows_can_be_listed(tmp_path: Path) -> None:
    """Rows that are not in the store are listed with file, row and reason."""
    source = write_parquet(tmp_path / "a.parquet", ["a", None, None, "b"])
    done = run("prepare", source, *TOKENS, "--out", tmp_path / "out")
    assert "2 rows without text" in done.stdout
    assert run("inspect", tmp_path / "out", "--skipped").stdout == f"{source}  rows 1 to 2  null\n"


def test_usage_errors_exit_with_2(tmp_path: Path, parquet: str) -> None:
    """A call that cannot be right does nothing and exits with 2."""
    out = tmp_path / "out"
    assert "no tokenizer called 'gpt9'" in run("prepare", parquet, "-t", "gpt9", "--out", out, code=2).stderr
    assert "no tokenizer is given" in run("prepare", parquet, "--out", out, code=2).stderr
    assert "is not a size" in run("prepare", parquet, *TOKENS, "--memory", "lots", "--out", out, code=2).stderr
    assert "ids go from 0 to 1199" in run("prepare", parquet, *TOKENS[:2], "--eot", "1200", "--out", out, code=2).stderr
    assert "no stores on the Hub" in run("prepare", parquet, *TOKENS, "--out", "hf://datasets/a/b", code=2).stderr
    assert "ftp:// is not known" in run("prepare", parquet, *TOKENS, "--out", "ftp://host/x", code=2).stderr
    assert "s3:// names no bucket" in run("prepare", parquet, *TOKENS, "--out", "s3://", code=2).stderr
    assert "--endpoint needs http://" in run("status", "s3://b/x", "--endpoint", "127.0.0.1:9000", code=2).stderr
    assert "not a directory" in run("plan", parquet, *TOKENS, "--cache", "s3://bucket/kept", code=2).stderr
    assert not (out / "run.json").exists()


@pytest.mark.fast
@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("s3:/bucket/run", "Write s3://bucket/run"),
        ("s3://bucket/a/../b", "a part that is '..'"),
        ("s3://bucket//run", "an empty part"),
        ("s3://bucket/./web", "a part that is '.'"),
        ("S3:///x", "Write s3://BUCKET/FOLDER"),
        ("s3://key:hidden@bucket/run", "Set AWS_ACCESS_KEY_ID"),
        ("az://hidden@container/run", "Set AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3://bucket/run?X-Amz-Signature=hidden", "nothing belongs after a ?"),
        ("https://key:hidden@host/x.parquet", "https:// is not known"),
        ("https://host/x.parquet?token=hidden", "https:// is not known"),
    ],
)
def test_odd_addresses_are_refused(address: str, said: str) -> None:
    """As a store or as a source, an address that cannot be meant is a usage error, and no secret in it is repeated."""
    for use in (folder_at, resolve_sources):
        with pytest.raises(UsageError) as raised:
            use(address)
        assert said in str(raised.value)
        assert "hidden" not in str(raised.value)


@pytest.mark.fast
def test_addresses_of_the_web_are_told_how_to_be_read() -> None:
    """A page of the Hub has an address that can be read; anything else has to be downloaded first."""
    with pytest.raises(UsageError, match=r"Write hf://datasets/org/name@main/data/a\.parquet"):
        resolve_sources("https://huggingface.co/datasets/org/name/resolve/main/data/a.parquet?download=true")
    with pytest.raises(UsageError, match="Download it first"):
        resolve_sources("http://host/a.parquet")


@pytest.mark.fast
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"cache": ""}, "given        nothing"),
        ({"cache": "s3:/kept"}, "--cache is not a directory of this machine"),
        ({"endpoint": "http://key:hidden@host:9000"}, "given        ...@host:9000"),
        ({"endpoint": "https://host/?token=hidden"}, "without a user name or password"),
        ({"region": "us east"}, "--region is not the name of a region"),
        ({"region": ""}, "given        ''"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(words: dict[str, Any], said: str) -> None:
    """What is no directory and no server changes nothing, and is shown without what may be secret."""
    before = dict(os.environ)
    with pytest.raises(UsageError) as raised, tokenmill.using(**words):
        pass
    assert said in raised.value.text
    assert "hidden" not in raised.value.text
    assert dict(os.environ) == before


def test_failures_exit_with_1_and_say_what_to_do(tmp_path: Path, parquet: str, store: Path) -> None:
    """What cannot be found, read or mixed is told in sentences, with the way out."""
    out = tmp_path / "other"
    message = run("prepare", parquet, *TOKENS, "--column", "body", "--out", out, code=1).stderr
    assert "body" in message
    assert "text" in message
    changed = run("prepare", parquet, *TOKENS, "--unit-bytes", "777", "--out", store, code=1).stderr
    assert "another --out" in changed
    assert f"  run          {store}\n  --unit-bytes was " in changed


@pytest.mark.parametrize(
    ("command", "message", "suggestion"),
    [
        (
            ("prepare", "corpus/a.parqet", *TOKENS, "--out", "new"),
            "no such file or directory: corpus/a.parqet",
            "a.parquet",
        ),
        (("prepare", "corpse/a.parquet", *TOKENS, "--out", "new"), "no such file or directory", "corpus/a.parquet"),
        (("prepare", "corpus/*.json", *TOKENS, "--out", "new"), "no file matches corpus/*.json", None),
        (("prepare", "corpus", "-t", "smal.json", "--out", "new"), "no such tokenizer file: smal.json", "small.json"),
        (("status", "stroe"), "no such store", "store"),
        (("verify", "stroe"), "no such store", "store"),
        (("locate", "stroe", "3"), "no such store or file: stroe", "store"),
        (("status", "corpus"), "is not a tokenmill store", None),
    ],
)
def test_missing_inputs_are_usage_errors_that_suggest_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], message: str, suggestion: str | None
) -> None:
    """A missing source, store or tokenizer file exits with 2, and similar names are suggested."""
    monkeypatch.chdir(tmp_path)
    for folder in ("corpus", "store"):
        (tmp_path / folder).mkdir()
    write_parquet(tmp_path / "corpus/a.parquet", ["a"])
    (tmp_path / "small.json").touch()
    error = run(*command, code=2).stderr
    assert error.startswith("error: ")
    assert message in error
    assert ("Did you mean" in error) == (suggestion is not None)
    assert suggestion is None or f"{tmp_path}/{suggestion.removeprefix('corpus/')}".rpartition("/")[2] in error
    assert not (tmp_path / "new/run.json").exists()


def test_usage_errors_look_like_other_errors() -> None:
    """A wrong option is an `error:` with the usage and the command for help."""
    lines = run("status", "--wrong", code=2).stderr.splitlines()
    assert lines[0].startswith("error: No such option")
    assert lines[1].startswith("  usage        ")
    assert lines[2].endswith("status --help")


def test_a_vocabulary_that_cannot_be_had_says_how_to_get_it(tmp_path: Path, parquet: str) -> None:
    """Without network and cache, the message names TIKTOKEN_CACHE_DIR."""
    done = run(
        "prepare", parquet, "-t", "gpt2", "--out", tmp_path / "out", code=75,
        TIKTOKEN_CACHE_DIR=str(tmp_path), HTTPS_PROXY="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9",
    )  # fmt: skip
    assert "TIKTOKEN_CACHE_DIR" in done.stderr


def test_verify_exits_with_3_on_damage(store: Path) -> None:
    """A flipped bit in a part is found, named, and told apart from other failures."""
    part = max((store / "parts").iterdir())
    data = bytearray(part.read_bytes())
    data[len(data) // 2] ^= 1
    part.write_bytes(data)
    message = run("verify", store, code=3).stderr
    assert str(part) in message
    assert "checksum" in message


def test_verify_all_finds_wrong_tokens(tmp_path: Path, store: Path) -> None:
    """Tokens that are not what the sources give are found by --all even if their checksum is right."""
    folder = folder_at(str(store))
    summary, content = open_part(folder, 0)
    tokens = content.tokens.copy()
    tokens[5] += 1
    (store / "parts" / "00000000.arrow").unlink()
    write_part(folder, summary, type(content)(tokens, content.offsets, content.source, content.row))
    assert "manifest" in run("verify", store, code=3).stderr
    assert "row 0 has other tokens" in run("verify", store, "--all", code=3).stderr


@pytest.mark.fast
@pytest.mark.parametrize("command", [cli, *cli.commands.values()], ids=lambda command: command.name)
def test_every_command_and_option_has_help(command: click.Command) -> None:
    """Every command says what it does and ends with an example; every option says what it is."""
    assert command.help
    assert "Example:" in (command.epilog or command.help)
    for parameter in command.params:
        assert isinstance(parameter, click.Argument) or parameter.help


@pytest.mark.fast
def test_the_list_of_commands_has_whole_sentences() -> None:
    """On a terminal of 80 columns no summary is cut off."""
    for name, command in cli.commands.items():
        assert not command.get_short_help_str(80 - 6 - max(map(len, cli.commands))).endswith("..."), name


@pytest.mark.fast
def test_many_options_are_under_headings() -> None:
    """--help-all of prepare has every option once, under a heading, and those of all commands come last."""
    shown = run("prepare", "--help-all").stdout
    headings = [
        "Text and tokenizer",
        "Columns",
        "Tokens",
        "Conversations",
        "Fill in the middle",
        "Selection",
        "Output",
        "Exports",
        "Machine",
        "Clusters",
        "Bad documents",
        "Resuming",
        "Storage",
    ]
    headings += ["General"]
    assert re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE) == headings
    for option in cli.commands["prepare"].params:
        name = max(option.opts, key=len)
        assert (
            isinstance(option, click.Argument)
            or len(re.findall(rf"^  (?:-\w, )?{name}\b(?!-)", shown, re.MULTILINE)) == 1
        )


@pytest.mark.fast
@pytest.mark.parametrize("name", options.COMMON)
def test_help_is_one_screen(name: str) -> None:
    """--help of the commands with many options has at most 40 lines of 80 columns; --help-all has every option."""
    shown = run(name, "--help", COLUMNS="80").stdout
    assert len(shown.splitlines()) <= 40
    assert max(map(len, shown.splitlines())) <= 80
    everything = run(name, "--help-all", COLUMNS="80").stdout
    listed = [set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)) for text in (shown, everything)]
    assert {"--help-all", "--out"} <= listed[0] < listed[1]


@pytest.mark.fast
@pytest.mark.parametrize("words", [(), ("--help",)])
def test_the_command_alone_shows_its_commands(words: tuple[str, ...]) -> None:
    """`tokenmill` prints the help, with each command under one heading, and exit code 0."""
    shown = run(*words, COLUMNS="80").stdout
    assert re.findall(r"^([A-Z][a-z ]+):$", shown, re.MULTILINE) == ["Options", *COMMANDS]
    for name in cli.commands:
        assert len(re.findall(rf"^  {name} ", shown, re.MULTILINE)) == 1


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("--seed", "1"), "Use --shuffle SEED."),
        (("--num_proc=4",), "Use --workers N."),
        (("--append-eod",), "unless --eot none is given"),
        (("--dtype", "uint16"), "`tokenmill export` has it."),
        (("--max-length", "1024"), "--max-tokens would skip documents"),
        (("--shuffle",), "--shuffle 1337"),
        (("--shuffle", "--workers", "2"), "--shuffle 1337"),
    ],
)
def test_options_of_other_tools_are_understood(words: tuple[str, ...], hint: str) -> None:
    """An option that there is not, or one without its value, is refused with what to write instead."""
    assert hint in run("prepare", "data.jsonl", *words, code=2).stderr


@pytest.mark.fast
@pytest.mark.parametrize(("word", "command"), hints.COMMANDS.items())
def test_commands_by_other_names_are_understood(word: str, command: str) -> None:
    """The error for a command that other tools have names ours."""
    assert command in cli.commands
    assert word not in cli.commands
    assert f"Use `tokenmill {command}`." in run(word, "data.jsonl", code=2).stderr


@pytest.mark.fast
def test_a_hint_is_given_only_where_it_helps() -> None:
    """A command that has no such option itself does not tell to use it."""
    assert "--shuffle" not in run("status", "out", "--seed", "1", code=2).stderr


@pytest.mark.fast
@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("gtp2", "Did you mean gpt2?"),
        ("GPT2", "Did you mean gpt2?"),
        ("gpt4", "gpt4 uses cl100k_base."),
        ("GPT4o", "GPT4o uses o200k_base."),
    ],
)
def test_a_tokenizer_that_is_called_otherwise_is_guessed(name: str, advice: str) -> None:
    """A name that is nearly right gets the right one."""
    with pytest.raises(UsageError) as raised:
        resolve(name)
    assert advice in str(raised.value)


@pytest.mark.fast
def test_a_directory_without_a_tokenizer_says_what_it_has(tmp_path: Path) -> None:
    """Up to five files that could be meant are named."""
    for place in range(7):
        (tmp_path / f"{place}.json").touch()
    with pytest.raises(TokenizerError, match=r"found        0\.json, 1\.json, 2\.json, 3\.json, 4\.json, \.\.\."):
        resolve(str(tmp_path))


def test_what_has_no_rows_is_shown_by_its_byte(tmp_path: Path) -> None:
    """A document of JSON Lines is told by the byte that it starts at, as `locate` tells it."""
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n')
    run("prepare", tmp_path / "a.jsonl", *TOKENS, "--out", tmp_path / "out", "--quiet")
    assert "byte         16\n" in run("inspect", tmp_path / "out", "--doc", "1").stdout


@pytest.mark.fast
def test_lines_are_broken_between_words() -> None:
    """What does not fit a terminal goes on below, beside its label; a path is left whole."""
    line = "order        in the order of the store; val none"
    assert wrap(line, 46) == "order        in the order of the store; val\n             none"
    assert wrap("store        /a/very-long/path", 20) == "store        /a/very-long/path"
    assert wrap("note: no label here to see", 22) == "note: no label here to\n      see"
    assert wrap("no label here", 9) == "no label here"  # labels alone take more columns


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    """--debug shows where an error comes from."""
    done = run("status", tmp_path, "--debug", code=None)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
