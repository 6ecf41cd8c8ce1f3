"""A job as a file: the options of `prepare` and `plan` in TOML, by their names in Python, to keep beside an experiment.

Paths are relative to the current directory, as on the command line: the name of a tokenizer or of a dataset cannot be
told from a path, so that paths could not be found in all options.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from typing import Any

from tokenmill.errors import UsageError
from tokenmill.humanize import did_you_mean
from tokenmill.options import PrepareOptions
from tokenmill.system.arguments import check_types, options_of

# A file of options is smaller than this.
MAX_BYTES = 1 << 20

# Objects of Python, and the file itself, are no keys of the file.
KEYS = tuple(name for name in options_of(PrepareOptions) if name not in {"job", "reporter", "executor"})


def with_job(given: dict[str, Any]) -> dict[str, Any]:
    """The given options, and those of the job file among them, if there is one, that are not given."""
    path = given.pop("job", None)
    given = {name: value for name, value in given.items() if value is not None and not _is_empty(value)}
    return given if path is None else {**_read(os.fspath(path)), **given}


def _is_empty(value: Any) -> bool:
    """Whether a value is an empty tuple. Frames compare themselves with it element by element."""
    return isinstance(value, tuple) and not value


def as_toml(given: dict[str, Any]) -> str:
    """The options as the text of a job file."""
    return "".join(f"{name} = {_value(given[name])}\n" for name in KEYS if name in given)


def _read(path: str) -> dict[str, Any]:
    """The options of a job file. Raises UsageError for an unknown key or a value of the wrong type."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES).decode()
        options = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"the job file {path} cannot be read", f"reason       {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # also TOMLDecodeError, and bytes that are not UTF-8
        raise UsageError(f"the job file {path} is not valid TOML", f"reason       {error}") from error
    for name, value in options.items():
        if name not in KEYS:
            raise UsageError(
                f"the job file {path} has a key that is no option",
                f"key          {name!r}{_line(text, name)}",
                *did_you_mean(name, KEYS),
                "`tokenmill prepare --help-all` lists the options. Keys have _ in place of -.",
            )
        try:
            check_types({name: value}, PrepareOptions)
        except UsageError as error:
            raise UsageError(
                f"the job file {path} is not valid", f"{error.headline.replace(' or None', '')}{_line(text, name)}"
            ) from None
    return options


def _line(text: str, name: str) -> str:
    """Where a key is in the text, if it is written as usual."""
    match = re.search(rf"^[\s\[\"']*{re.escape(name)}\b", text, re.MULTILINE)
    return f", line {text.count(chr(10), 0, match.end()) + 1}" if match else ""


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str | os.PathLike):
        quoted = json.dumps(os.fspath(value), ensure_ascii=False)
        return "".join(each if each.isprintable() else f"\\U{ord(each):08x}" for each in quoted)
    return str(value).lower() if isinstance(value, bool) else str(value)
