"""Errors that Python raises name parameters; the same errors name options on the command line."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import click
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON
from tokenmill.cli import cli
from tokenmill.errors import SENTENCE_WORDS, SWITCHES, CorruptStore, SourceError, UsageError, in_python
from tokenmill.executors.outcomes import Failed, Worker

PACKAGE = Path(inspect.getfile(tokenmill)).parent
# Values of options that messages of the package name.
VALUES = {"all", "auto", "converted", "drop", "local", "megatron", "merge", "nanogpt", "none", "quarantine", "val"}
VALUES |= {"date", "documents", "each", "ignore", "jsonl", "overlap", "parse", "prepended", "refuse", "stream", "text"}
# Their messages are for commands only.
COMMAND_ROOMS = ("cli", "diagnosis")
MESSAGES = {
    "Set it with --eot ID, or use --eot none.": 'Set it with eot=ID, or use eot="none".',
    "a run with another --unit-bytes": "a run with another unit_bytes=",
    "--out is the store itself": "out= is the store itself",
    "Choose --shard-tokens 3,000,000 or less.": "Choose shard_tokens=3_000_000 or less.",
    "--memory 200 MB is less than one worker needs": 'memory="200 MB" is less than one worker needs',
    "Give a fraction: --val 0.01.": "Give a fraction: val=0.01.",
    "Leave it out of --keep or --deny (--like).": "Leave it out of keep= or deny= (like=).",
    "--name 'a b' cannot start a name": "name='a b' cannot start a name",
    "Run the same `tokenmill prepare --on ray` with --repair: it": "Run the same `tokenmill prepare --on ray` with "
    "repair=True: it",
    "tokenmill export tokens --to nanogpt": "tokenmill export tokens --to nanogpt",
    "store        /data/Qwen--Qwen3-8B": "store        /data/Qwen--Qwen3-8B",
}


@pytest.mark.parametrize("message", MESSAGES)
def test_options_become_parameters(message: str) -> None:
    """An option and its value become a keyword argument; commands and paths stay as they are."""
    assert in_python(message) == MESSAGES[message]


def test_an_error_has_both_forms() -> None:
    """`str` has parameters, for Python; `headline` and `details` have options, for commands."""
    with pytest.raises(UsageError) as raised:
        tokenmill.tokenize_fn(SMALL_JSON, eot="<|no such token|>")
    assert "eot=" in str(raised.value)
    assert "--eot" not in str(raised.value)
    assert "--eot" in raised.value.text


def test_switches_are_the_flags_of_commands() -> None:
    """A flag of a command that is a parameter of its function is True in Python."""
    flags = {
        max(option.opts, key=len).removeprefix("--")
        for command in cli.commands.values()
        for option in command.params
        if isinstance(option, click.Option) and option.is_flag
    }
    functions = [tokenmill.using, *(getattr(tokenmill, name) for name in cli.commands if name in tokenmill.__all__)]
    parameters = {name for function in functions for name in inspect.signature(function).parameters}
    assert {flag for flag in flags if flag.replace("-", "_") in parameters} == SWITCHES


def test_the_word_after_an_option_is_known() -> None:
    """Each word that follows an option in a message continues the sentence or is one of the known values."""
    followed = re.compile(r"(?<![\w`/-])--[a-z][a-z-]*[a-z] ([a-z]+)\b")
    unknown = {
        f"{path.relative_to(PACKAGE)}: {match[0]}"
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in COMMAND_ROOMS
        for line in path.read_text().splitlines()
        if not re.search(r"`[^`]*--|tokenmill [a-z]+ |^ *(#|\"\"\")", line)
        for match in followed.finditer(line)
        if match[1] not in VALUES | set(SENTENCE_WORDS)
    }
    assert not unknown


def test_command_lines_of_other_programs_stay() -> None:
    """The command that converts a file is copied into a shell."""
    error = SourceError("unsupported file type: .xz", "xz --decompress --keep x.xz", "Then pass --column NAME.")
    assert str(error).splitlines()[1:] == ["  xz --decompress --keep x.xz", "  Then pass column=NAME."]


def test_an_error_of_a_worker_names_options_until_it_is_raised() -> None:
    """Its text becomes a line of the caller's error, which Python translates and the command line does not."""
    failed = Failed.of(0, CorruptStore("a part is damaged", "Run it with --repair."), Worker(1, 0))
    assert failed.message == "a part is damaged\n  Run it with --repair."
    assert "repair=True" in str(CorruptStore("problems", *failed.message.splitlines()))
