"""Globs over keys, as they are over local paths: `*` stays within a name, `**` crosses directories."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Sequence

BRACES = re.compile(r"\{[^{}/]*(,|\.\.)[^{}/]*\}")


def fixed_prefix(pattern: str) -> str:
    """The directories before the first one that holds a wildcard: what has to be listed."""
    names = pattern.split("/")
    fixed = next((place for place, name in enumerate(names) if glob.has_magic(name)), len(names))
    return "/".join(names[:fixed])


def braces(pattern: str) -> list[str]:
    """What to tell of a pattern that matches nothing and means something to a shell only: {a,b} or {0..9}."""
    return ["{ } is no pattern here: use *, ? or [ ], or name each."] * bool(BRACES.search(pattern))


def matches(key: str, pattern: str) -> bool:
    """Whether a key matches. Names that begin with a dot are only matched by one that does, too."""
    return _matches(key.split("/"), pattern.split("/"))


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not names
    first, rest = patterns[0], patterns[1:]
    if first == "**":
        hidden = next((place for place, name in enumerate(names) if name.startswith(".")), len(names))
        return any(_matches(names[place:], rest or ["*"]) for place in range(hidden + 1))
    if not names or (names[0].startswith(".") and not first.startswith(".")):
        return False
    return fnmatch.fnmatchcase(names[0], first) and _matches(names[1:], rest)
