"""The catalog of named datasets: where their files are, and how many files, rows and tokens they have.

The package contains a TOML file. The environment variable TOKENMILL_DATASETS may name another one, whose entries
override those of the package.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
import re
import tomllib
from fnmatch import fnmatchcase
from typing import Annotated

import msgspec
from msgspec import Meta

from tokenmill.errors import UsageError
from tokenmill.humanize import did_you_mean, most_similar

BUILTIN_CATALOG = "catalog.toml"
CATALOG_VARIABLE = "TOKENMILL_DATASETS"
# A version that is named after its number of tokens, such as 10B.
SIZE_VERSION = re.compile(r"(\d{1,15})[BT]*$", re.IGNORECASE)
# What may replace {version} in a path.
VERSION_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
GLOB_CHARACTERS = re.compile(r"[*?\[]")

Count = Annotated[int, Meta(gt=0)]
Line = Annotated[str, Meta(min_length=1, pattern=r"^[^\r\n]*$")]
# The name of a dataset cannot be mistaken for a file or a glob.
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]


class Version(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One version of a dataset: its files, and their known totals. None means unknown."""

    # The path may not leave the repository.
    glob: Annotated[str, Meta(pattern=r"^(?!\.\.(/|$))[^/\\@]+(/(?!\.\.(/|$))[^/\\@]+)*$")]
    also: tuple[str, ...] = ()
    example: str | None = None
    files: Count | None = None
    rows: Count | None = None
    bytes: Count | None = None
    tokens: Count | None = None


class Dataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the catalog."""

    repository: Annotated[str, Meta(pattern=r"^[\w.-]+/[\w.-]+$")]
    licence: Line
    versions: Annotated[dict[str, Version], Meta(min_length=1)]
    revision: Annotated[str, Meta(pattern=r"^[\w.%-]+$")] = "main"
    column: Line = "text"
    about: str = ""

    def __post_init__(self) -> None:
        for name, version in self.versions.items():
            example = version.example is not None and fnmatchcase(version.example, name)
            if {"{version}" in version.glob, example} != {bool(GLOB_CHARACTERS.search(name))}:
                raise ValueError(
                    f"the version {name} is a pattern if its `glob` has {{version}} and it has an `example`"
                )


class DatasetSelection(msgspec.Struct, frozen=True):
    """One version of one dataset, selected by the user."""

    name: str
    version: str
    address: str
    column: str
    files: int | None
    rows: int | None

    @property
    def title(self) -> str:
        """The name in messages."""
        return f"{self.name} {self.version}"


class Catalog:
    """All datasets by name."""

    def __init__(self, entries: dict[str, Dataset]) -> None:
        self.entries = entries

    def choose(self, name: str, version: str | None) -> DatasetSelection:
        """Select a version of a dataset. Raises UsageError, which lists the versions, if there is no such version."""
        dataset = self.entries[name]
        if version is None:
            raise UsageError(f"{name} needs a version", *_choices(name, dataset))
        match = _find_version(dataset, version)
        if match is None:
            suggestions = did_you_mean(version, filter(functools.partial(_is_near_size, version), _spellings(dataset)))
            raise UsageError(f"{name} has no version {version!r}", *suggestions, *_choices(name, dataset))
        version_name, entry = match
        glob = entry.glob.replace("{version}", version_name)
        address = f"hf://datasets/{dataset.repository}@{dataset.revision}/{glob}"
        return DatasetSelection(name, version_name, address, dataset.column, entry.files, entry.rows)

    def dataset(self, name: str) -> Dataset:
        """The entry of this name. Raises UsageError, which lists the names, if there is no such entry."""
        if name not in self.entries:
            raise UsageError(
                f"there is no dataset called {name!r}",
                *did_you_mean(name, self.entries),
                f"datasets     {', '.join(self.entries)}",
            )
        return self.entries[name]

    def nearest(self, name: str) -> str | None:
        """The dataset that a mistyped name, or the name of a repository, probably means."""
        by_repository = {dataset.repository.lower(): key for key, dataset in self.entries.items()}
        closest = [] if "/" in name else most_similar(name, self.entries)
        return next(iter(closest), by_repository.get(name.lower()))


def load() -> Catalog:
    """The catalog: the entries of the package, overridden by those of the user's file."""
    builtin = importlib.resources.files("tokenmill.sources").joinpath(BUILTIN_CATALOG).read_bytes()
    path = os.environ.get(CATALOG_VARIABLE)
    return Catalog(_entries(BUILTIN_CATALOG, builtin) | (_entries(path) if path else {}))


def _entries(path: str, content: bytes | None = None) -> dict[str, Dataset]:
    """The entries of a file. Raises UsageError, which names the entry that is wrong."""
    entries: dict[str, Dataset] = {}
    name, reason = "", "its values are nested too deep"
    try:
        if content is None:
            with open(path, "rb") as file:
                content = file.read()
        for name, table in tomllib.loads(content.decode()).items():
            entries[msgspec.convert(name, Name)] = msgspec.convert(table, Dataset, strict=True)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
    except ValueError as error:  # not UTF-8, not TOML, or another entry than a dataset's
        reason = str(error)
    except RecursionError:
        pass
    else:
        return entries
    raise UsageError(
        "the file of datasets cannot be read",
        f"file         {path}",
        *([f"entry        {name}"] if name else []),
        f"reason       {reason}",
        f"The environment variable {CATALOG_VARIABLE} names it: correct it, or unset it.",
    )


def versions_text(dataset: Dataset) -> str:
    """The versions of a dataset in one line. A pattern is shown with an example."""
    versions = dataset.versions.items()
    return ", ".join(f"{name} (such as {entry.example})" if entry.example else name for name, entry in versions)


def _find_version(dataset: Dataset, requested: str) -> tuple[str, Version] | None:
    """The name and the entry of a version. Other spellings and, last, patterns match as well."""
    for name, version in dataset.versions.items():
        if requested.lower() in (spelling.lower() for spelling in (name, *version.also)) and not version.example:
            return name, version
    for name, version in dataset.versions.items():
        if version.example and VERSION_NAME.fullmatch(requested) and fnmatchcase(requested, name):
            return requested, version
    return None


def _spellings(dataset: Dataset) -> list[str]:
    return [spelling for name, entry in dataset.versions.items() for spelling in (entry.example or name, *entry.also)]


def _is_near_size(version: str, other: str) -> bool:
    """False for two sizes that differ by more than a factor of two: 5B and 350B are similar only as text."""
    sizes = [SIZE_VERSION.match(text) for text in (version, other)]
    if None in sizes:
        return True
    one, two = sorted(float(size[1]) for size in sizes if size is not None)
    return two <= 2 * one


def _choices(name: str, dataset: Dataset) -> list[str]:
    first, entry = next(iter(dataset.versions.items()))
    return [f"versions     {versions_text(dataset)}", f"Example: {name} --version {entry.example or first}"]
