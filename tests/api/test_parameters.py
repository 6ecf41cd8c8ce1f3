"""The parameters of public functions: named as the options, documented, and typed as what they accept."""

from __future__ import annotations

import inspect
import re
import typing
from pathlib import Path

import click
import pytest

import tokenmill
from tokenmill.api.parameters import FormatName, StrPath
from tokenmill.cli import cli
from tokenmill.errors import UsageError
from tokenmill.exports.formats import FORMATS

FUNCTIONS = [name for name in tokenmill.__all__ if inspect.isfunction(getattr(tokenmill, name))]
COMMANDS = [name for name in FUNCTIONS if name in cli.commands]
# Parameters that name a file, a directory or an address.
PATHS = {"directory", "stores", "out", "sources", "tokenizer", "where", "source", "store", "cache_dir", "cache"}
PATHS |= {"recipe", "other", "html"}
# Options of a command that are about its output, or repeat it.
ONLY_FOR_COMMANDS = {"json", "quiet", "debug", "endpoint", "region", "allow_http", "cache", "watch", "step", "seconds"}


def types_of(name: str) -> dict[str, typing.Any]:
    """The types of the parameters of a function, as their module understands them."""
    function = inspect.unwrap(getattr(tokenmill, name))
    module = dict(vars(inspect.getmodule(function)))
    import collections.abc as abc

    from tokenmill.executors import progress
    from tokenmill.executors.outcomes import Pool

    names = {"Sequence": abc.Sequence, "Pool": Pool, "progress": progress, **module}
    return {key: value for key, value in typing.get_type_hints(function, names).items() if key != "return"}


def members(kind: object) -> set[object]:
    """The members of a union, those of unions and sequences in it included."""
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is typing.Literal or not inner:
        return {kind}
    return {kind} | {member for part in inner for member in members(part)}


@pytest.mark.parametrize("name", COMMANDS)
def test_keywords_are_the_options(name: str) -> None:
    """Each option of a command is a keyword of its function."""
    options = {
        max(option.opts, key=len).lstrip("-").replace("-", "_")
        for option in cli.commands[name].params
        if isinstance(option, click.Option)
    }
    assert options - ONLY_FOR_COMMANDS <= set(inspect.signature(getattr(tokenmill, name)).parameters)


@pytest.mark.parametrize("name", COMMANDS)
def test_choices_are_literals(name: str) -> None:
    """What a command lets a user choose from is a Literal with the same choices."""
    types = types_of(name)
    for option in cli.commands[name].params:
        if isinstance(option.type, click.Choice):
            literals = [kind for kind in members(types[option.name]) if typing.get_origin(kind) is typing.Literal]
            assert [set(typing.get_args(kind)) for kind in literals] == [set(option.type.choices)]


def test_the_format_names_are_all_formats() -> None:
    """A new format is a choice of `to`."""
    assert set(typing.get_args(FormatName)) == set(FORMATS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_paths_may_be_path_objects(name: str) -> None:
    """What names a file or a directory has a type that includes os.PathLike."""
    for parameter, kind in types_of(name).items():
        is_filter = (name, parameter) == ("prepare", "where")  # for `locate` it is a file
        if parameter in PATHS and not is_filter:
            assert set(typing.get_args(StrPath)) <= members(kind), parameter


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_parameter_is_explained(name: str) -> None:
    """The docstring has an entry for each parameter, in the order of the signature."""
    function = getattr(tokenmill, name)
    _, _, listed = (inspect.getdoc(function) or "").partition("\nArgs:\n")
    assert re.findall(r"^    (\w+): \S", listed, re.MULTILINE) == list(inspect.signature(function).parameters)


def test_a_path_object_of_an_address_is_explained() -> None:
    """Path("s3://bucket/run") drops a slash; the error has the address to write."""
    with pytest.raises(UsageError, match="neither a URL nor a path") as raised:
        tokenmill.open(Path("s3://bucket/run"))
    assert "s3://bucket/run" in str(raised.value)
