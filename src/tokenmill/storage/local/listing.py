"""What a directory or a glob of a disk names: each directory once, links followed, and all that is no file by its path.

A caller can keep directories out (`Apart`). Nothing that is met is dropped in silence: what is not a file to read is in
the listing, too.
"""

from __future__ import annotations

import errno
import glob
import heapq
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

from tokenmill.errors import SourceError
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.globs import fixed_prefix

Identity = tuple[int, int] | str
"""A file or directory of a disk by device and inode; anything else by its address."""

BROKEN_LINK = "link to a missing file"
MATCHED_DIRECTORY = "directory, which a glob does not search"
_KINDS = {
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFDIR: "directory",
}


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory as it was met: its path, what it is wherever it is linked to, and the names in it."""

    path: str
    identity: Identity
    names: frozenset[str]


class SkippedEntry(Protocol):
    """Decides which directories are not searched, although they are below one that is."""

    def is_mark(self, name: str) -> bool:
        """Whether the name of a file or directory has a part in that decision."""

    def holds(self, directory: Directory) -> bool:
        """Whether nothing in a directory is to be listed."""

    def owns(self, directory: Directory, name: str) -> bool:
        """Whether one name in the directory that a glob starts from, and all below it, is not to be listed."""


class _Nothing:
    """Keeps nothing apart."""

    def is_mark(self, name: str) -> bool:  # noqa: ARG002 - part of the protocol
        """No name matters."""
        return False

    def holds(self, directory: Directory) -> bool:  # noqa: ARG002
        """No directory is kept out."""
        return False

    def owns(self, directory: Directory, name: str) -> bool:  # noqa: ARG002
        """No name is kept out."""
        return False


EVERYTHING: Final[SkippedEntry] = _Nothing()


@dataclass(slots=True)
class Listing:
    """The files that a path, directory or glob names, unordered, and what was met beside them.

    `searched` is the directory that was searched; empty if the files were named one by one (a path or a glob). `apart`
    are directories that the caller keeps out. `special` are paths that are no regular files, and what they are.
    `linked` are directories that were reached a second time, and where they were reached first.
    """

    files: list[FileInfo] = field(default_factory=list)
    searched: str = ""
    apart: list[str] = field(default_factory=list)
    special: list[tuple[str, str]] = field(default_factory=list)
    linked: list[tuple[str, str]] = field(default_factory=list)
    hidden: int = 0

    @property
    def is_named(self) -> bool:
        """Whether the files were named one by one."""
        return not self.searched


def identity_of(status: os.stat_result, path: str) -> Identity:
    """What tells a file apart from all others; its path, where a file system has no numbers for its files."""
    return (status.st_dev, status.st_ino) if status.st_ino else path


def file_info(path: str, status: os.stat_result, *, is_link: bool) -> FileInfo:
    """A file of a disk."""
    fingerprint = f"{status.st_size}-{status.st_mtime_ns}"
    return FileInfo(path, status.st_size, fingerprint, identity_of(status, path), is_link)


def kind_of_special(mode: int) -> str:
    """What something is that is neither a file nor a directory."""
    return _KINDS.get(stat.S_IFMT(mode), "special file")


def walk(root: str, apart: SkippedEntry) -> Listing:
    """Every file below a directory, hidden ones left out.

    Directories come before links to directories, and links in the order of their paths: which of two paths to the same
    directory is taken does not depend on the order in which the file system lists them.
    """
    found = Listing(searched=root)
    seen: dict[Identity, str] = {}
    pending, links = [root], list[str]()
    while pending or links:
        path = pending.pop() if pending else heapq.heappop(links)
        try:
            identity = identity_of(os.stat(path), path)
            if identity in seen:
                found.linked.append((path, seen[identity]))
                continue
            seen[identity] = path
            with os.scandir(path) as listed:
                entries = sorted(listed, key=lambda entry: entry.name)
        except OSError as error:
            raise _cannot_list(path, error) from error
        if apart.holds(Directory(path, identity, frozenset(entry.name for entry in entries))):
            found.apart.append(path)
            continue
        for entry in entries:
            _take(entry, found, pending, links)
    return found


def _take(entry: os.DirEntry[str], found: Listing, pending: list[str], links: list[str]) -> None:
    """Put one entry of a directory where it belongs."""
    if entry.name.startswith("."):
        found.hidden += 1
        return
    try:
        status = None if entry.is_dir() else entry.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise _cannot_list(entry.path, error) from error
        if entry.is_symlink():  # anything else was removed a moment ago
            found.special.append((entry.path, BROKEN_LINK))
        return
    if status is not None:
        _add(found, entry.path, status, is_link=entry.is_symlink())
    elif entry.is_symlink():
        heapq.heappush(links, entry.path)
    else:
        pending.append(entry.path)


def _add(found: Listing, path: str, status: os.stat_result, *, is_link: bool) -> None:
    if stat.S_ISREG(status.st_mode):
        found.files.append(file_info(path, status, is_link=is_link))
    else:
        found.special.append((path, kind_of_special(status.st_mode)))


def match(pattern: str, apart: SkippedEntry) -> Listing:
    """The files that match a glob. Directories that match are not searched: they are `special`, unless ** searches."""
    found = Listing()
    keepers = _Keepers(fixed_prefix(pattern), apart)
    kept_out: dict[str, None] = {}
    for path in dict.fromkeys(glob.glob(pattern, recursive=True)):
        keeper = keepers.of(path)
        if keeper is not None:
            kept_out[keeper] = None
            continue
        try:
            status = os.stat(path)
        except OSError:
            found.special.append((path, BROKEN_LINK))
            continue
        if not stat.S_ISDIR(status.st_mode):
            _add(found, path, status, is_link=os.path.islink(path))
        elif "**" not in pattern:
            found.special.append((path, MATCHED_DIRECTORY))
    found.apart.extend(kept_out)
    return found


class _Keepers:
    """The directories that keep paths out of what a glob matches. Each directory is looked at once."""

    def __init__(self, root: str, apart: SkippedEntry) -> None:
        self._root = root
        self._apart = apart
        self._start = self._directory(root or "/")
        self._held: dict[str, bool] = {}

    def of(self, path: str) -> str | None:
        """The directory that a path is not to be listed because of, if there is one."""
        at = len(self._root)
        after = path.find("/", at + 1)
        name = path[at + 1 : after if after != -1 else len(path)]
        if self._start is not None and self._apart.owns(self._start, name):
            return self._start.path
        while after != -1:
            if self._holds(path[:after]):
                return path[:after]
            after = path.find("/", after + 1)
        return None

    def _holds(self, path: str) -> bool:
        if path not in self._held:
            directory = self._directory(path)
            self._held[path] = directory is not None and self._apart.holds(directory)
        return self._held[path]

    @staticmethod
    def _directory(path: str) -> Directory | None:
        try:
            return Directory(path, identity_of(os.stat(path), path), frozenset(os.listdir(path)))
        except OSError:
            return None


def without_apart(root: str, files: list[FileInfo], apart: SkippedEntry, *, is_named: bool) -> Listing:
    """Files behind a network that were found below an address, without those in directories that are kept out."""
    names: dict[str, set[str]] = {}
    for file in files:
        for directory, name in _above(root, file.path):
            marks = names.setdefault(directory, set())
            if apart.is_mark(name):
                marks.add(name)
    directories = {path: Directory(path, path, frozenset(marks)) for path, marks in names.items()}
    held = {
        path for path, directory in directories.items() if apart.holds(directory) and not (is_named and path == root)
    }

    def keeper(path: str) -> str | None:
        for directory, name in _above(root, path):
            if directory in held or (is_named and directory == root and apart.owns(directories[root], name)):
                return directory
        return None

    keepers = [keeper(file.path) for file in files]
    kept = [file for file, by in zip(files, keepers, strict=True) if by is None]
    return Listing(kept, "" if is_named else root, sorted({by for by in keepers if by is not None}))


def _above(root: str, path: str) -> Iterator[tuple[str, str]]:
    """The directories that lead from an address to a file, the outermost first, each with the name that follows it."""
    if not path.startswith(f"{root}/"):
        return
    directory = root
    for name in path[len(root) + 1 :].split("/"):
        yield directory, name
        directory = f"{directory}/{name}"


def _cannot_list(path: str, error: OSError) -> SourceError:
    return SourceError(f"cannot list {error.filename or path}", os.strerror(error.errno or 0))
