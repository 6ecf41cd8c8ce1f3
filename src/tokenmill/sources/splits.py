"""Choose the splits and the config of a dataset that is given as a whole, so that no splits are mixed by accident.

A card or a dataset_dict.json declares splits for files of every kind. Without a declaration the names of files count,
for the kinds and layouts that the Hub reads in this way. Files, globs and paths below a repository are read as they
are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from tokenmill import storage
from tokenmill.errors import UsageError
from tokenmill.humanize import count, size
from tokenmill.sources.dataset_card import (
    CARD,
    DATASET_DICT,
    DEFAULT_SPLIT,
    MAX_BYTES,
    Config,
    default_config,
    parse_card,
    parse_dataset_dict,
)
from tokenmill.storage.addresses import HUB, scheme
from tokenmill.storage.hub.address import parse
from tokenmill.storage.untrusted.malformed import MalformedDataError

# `--split all` takes all splits.
ALL = "all"

# The kinds of files whose names declare a split.
NAMED_KINDS = ("parquet", "arrow", "jsonl")

# How many splits or configs a message lists.
MAX_LISTED = 20

_WORD = "train|training|validation|valid|val|dev|test|testing|eval|evaluation"
# A directory with the name of a split, one of its numbered files (train_sft-00000-of-00003), or another file.
_DIRECTORY = re.compile(rf"(?:{_WORD})(?:_\w+)*", re.IGNORECASE)
_SHARD = re.compile(rf"((?:{_WORD})(?:_\w+)*)-\d+-of-\d+", re.IGNORECASE)
_FILE = re.compile(rf"({_WORD})(?=[-_. 0-9])", re.IGNORECASE)
# The directories above splits in the Hub's layouts; `default` is that of the Parquet files that the Hub makes itself.
_ABOVE = re.compile(r"(?:data|default)/")

Source = tuple[storage.FileInfo, str]
Declared = TypeVar("Declared")


@dataclass(frozen=True, slots=True)
class SplitChoice:
    """The splits and the config that a user chose. Without names, a dataset with several splits is refused."""

    names: tuple[str, ...] = ()
    config: str | None = None

    @classmethod
    def parse(cls, names: str | Iterable[str], config: str | None) -> SplitChoice:
        """The choice of these options. Raises UsageError for an empty name."""
        given = tuple(dict.fromkeys([names] if isinstance(names, str) else names))
        for option, name in (*(("--split", name) for name in given), ("--config", config)):
            if name == "":
                raise UsageError(f"{option} is empty", "Give a name, or leave it out.")
        return cls(given, config)

    @property
    def is_all(self) -> bool:
        """Whether all splits are taken."""
        return ALL in self.names

    def wanted(self, what: str, splits: Collection[str], lines: Sequence[str]) -> tuple[str, ...]:
        """The chosen ones of some splits; none if all are read. Raises UsageError if splits would be mixed."""
        wanted = () if self.is_all else self.names
        missing = [name for name in wanted if name not in splits]
        if missing:
            raise UsageError(f"{what} has no split {missing[0]!r}", *lines, "Choose from these, or all.")
        if not self.names and len(splits) > 1:
            example = DEFAULT_SPLIT if DEFAULT_SPLIT in splits else next(iter(splits))
            raise UsageError(
                f"{what} has {len(splits)} splits, which would be mixed",
                *lines,
                f"Choose one: --split {example}. Repeat --split for several. --split all takes all.",
            )
        return wanted

    def refuse_without(self, *, splits: bool, configs: bool) -> None:
        """Raise UsageError for a choice that has no effect, because no source has splits or configs."""
        advice = "It is for a directory or a repository of the Hub that is given as a whole. Leave it out."
        if self.config is not None and not configs:
            raise UsageError(f"--config {self.config}: no source has configs", advice)
        if self.names and not splits:
            raise UsageError(f"--split {self.names[0]}: no source has splits", advice)


@dataclass(frozen=True, slots=True)
class Declaration:
    """The files that a dataset declares, by split: `by` is the name of the file that declares them.

    `endings` are those that a card spells, so that files are read that are usually metadata, such as .json. `is_closed`
    means that files that are not declared are not part of the dataset.
    """

    by: str = ""
    splits: dict[str, set[str]] = field(default_factory=dict)
    endings: tuple[str, ...] = ()
    is_closed: bool = False


@dataclass
class SplitSearch:
    """Chooses the sources of each directory, and collects notes about what it chose."""

    choice: SplitChoice
    notes: list[str] = field(default_factory=list)
    _as_they_are: list[str] = field(default_factory=list)
    _has_splits: bool = False
    _has_configs: bool = False

    def declaration(self, listing: storage.Listing) -> Declaration:
        """What the directory of a listing declares; empty if it is not given as a whole."""
        if not _is_whole(listing):
            return Declaration()
        files = {file.path: file for file in listing.files}
        card = files.get(f"{listing.searched}/{CARD}")
        configs = self._read(card, parse_card) if card is not None else []
        if configs and (declared := self._from_card(listing.searched, list(files), configs)) is not None:
            return declared
        directories: dict[str, str] = {}
        for path in sorted(path for path in files if path.endswith(f"/{DATASET_DICT}")):
            for name in self._read(files[path], parse_dataset_dict):
                directories[f"{path.removesuffix(DATASET_DICT)}{name}"] = name
        splits: dict[str, set[str]] = {name: set() for name in directories.values()}
        for path in files if directories else ():
            parent = next((above for above in _parents(path) if above in directories), None)
            if parent is not None:
                splits[directories[parent]].add(path)
        return Declaration(DATASET_DICT if splits else "", splits)

    def choose(
        self, listing: storage.Listing, sources: list[Source], declared: Declaration
    ) -> list[tuple[Source, str | None]]:
        """The sources of a listing that are read, each with its split. Raises UsageError if splits would be mixed."""
        by_split, others = _divide(listing, sources, declared)
        is_plain = len(by_split) == 1 and others and not declared.splits and not self.choice.names
        if not by_split or is_plain:
            self._as_they_are += [file.path for file, _ in sources]
            return [(source, None) for source in sources]
        self._has_splits = True
        if declared.is_closed and others:
            self.notes.append(f"not read: {_amount(others)} that {declared.by} of {listing.searched} does not declare")
            others = []
        lines = [*_lines(by_split, others), f"known from   {declared.by or 'the names of the files'}"]
        wanted = self.choice.wanted(listing.searched, by_split, lines)
        split_of: dict[str, str | None] = {file.path: None for file, _ in ([] if wanted else others)}
        for name in wanted or by_split:
            for file, _ in by_split[name]:
                split_of.setdefault(file.path, name)
        left = [f"{name} ({_amount(by_split[name])})" for name in by_split if wanted and name not in wanted]
        left += [f"{_amount(others)} without a split"] if others and wanted else []
        if left:
            self.notes.append(f"split {', '.join(wanted)} of {listing.searched}; not read: {', '.join(left)}")
        return [(source, split_of[source[0].path]) for source in sources if source[0].path in split_of]

    def finish(self) -> tuple[str, ...]:
        """The notes, with one about files that were named. Raises UsageError for a choice that has no effect."""
        self.choice.refuse_without(splits=self._has_splits, configs=self._has_configs)
        found = looks_like(self._as_they_are)
        if len(found) > 1:
            names = ", ".join(found)
            self.notes.append(f"the names of the sources look like several splits ({names}), and all of them are read")
        return tuple(self.notes)

    def _from_card(self, root: str, paths: list[str], configs: list[Config]) -> Declaration | None:
        """The files of the chosen config; None if the directory has none of the files that its card declares."""
        relative = {path.removeprefix(f"{root}/"): path for path in paths}
        chosen = self._config(root, configs)
        splits = {split: {relative[path] for path in found} for split, found in chosen.files(relative).items()}
        if not chosen.patterns and chosen.directory:
            for below, path in relative.items():
                if below.startswith(f"{chosen.directory}/"):
                    split = split_by_name(below.removeprefix(f"{chosen.directory}/")) or DEFAULT_SPLIT
                    splits.setdefault(split, set()).add(path)
        return Declaration(CARD, splits, chosen.endings, is_closed=True) if any(splits.values()) else None

    def _config(self, root: str, configs: list[Config]) -> Config:
        """The config that the user chose, or the default one."""
        self._has_configs = True
        names = [config.name for config in configs]
        more = [f"and {len(names) - MAX_LISTED:,} more"] if len(names) > MAX_LISTED else []
        lines = [*(f"config       {name}" for name in names[:MAX_LISTED]), *more]
        if self.choice.config is not None:
            for config in configs:
                if config.name == self.choice.config:
                    return config
            raise UsageError(f"{root} has no config {self.choice.config!r}", *lines, "Choose from these.")
        chosen = default_config(configs)
        if chosen is None:
            advice = f"Choose one: --config {names[0]}."
            raise UsageError(f"{root} has {len(names)} configs, and none of them is the default", *lines, advice)
        if len(configs) > 1:
            others = ", ".join(name for name in names if name != chosen.name)
            shown = others if len(others) < 200 else f"{len(names) - 1:,}"
            self.notes.append(f"config {chosen.name} of {root}, its default. Others for --config: {shown}")
        return chosen

    def _read(self, file: storage.FileInfo, parse_content: Callable[[bytes], list[Declared]]) -> list[Declared]:
        """What a file declares; nothing, with a note, if it cannot be read."""
        try:
            return parse_content(storage.read_start(file, MAX_BYTES))
        except MalformedDataError as error:
            self.notes.append(f"{file.path} cannot be read, so the names of files count for splits: {error}"[:300])
            return []


def looks_like(paths: Iterable[str]) -> list[str]:
    """The splits that the names of files and of directories below their common one look like."""
    names = sorted(set(paths))
    if len(names) < 2:
        return []
    root = os.path.commonprefix([names[0], names[-1]]).rpartition("/")[0]  # noqa: RUF071 - also of addresses
    found: dict[str, None] = {}
    for path in names:
        *directories, name = path[len(root) + 1 :].split("/")
        match = _SHARD.match(name) or _FILE.match(name)
        split = next((each for each in directories if _DIRECTORY.fullmatch(each)), match[1] if match else None)
        if split is not None:
            found[split] = None
    return sorted(found)


def split_by_name(relative: str) -> str | None:
    """The split of a file in one of the Hub's layouts: data/SPLIT-*, SPLIT/* and SPLIT-*."""
    above = _ABOVE.match(relative)
    first, _, rest = relative[above.end() if above else 0 :].partition("/")
    if rest:
        return first if _DIRECTORY.fullmatch(first) else None
    match = _SHARD.match(first) or _FILE.match(first)
    return match[1] if match else None


