"""The arguments of public functions: options that are declared once, as fields of a record, and checks of types.

A field says what people read about an option and how the command line takes it. Python takes True for 1 and the keys of
a dict for a list: a wrong argument could then give a wrong result without a word.
"""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from tokenmill.errors import UsageError, in_python

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


@dataclass(frozen=True, slots=True)
class Option:
    """What people read about an option, and how the command line takes it.

    Attributes:
        meaning: The sentence for both, with options named as the command line does.
        heading: The heading under which the help of a command lists it; empty for an object of Python.
        metavar: What stands for its value.
        unset: What holds if it is not given, in words.
        python: A sentence about values that the command line does not take.
        least: The smallest number.
        short: Its one-letter name.
        repeatable: Whether it takes several values: an option that is repeated, or a list.
        escapes: Whether the command line replaces the escapes that are typed, such as a line end.
        of_store: Whether `--like` takes it from a store.
        can_be_off: The same, and the value `none` switches it off.
    """

    meaning: str
    heading: str = ""
    metavar: str | None = None
    unset: str = ""
    python: str = ""
    least: int | None = None
    short: str = ""
    repeatable: bool = False
    escapes: bool = False
    of_store: bool = False
    can_be_off: bool = False


def option(meaning: str, *, default: Any = None, **about: Any) -> Any:
    """A field of a record of options. None, an empty tuple and False stand for an option that is not given."""
    return field(default=default, metadata={"option": Option(meaning, **about)})


def required(meaning: str, **about: Any) -> Mapping[str, Option]:
    """The metadata of a field without a default. The type of the field shows that it is needed."""
    return {"option": Option(meaning, **about)}


def options_of(record: Any) -> dict[str, Option]:
    """The options of a record by name, in the order of its arguments."""
    return {
        each.name: each.metadata["option"] for each in sorted(fields(record), key=lambda each: each.kw_only is True)
    }


@functools.cache
def types_of(record: Callable[..., Any]) -> dict[str, Any]:
    """The types of the options of a record, or of the parameters of a function."""
    return get_type_hints(record)


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """A function that raises UsageError, with the parameter's name, for an argument of another type than annotated.

    Classes and protocols are not checked: the function checks them by what they have to do.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        check_types(signature.bind(*args, **kwargs).arguments, function)
        return function(*args, **kwargs)

    return call


def check_types(arguments: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise UsageError for the first of these arguments of a function that has another type than annotated."""
    for name, value in arguments.items():
        hint = types_of(function)[name]
        if not _fits(value, hint):
            raise UsageError(f"{name} has to be {_words(hint)}, not {_shown(value)}", *_ways_to_files(value))
        if (choices := choices_of(hint)) and isinstance(value, str) and value not in choices:
            option_name = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option_name} is {', '.join(choices[:-1])} or {choices[-1]}, not {value!r}")
        least = options_of(function)[name].least if is_dataclass(function) else None
        if least is not None and value is not None and value < least:
            raise UsageError(f"--{name.replace('_', '-')} must be at least {least}")


def choices_of(hint: Any) -> tuple[str, ...]:
    """The values of an option that has to be one of them."""
    kinds = get_args(hint) if get_origin(hint) in {Union, types.UnionType} else (hint,)
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


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


def column_names(names: str | Sequence[str] | None, parameter: str = "keep") -> tuple[str, ...] | None:
    """Names of columns: a sequence, or a text in which commas separate them. None stays None."""
    if isinstance(names, str):
        return tuple(name.strip() for name in names.split(",")) if names else ()
    joined = next((name for name in names or () if "," in name), None)
    if joined is not None:
        raise UsageError(
            f"{joined!r} in {parameter} has a comma", f"Give each column by itself: {parameter}={joined.split(',')}."
        )
    return None if names is None else tuple(names)


def takes(
    record: Callable[Parameters, Options], complete: Callable[[dict[str, Any]], dict[str, Any]] = dict
) -> Callable[[Callable[[Options], Result]], Callable[Parameters, Result]]:
    """A function of a record of options as a function of these options, whose types are checked.

    `complete` may add options that are given elsewhere. Signature and docstring are those of the record's fields.
    """

    def decorate(function: Callable[[Options], Result]) -> Callable[Parameters, Result]:
        signature = inspect.signature(record).replace(return_annotation=function.__annotations__["return"])

        def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
            given = signature.bind(*args, **kwargs).arguments
            check_types(given, record)
            return function(record(**complete(given)))  # type: ignore[call-arg]

        functools.update_wrapper(call, function, updated=())
        call.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{meanings(record)}"
        call.__wrapped__ = record  # type: ignore[attr-defined]
        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorate


def meanings(record: Any) -> str:
    """What the options of a record mean, as the `Args:` of a docstring."""
    return "\n".join(f"    {name}: {_meaning(about)}" for name, about in options_of(record).items())


def _meaning(about: Option) -> str:
    several = "One, or a list." if about.repeatable else ""
    unset = f"Default: {about.unset}." if about.unset else ""
    return in_python(" ".join(filter(None, (about.meaning, several, about.python, unset))))


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
