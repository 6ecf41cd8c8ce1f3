"""The types of the parameters that public functions share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from tokenmill.errors import UsageError
from tokenmill.exports.formats.protocol import EndTokenPosition, Tail
from tokenmill.storage import absolute
from tokenmill.store.reader import Store
from tokenmill.system.arguments import check_text

# A path or an address. Write an address such as s3://bucket/run as a str: a Path would drop a slash.
StrPath = str | os.PathLike[str]

# One store, or several that are read as one.
Stores = StrPath | Sequence[StrPath]

EngineName = Literal["auto", "gigatoken", "tiktoken", "tokenizers"]
BadDocumentAction = Literal["quarantine", "fail"]
Dedup = Literal["exact", "none"]
Null = Literal["skip", "empty"]
Special = Literal["text", "parse", "refuse"]
TemplateSpecial = Literal["parse", "text"]
TokenType = Literal["uint16", "int32", "uint32"]


def path_texts(paths: StrPath | Sequence[StrPath]) -> list[str]:
    """One path or several as a list of strings. Several stores that were opened as one are several here."""
    given = [paths] if isinstance(paths, str | os.PathLike) else paths
    return [path for each in given for path in (each.directories if isinstance(each, Store) else [os.fspath(each)])]


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


__all__ = [
    "BadDocumentAction",
    "Dedup",
    "EndTokenPosition",
    "EngineName",
    "Null",
    "Special",
    "Stores",
    "StrPath",
    "Tail",
    "TemplateSpecial",
    "TokenType",
    "column_names",
    "output_text",
    "path_text",
    "path_texts",
    "store_paths",
]
