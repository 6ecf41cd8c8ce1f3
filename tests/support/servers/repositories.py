"""A repository of the tests' hub: local files under the names, hashes and revision that the Hub would show."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Any

LFS_ENDINGS = (".parquet", ".arrow", ".gz", ".zst")
LFS_BYTES = 10_000_000
"""Files of these kinds, and all others from this size on, are kept outside git, and read from the CDN."""

BRANCH = "main"


@cache
def _digest(path: Path, size: int, _changed_ns: int, algorithm: str, prefix: bytes) -> str:
    """The hash of a file, read once as long as it does not change."""
    digest = hashlib.new(algorithm, prefix, usedforsecurity=False)
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _blob_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


@dataclass(frozen=True)
class File:
    """One file of a repository."""

    name: str
    path: Path

    @property
    def size(self) -> int:
        """Its size in bytes."""
        return self.path.stat().st_size

    @property
    def in_lfs(self) -> bool:
        """Whether it is kept outside git."""
        return self.name.endswith(LFS_ENDINGS) or self.size >= LFS_BYTES

    @property
    def etag(self) -> str:
        """What the Hub calls its content: SHA-256 outside git, the SHA-1 of the blob in git."""
        status = self.path.stat()
        key = (self.path, status.st_size, status.st_mtime_ns)
        return _digest(*key, "sha256", b"") if self.in_lfs else _digest(*key, "sha1", b"blob %d\0" % status.st_size)

    def entry(self) -> dict[str, Any]:
        """The file in a listing."""
        common = {"type": "file", "size": self.size, "path": self.name}
        if not self.in_lfs:
            return {**common, "oid": self.etag}
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.etag}\nsize {self.size}\n".encode()
        lfs = {"oid": self.etag, "size": self.size, "pointerSize": len(pointer)}
        return {**common, "oid": _blob_sha1(pointer), "lfs": lfs}


@dataclass
class Repository:
    """A repository with one branch and one commit. `gate` is the token that reads its files, if it is gated."""

    name: str
    files: dict[str, File]
    token: str | None = None
    given_sha: str | None = None
    gate: str | None = None
    _computed_sha: list[str] = field(default_factory=list)

    @classmethod
    def create(
        cls, name: str, content: Path | Mapping[str, Path], sha: str | None = None, token: str | None = None
    ) -> Repository:
        """A repository of the files below a folder, or of a mapping from names to files."""
        if isinstance(content, Path):
            paths = sorted(path for path in content.rglob("*") if path.is_file())
            content = {path.relative_to(content).as_posix(): path for path in paths}
        return cls(name, {key: File(key, content[key]) for key in sorted(content)}, token, sha)

    @property
    def sha(self) -> str:
        """The commit: the one given, or one computed from the content at first sight."""
        if self.given_sha:
            return self.given_sha
        if not self._computed_sha:
            listing = "".join(f"{file.name} {file.etag}\n" for file in self.files.values())
            self._computed_sha.append(_blob_sha1(listing.encode()))
        return self._computed_sha[0]

    def knows(self, revision: str) -> bool:
        """Whether there is such a revision."""
        return revision in {BRANCH, f"refs/heads/{BRANCH}", self.sha}

    def replace(self, name: str, path: Path) -> None:
        """Put another content under a name, in the same revision. The Hub never does; a wrong mirror or cache might."""
        if name not in self.files:
            raise KeyError(name)
        self.given_sha = self.sha
        self.files[name] = File(name, path)

    def info(self) -> dict[str, Any]:
        """What the Hub tells about the repository as a whole."""
        siblings = [{"rfilename": name} for name in self.files]
        private = self.token is not None
        state = {"private": private, "gated": False, "disabled": False, "tags": [], "downloads": 0, "likes": 0}
        return {
            "_id": _blob_sha1(self.name.encode())[:24],
            "id": self.name,
            "sha": self.sha,
            "siblings": siblings,
        } | state

    @cached_property
    def folders(self) -> set[str]:
        """All folders, without the topmost."""
        parents = {parent.as_posix() for name in self.files for parent in PurePosixPath(name).parents}
        return parents - {"."}

    def listing(self, folder: str, recursive: bool) -> list[str] | None:
        """The names of what is in a folder, in order; None if there is no such folder."""
        if folder and folder not in self.folders:
            return None
        start = f"{folder}/" if folder else ""
        names = [name for name in {*self.files, *self.folders} if name.startswith(start)]
        return sorted(name for name in names if recursive or "/" not in name[len(start) :])

    def entry(self, name: str) -> dict[str, Any] | None:
        """A file or folder in a listing; None if there is none."""
        if name in self.files:
            return self.files[name].entry()
        if name in self.folders:
            return {"type": "directory", "oid": _blob_sha1(name.encode()), "size": 0, "path": name}
        return None
