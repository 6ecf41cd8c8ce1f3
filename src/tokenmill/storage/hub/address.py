"""Addresses of the Hub's datasets: `hf://datasets/ORG/NAME@REVISION/path`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote

from tokenmill.errors import SourceError

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_ADDRESS = re.compile(rf"hf://datasets/({_NAME}/{_NAME})(?:@(refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(.*))?", re.DOTALL)
_SHORT = re.compile(rf"hf://(?!(?:datasets|models|spaces|buckets)/)({_NAME}/{_NAME}.*)", re.DOTALL)
_COMMIT = re.compile("[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubAddress:
    """A path in a revision of a dataset: a file, a directory, a glob, or empty for the whole dataset."""

    repository: str
    revision: str
    path: str

    @property
    def url(self) -> str:
        """The address as users write it."""
        return f"hf://datasets/{self.repository}@{quote(self.revision, safe='')}/{self.path}"

    @property
    def is_pinned(self) -> bool:
        """Whether the revision is a commit, which never changes, and not a branch or tag."""
        return is_commit(self.revision)

    def at(self, commit: str, path: str) -> HubAddress:
        """The address of a path in a commit of the same dataset."""
        return HubAddress(self.repository, commit, path)


def parse(url: str) -> HubAddress:
    """Parse an address. Raises SourceError if it is not one of a dataset."""
    url = f"hf{url[2:]}"  # the scheme in lower case
    match = _ADDRESS.fullmatch(url)
    path = match[3] or "" if match else ""
    if match is None or ".." in path.split("/"):
        short = _SHORT.fullmatch(url)
        raise SourceError(
            "this is not an address of a dataset on the Hub",
            f"given        {url}",
            "expected     hf://datasets/ORG/NAME/PATH or hf://datasets/ORG/NAME@REVISION/PATH",
            f"Did you mean hf://datasets/{short[1]}?"
            if short
            else "Only datasets can be read, no models and no spaces. PATH is a file, a directory or a glob.",
        )
    names = [name for name in path.split("/") if name not in ("", ".")]
    return HubAddress(match[1], unquote(match[2] or "main"), "/".join(names))


def is_commit(revision: str) -> bool:
    """Whether a revision is the full hash of a commit."""
    return bool(_COMMIT.fullmatch(revision))
