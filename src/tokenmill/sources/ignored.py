"""What is met in source directories and globs and is not read: counted and named, in results, logs and notes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tokenmill.humanize import count

MAX_ENDINGS = 20
"""How many endings are counted one by one: those that most files have."""

MAX_ENDING_LENGTH = 16
"""What follows the last dot of a name is an ending if it is not longer."""

MAX_LISTED = 1000
"""How many paths of a kind a result names. The counts are of all."""

NAMED = 3
"""How many paths a note names."""

NO_ENDING = "none"
OTHER_ENDINGS = "others"


class Ignored(msgspec.Struct, frozen=True):
    """What was met and is not read.

    `files` have endings that are not known, and `endings` counts them by ending. `special` are pipes, sockets, devices,
    links to nothing, and directories that match a glob. `stores` are directories of token stores, or files of the run's
    own store. `repeated` are further paths to a file or directory that is read once. Of paths, the first are named;
    `counts` has how many there are. `hidden` counts names that begin with a dot.
    """

    files: int = 0
    example: str = ""
    endings: dict[str, int] = {}
    special: list[str] = []
    stores: list[str] = []
    repeated: list[str] = []
    hidden: int = 0
    counts: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.files or self.counts)

    def notes(self) -> list[str]:
        """One sentence for each kind of thing that is not read. Hidden files are never meant, and have none."""
        found = []
        if self.files:
            found.append(f"not read: {self.files_note()}")
        if self.special:
            found.append(f"not read, because not a regular file: {self._some('special', self.special)}")
        if self.stores:
            found.append(f"not read, because it is a token store: {self._some('stores', self.stores)}")
        if self.repeated:
            found.append(f"read once: {self._some('repeated', self.repeated)}")
        return found

    def files_note(self) -> str:
        """The files with other endings in one line."""
        endings = ", ".join(f"{number:,} {ending}" for ending, number in self.endings.items())
        return f"{count(self.files, 'file')} with other endings ({endings}), such as {self.example}"

    def _some(self, kind: str, paths: Sequence[str]) -> str:
        more = self.counts[kind] - len(paths[:NAMED])
        return ", ".join(paths[:NAMED]) + (f" and {more:,} more" if more else "")


@dataclass
class IgnoredBuilder:
    """Collects what is not read."""

    files: list[str] = field(default_factory=list)
    special: list[tuple[str, str]] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    repeated: list[tuple[str, str]] = field(default_factory=list)
    hidden: int = 0

    def build(self, read: Sequence[str]) -> Ignored:
        """The record, without the paths that another argument has named and that are read."""
        taken = set(read) if self.files else set[str]()
        left = [path for path in dict.fromkeys(self.files) if path not in taken]
        special = [f"{readable(path)} ({what})" for path, what in sorted(set(self.special))]
        repeated = [_same(path, first) for path, first in self.repeated]
        lists = {"special": special, "stores": sorted(set(map(readable, self.stores))), "repeated": repeated}
        return Ignored(
            files=len(left),
            example=readable(left[0]) if left else "",
            endings=_by_ending(left),
            hidden=self.hidden,
            counts={name: len(paths) for name, paths in lists.items() if paths},
            **{name: paths[:MAX_LISTED] for name, paths in lists.items()},
        )


def readable(path: str) -> str:
    """A path that can be printed and encoded; bytes of it that are not UTF-8 are escaped."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _same(path: str, first: str) -> str:
    if path == first:
        return f"{readable(path)} (given twice)"
    return f"{readable(path)} (the same as {readable(first)})"


def _by_ending(paths: Sequence[str]) -> dict[str, int]:
    counted = Counter(map(_ending, paths))
    common = dict(sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:MAX_ENDINGS])
    others = len(paths) - sum(common.values())
    return {**common, OTHER_ENDINGS: others} if others else common


def _ending(path: str) -> str:
    ending = readable(os.path.splitext(path)[1].lower())
    return ending if 1 < len(ending) <= MAX_ENDING_LENGTH else NO_ENDING
