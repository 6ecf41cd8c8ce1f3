"""Suggest existing paths for a path that does not exist."""

from __future__ import annotations

import itertools
import os

from tokenmill.humanize import most_similar

# A larger directory is searched only so far, because the comparison takes a while.
MAX_ENTRIES = 10_000

MAX_SUGGESTIONS = 3


def did_you_mean(path: str) -> list[str]:
    """A line for an error message that names paths similar to `path`; empty if there is no such path.

    The first part of the path that does not exist is compared with its neighbors.
    """
    folder, missing, rest = os.path.dirname(path), os.path.basename(path), ""
    while missing and not os.path.isdir(folder):
        folder, missing, rest = os.path.dirname(folder), os.path.basename(folder), os.path.join(missing, rest)
    try:
        with os.scandir(folder or ".") as entries:
            names = [entry.name for entry in itertools.islice(entries, MAX_ENTRIES)]
    except (OSError, ValueError):
        return []
    paths = [os.path.join(folder, name, rest).rstrip("/") for name in most_similar(missing, names, MAX_SUGGESTIONS)]
    existing = [path for path in paths if os.path.exists(path)]
    return [f"Did you mean {' or '.join(existing)}?"] if existing else []
