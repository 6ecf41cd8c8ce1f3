"""Harm done to the files of an export, and what the advice of an error says literally, carried out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import tokenmill
from tokenmill.errors import TokenmillError

MAX_STEPS = 12
"""How many errors in a row may give advice until an export is right."""


def _delete(path: Path, _other: Path) -> None:
    path.unlink()


def _truncate(path: Path, _other: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path, _other: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 2 // 3] ^= 1
    path.write_bytes(content)


def _replace(path: Path, other: Path) -> None:
    shutil.copyfile(other, path)


HARMS: dict[str, Callable[[Path, Path], None]] = {
    "delete": _delete,
    "truncate": _truncate,
    "flip": _flip,
    "replace": _replace,
}


def tree(out: Path) -> dict[str, bytes]:
    """Every file of an export but its state, by name."""
    files = [path for path in out.rglob("*") if path.is_file() and ".tokenmill" not in path.parts]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def state_files(out: Path) -> list[str]:
    """Every file of an export, its state included, but the lock."""
    files = [path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()]
    return sorted(name for name in files if name != ".tokenmill/lock")


def error_of(call: Callable[[], object]) -> TokenmillError | None:
    """The error that a call ends with, if any; an error that is not explained is not caught."""
    try:
        call()
    except TokenmillError as error:
        return error
    return None


def follow(error: TokenmillError, out: Path, export: Callable[[], object]) -> None:
    """Do what the message says, to the letter, and what the messages after it say, until the export ends well."""
    for _ in range(MAX_STEPS):
        _obey(str(error), out)
        again = error_of(export)
        if again is None:
            return
        error = again
    raise AssertionError(f"the advice leads nowhere: {error}")


def _obey(message: str, out: Path) -> None:
    """Remove what the message says is to be removed; the command that it names is left to the caller."""
    if re.search(r"[Rr]emove (the directory|only this export)", message):
        assert str(out) in message
        shutil.rmtree(out)
    elif re.search(r"(Remove|Delete) the file", message):
        named = re.findall(r"^\s*file +(\S+)$|^\s*(\S+) is damaged$", message, re.MULTILINE)
        paths = [Path(next(filter(None, each))) for each in named]
        assert paths
        for path in paths:
            assert path.is_relative_to(out)
            path.unlink(missing_ok=True)
    elif "Remove it," in message:
        Path(message.partition(" is there")[0]).unlink()
    else:
        assert "tokenmill export` again" in message, message


def locate(out: Path, name: str, store: str) -> list[object]:
    """The documents of some tokens of a file of an export."""
    return list(tokenmill.locate(str(out / name), 10, 400, store=store, context=0).documents)
