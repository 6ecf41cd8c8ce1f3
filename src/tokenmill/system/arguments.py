"""Checks the types of the arguments of public functions, and their paths.

Python takes True for 1 and the keys of a dict for a list. A wrong argument can then give a wrong result without a word.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from tokenmill.errors import UsageError

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Options = TypeVar("Options")

SHOWN_CHARACTERS = 60
# The words for the types that parameters have.
TYPE_NAMES = {
    str: "a text",
    os.PathLike: "a path",
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    type(None): "None",
}


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function that raises UsageError, with the parameter's name, for an argument of another type than annotated.

    Classes, protocols and Literals are not checked: the function checks them by what they have to do or to be.
    """
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        return get_type_hints(function)

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        for name, value in signature.bind(*args, **kwargs).arguments.items():
            hint = hints()[name]
            if not _fits(value, hint):
                raise UsageError(f"{name} has to be {_words(hint)}, not {_shown(value)}", *_ways_to_files(value))
        return function(*args, **kwargs)

    return call


def check_text(path: str) -> None:
    """Raise UsageError for a path with bytes that are not UTF-8: no record, result or message could name it."""
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(
            "a path is not valid UTF-8",
            f"path         {path.encode('utf-8', 'surrogateescape').decode('utf-8', 'backslashreplace')}",
            "Use a path of UTF-8 characters, or rename the directory.",
        ) from None


def takes(
    read: Callable[Parameters, Options], *required: str
) -> Callable[[Callable[[Options], Result]], Callable[Parameters, Result]]:
    """A function of what `read` makes of arguments as a function of these arguments, which are checked.

    So several functions share one declaration of their parameters. The docstring of `read` has their meanings. The
    signature shows no default for parameters that are `required`; the function itself refuses a call without them.
    """

    def decorate(function: Callable[[Options], Result]) -> Callable[Parameters, Result]:
        read_checked = checked(read)
        hints = {"return": function.__annotations__["return"]}

        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            return function(read_checked(*args, **kwargs))

        functools.update_wrapper(call, function, updated=())
        _, heading, meanings = (inspect.getdoc(read) or "").partition("Args:\n")
        call.__doc__ = f"{inspect.getdoc(function)}\n\n{heading}{meanings}"
        call.__annotations__ = {**read.__annotations__, **hints}
        call.__wrapped__ = read  # type: ignore[attr-defined]
        signature = inspect.signature(read)
        parameters = [
            each.replace(default=each.empty) if each.name in required else each
            for each in signature.parameters.values()
        ]
        call.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=parameters, return_annotation=hints["return"]
        )
        return call

    return decorate


def _fits(value: Any, hint: Any) -> bool:
    plain = get_origin(hint) or hint
    if plain in (Union, types.UnionType):
        return any(_fits(value, each) for each in get_args(hint))
    if plain is Sequence:
        return isinstance(value, list | tuple) and all(_fits(each, *get_args(hint)) for each in value)
    if plain in (bool, str, type(None), os.PathLike):
        return isinstance(value, plain)
    if plain in (int, float):
        return isinstance(value, Integral if plain is int else Real) and not isinstance(value, bool)
    return True


def _words(hint: Any) -> str:
    plain = get_origin(hint) or hint
    if plain in (Union, types.UnionType):
        kinds = dict.fromkeys(_words(each) for each in get_args(hint))
        return " or ".join(kind for kind in kinds if kind != TYPE_NAMES[str] or TYPE_NAMES[os.PathLike] not in kinds)
    if plain is Sequence:
        return f"a list of {_words(*get_args(hint)).removeprefix('a ')}s"
    return TYPE_NAMES.get(plain, getattr(hint, "__name__", str(hint)))


def _shown(value: Any) -> str:
    text = repr(value)
    if len(text) > SHOWN_CHARACTERS or "\n" in text or text.startswith("<"):
        return f"a {type(value).__name__}"
    return text if value is None else f"{text} ({type(value).__name__})"


def _ways_to_files(value: Any) -> tuple[str, ...]:
    """How rows in memory become files that can be read."""
    if hasattr(value, "save_to_disk"):
        return ("Save it first: dataset.save_to_disk('data'), then prepare('data').", "Or use tokenmill.map_dataset.")
    if hasattr(value, "to_parquet"):
        return ("Write it first: frame.to_parquet('data.parquet'), then prepare('data.parquet').",)
    return ()
