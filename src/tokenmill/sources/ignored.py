"""Record what source directories and globs contain that is not read, for results, logs and notes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from tokenmill.humanize import Readable, count

# The most frequent extensions are counted one by one, the others together.
MAX_EXTENSIONS = 20
# A longer suffix of a file name does not count as an extension.
MAX_EXTENSION_LENGTH = 16
# How many paths of a kind a result lists. Counts include all paths.
MAX_LISTED = 1000
PATHS_PER_NOTE = 3
NO_EXTENSION = "none"
OTHER_EXTENSIONS = "others"


class Ignored(Readable, msgspec.Struct, frozen=True):
    """What was found but is not read.

    `files` counts files with unknown extensions, and `endings` counts them by extension. `special` lists pipes,
    sockets, devices, broken links, and directories that match a glob. `stores` lists directories of token stores and
    files of the run's own store. `repeated` lists further paths to a file or directory that is read once. These lists
    are truncated; `counts` has the full numbers. `hidden` counts names that begin with a dot.
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
        """One sentence for each kind of thing that is not read, hidden files excepted."""
        lists = {
            "special": "not read, because not a regular file",
            "stores": "not read, because it is a token store",
            "repeated": "read once",
        }
        endings = ", ".join(f"{number:,} {ending}" for ending, number in self.endings.items())
        others = f"not read: {count(self.files, 'file')} with other endings ({endings}), such as {self.example}"
        files = [others] if self.files else []
        found = {kind: getattr(self, kind) for kind in lists}
        return files + [f"{lists[kind]}: {self._first_paths(kind, paths)}" for kind, paths in found.items() if paths]

    def _first_paths(self, kind: str, paths: Sequence[str]) -> str:
        more = self.counts[kind] - len(paths[:PATHS_PER_NOTE])
        return ", ".join(paths[:PATHS_PER_NOTE]) + (f" and {more:,} more" if more else "")


@dataclass
class IgnoredBuilder:
    """Collects what is not read."""

    files: list[str] = field(default_factory=list)
    special: list[tuple[str, str]] = field(default_factory=list)
    stores: list[str] = field(default_factory=list)
    repeated: list[tuple[str, str]] = field(default_factory=list)
    hidden: int = 0

    def build(self, read: Sequence[str]) -> Ignored:
        """The record. `read` lists the paths that are read: another argument may name a file explicitly."""
        read_paths = set(read) if self.files else set[str]()
        unread = [path for path in dict.fromkeys(self.files) if path not in read_paths]
        special = [f"{readable(path)} ({what})" for path, what in sorted(set(self.special))]
        repeated = [_same_file(path, first) for path, first in self.repeated]
        lists = {"special": special, "stores": sorted(set(map(readable, self.stores))), "repeated": repeated}
        return Ignored(
            files=len(unread),
            example=readable(unread[0]) if unread else "",
            endings=_count_extensions(unread),
            hidden=self.hidden,
            counts={name: len(paths) for name, paths in lists.items() if paths},
            **{name: paths[:MAX_LISTED] for name, paths in lists.items()},
        )


def readable(path: str) -> str:
    """A path that can be printed and encoded: bytes that are not UTF-8 are escaped."""
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _same_file(path: str, first: str) -> str:
    if path == first:
        return f"{readable(path)} (given twice)"
    return f"{readable(path)} (the same as {readable(first)})"


def _count_extensions(paths: Sequence[str]) -> dict[str, int]:
    counts = Counter(map(_extension, paths))
    common = dict(sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_EXTENSIONS])
    others = len(paths) - sum(common.values())
    return {**common, OTHER_EXTENSIONS: others} if others else common


def _extension(path: str) -> str:
    extension = readable(os.path.splitext(path)[1].lower())
    return extension if 1 < len(extension) <= MAX_EXTENSION_LENGTH else NO_EXTENSION
