"""Paths among the parameters that public functions share."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tokenmill.errors import UsageError
from tokenmill.options import Stores, StrPath
from tokenmill.storage import absolute
from tokenmill.store.reader import Store
from tokenmill.system.arguments import check_text


def path_texts(paths: StrPath | Sequence[StrPath]) -> list[str]:
    """One path or several as a list of strings. Several stores that were opened as one are several here."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [path for each in given for path in (each.directories if isinstance(each, Store) else [os.fspath(each)])]


def store_paths(stores: Stores) -> list[str]:
    """One store or several as a list of strings. Raises UsageError without a store."""
    paths = path_texts(stores)
    if not paths:
        raise UsageError("no store is given", "Name at least one store.")
    return paths


def path_text(path: StrPath | None) -> str | None:
    """A path as a string. None stays None."""
    return None if path is None else os.fspath(path)


def output_text(path: StrPath) -> str:
    """The path of an output as a string. Raises UsageError before any work if no record could name it."""
    text = os.fspath(path)
    check_text(absolute(text))
    return text
