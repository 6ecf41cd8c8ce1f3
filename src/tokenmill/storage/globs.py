"""Glob patterns over object keys, with the rules of local paths: `*` stays within a name, `**` crosses directories."""

from __future__ import annotations

import fnmatch
import glob
import re
from collections.abc import Sequence

BRACES = re.compile(r"\{[^{}/]*(,|\.\.)[^{}/]*\}")


def fixed_prefix(pattern: str) -> str:
    """The directories before the first one with a wildcard: the directory to list."""
    names = pattern.split("/")
    fixed = next((index for index, name in enumerate(names) if glob.has_magic(name)), len(names))
    return "/".join(names[:fixed])


def braces(pattern: str) -> list[str]:
    """Advice for a pattern that matches nothing because it uses a shell's {a,b} or {0..9}; empty for others."""
    return ["{ } is no pattern here: use *, ? or [ ], or name each."] * bool(BRACES.search(pattern))


def matches(key: str, pattern: str) -> bool:
    """Whether a key matches. A name that begins with a dot needs a pattern that begins with a dot."""
    return _matches(key.split("/"), pattern.split("/"))


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not names
    first, rest = patterns[0], patterns[1:]
    if first == "**":
        hidden = next((index for index, name in enumerate(names) if name.startswith(".")), len(names))
        return any(_matches(names[index:], rest or ["*"]) for index in range(hidden + 1))
    if not names or (names[0].startswith(".") and not first.startswith(".")):
        return False
    return fnmatch.fnmatchcase(names[0], first) and _matches(names[1:], rest)