def _parents(path: str) -> Iterator[str]:
    """The directories above a path, the nearest first."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def _is_whole(listing: storage.Listing) -> bool:
    """Whether a listing is that of a directory or of a whole repository of the Hub."""
    is_below = scheme(listing.searched) == HUB and bool(parse(listing.searched).path)
    return not listing.is_named and not is_below


def _divide(
    listing: storage.Listing, sources: list[Source], declared: Declaration
) -> tuple[dict[str, list[Source]], list[Source]]:
    """The sources of each split that has any, and those without a split."""
    if not _is_whole(listing):
        return {}, sources
    by_split: dict[str, list[Source]] = {split: [] for split in declared.splits}
    others = []
    for source in sources:
        file, kind = source
        if declared.splits:
            splits = [split for split, paths in declared.splits.items() if file.path in paths]
        else:
            by_name = split_by_name(file.path[len(listing.searched) + 1 :]) if kind in NAMED_KINDS else None
            splits = [] if by_name is None else [by_name]
        for split in splits:
            by_split.setdefault(split, []).append(source)
        if not splits:
            others.append(source)
    return {split: files for split, files in by_split.items() if files}, others


def _amount(sources: list[Source]) -> str:
    return f"{count(len(sources), 'file')}, {size(sum(file.size for file, _ in sources))}"


def _lines(by_split: dict[str, list[Source]], others: list[Source]) -> list[str]:
    lines = [f"{split:<12} {_amount(sources)}" for split, sources in list(by_split.items())[:MAX_LISTED]]
    lines += [f"and {len(by_split) - MAX_LISTED:,} more"] if len(by_split) > MAX_LISTED else []
    return [*lines, *([f"without one  {_amount(others)}"] if others else [])]
