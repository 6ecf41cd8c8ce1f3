"""Datasets that have a name: where their files are, and what is known of them, from TOML that anybody can add to.

The package has a file of its own; the environment variable TOKENMILL_DATASETS may name another, whose entries win.
"""

from __future__ import annotations

import difflib
import importlib.resources
import os
import re
import tomllib
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from tokenmill.errors import UsageError

OWN = "catalog.toml"
VARIABLE = "TOKENMILL_DATASETS"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
"""What a dataset can be called, so that it is not taken for a file or a glob."""
ASKED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""What may stand for {version} in a path."""
PATTERN = re.compile(r"[*?\[]")

Record = TypeVar("Record")
Count = Annotated[int, Meta(gt=0)]
Line = Annotated[str, Meta(min_length=1, pattern=r"^[^\r\n]*$")]


class Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of a dataset that belong together. What is None is not known."""

    glob: Annotated[str, Meta(pattern=r"^[^/\\@]+(/[^/\\@]+)*$")]
    also: tuple[str, ...] = ()
    example: str | None = None
    files: Count | None = None
    rows: Count | None = None
    bytes: Count | None = None
    tokens: Count | None = None


class Dataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the catalogue."""

    repository: Annotated[str, Meta(pattern=r"^[\w.-]+/[\w.-]+$")]
    licence: Line
    versions: Annotated[dict[str, Version], Meta(min_length=1)]
    revision: Annotated[str, Meta(pattern=r"^[\w.%-]+$")] = "main"
    column: Line = "text"
    about: str = ""


class DatasetSelection(msgspec.Struct, frozen=True):
    """One version of one dataset, as somebody asked for it."""

    name: str
    version: str
    address: str
    column: str
    files: int | None
    rows: int | None

    @property
    def title(self) -> str:
        """How messages call it."""
        return f"{self.name} {self.version}"


class Catalog:
    """The datasets there are, by name."""

    def __init__(self, entries: dict[str, Dataset]) -> None:
        self.entries = entries

    def choose(self, name: str, version: str | None) -> DatasetSelection:
        """The files that a name and a version mean; UsageError, with the versions there are, if they mean none."""
        dataset = self.entries[name]
        if version is None:
            raise UsageError(f"which version of {name}?", *_choices(name, dataset))
        found = _version(dataset, version)
        if found is None:
            raise UsageError(
                f"{name} has no version {version!r}", *_meant(version, _spellings(dataset)), *_choices(name, dataset)
            )
        spelled, known = found
        glob = known.glob.replace("{version}", spelled)
        address = f"hf://datasets/{dataset.repository}@{dataset.revision}/{glob}"
        return DatasetSelection(name, spelled, address, dataset.column, known.files, known.rows)

    def dataset(self, name: str) -> Dataset:
        """The entry of this name; UsageError, with the names there are, if there is none."""
        if name not in self.entries:
            raise UsageError(
                f"there is no dataset called {name!r}",
                *_meant(name, self.entries),
                f"datasets     {', '.join(self.entries)}",
            )
        return self.entries[name]

    def nearest(self, name: str) -> str | None:
        """The dataset that a mistyped name, or that of a repository, probably means."""
        repositories = {dataset.repository.lower(): own for own, dataset in self.entries.items()}
        near = [] if "/" in name else _near(name, self.entries)
        return next(iter(near), repositories.get(name.lower()))


def load() -> Catalog:
    """The catalogue: the entries of the package, and those of the user's own file over them."""
    own = importlib.resources.files("tokenmill.sources").joinpath(OWN).read_bytes()
    entries = dict(_entries(OWN, own))
    path = os.environ.get(VARIABLE)
    if path:
        entries |= _entries(path, _read(path))
    return Catalog(entries)


def listed(dataset: Dataset) -> str:
    """The versions of a dataset in a line; those that a pattern stands for by an example."""
    versions = dataset.versions.items()
    return ", ".join(f"{name} (such as {known.example})" if known.example else name for name, known in versions)


def _version(dataset: Dataset, asked: str) -> tuple[str, Version] | None:
    """The name and the entry of a version, however it is spelled."""
    for name, version in dataset.versions.items():
        if asked.lower() in (spelling.lower() for spelling in (name, *version.also)) and not version.example:
            return name, version
    for name, version in dataset.versions.items():
        if version.example and ASKED.fullmatch(asked) and fnmatchcase(asked, name):
            return asked, version
    return None


def _spellings(dataset: Dataset) -> list[str]:
    return [spelling for name, known in dataset.versions.items() for spelling in (known.example or name, *known.also)]


def _choices(name: str, dataset: Dataset) -> list[str]:
    first, known = next(iter(dataset.versions.items()))
    return [f"versions     {listed(dataset)}", f"Say which: {name} --version {known.example or first}"]


def _meant(word: str, known: Iterable[str]) -> list[str]:
    return [f"did you mean {near}?" for near in _near(word, known)]


def _near(word: str, known: Iterable[str]) -> list[str]:
    lower = {each.lower(): each for each in known}
    return [lower[near] for near in difflib.get_close_matches(word.lower(), lower, n=1, cutoff=0.65)]


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise UsageError(
            "the file of datasets cannot be read",
            f"file         {path}",
            f"reason       {os.strerror(error.errno or 0)}",
            f"The environment variable {VARIABLE} names it: correct it, or unset it.",
        ) from error


def _entries(path: str, content: bytes) -> Iterator[tuple[str, Dataset]]:
    try:
        tables = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError("the file of datasets is not TOML", f"file         {path}", f"reason       {error}") from error
    for name, table in tables.items():
        if not NAME.fullmatch(name):
            raise _wrong(path, name, "a dataset's name is made of letters, digits, - and _")
        versions = table.get("versions") if isinstance(table, dict) else None
        for key, value in versions.items() if isinstance(versions, dict) else ():  # one by one, to name the wrong one
            _check(path, f"{name}.versions.{key}", key, value)
        yield name, _converted(path, name, table, Dataset)


def _check(path: str, entry: str, name: str, table: Any) -> None:
    """Refuse a version whose pattern, example and path do not fit each other."""
    version = _converted(path, entry, table, Version)
    if ".." in version.glob.split("/"):
        raise _wrong(path, entry, "key `glob` may not leave the repository")
    if bool(PATTERN.search(name)) != ("{version}" in version.glob):
        raise _wrong(path, entry, "key `glob` has {version} in it if the version is a pattern, and only then")
    if bool(PATTERN.search(name)) != (version.example is not None and fnmatchcase(version.example, name)):
        raise _wrong(path, entry, "key `example` is a version that the pattern means; only a pattern has one")


def _converted(path: str, entry: str, table: Any, kind: type[Record]) -> Record:
    try:
        return msgspec.convert(table, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _wrong(path, entry, str(error)) from error


def _wrong(path: str, entry: str, reason: str) -> UsageError:
    return UsageError(
        "an entry of the file of datasets is wrong",
        f"file         {path}",
        f"entry        {entry}",
        f"reason       {reason}",
    )
