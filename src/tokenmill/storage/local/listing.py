"""List what a local directory or glob names: each directory once, links followed. Suggest paths for a missing one.

A caller can skip directories (SkippedEntry). A listing names everything it meets, also what is not a regular file.
"""

from __future__ import annotations

import errno
import functools
import glob
import heapq
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tokenmill.errors import SourceError
from tokenmill.humanize import most_similar
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.globs import fixed_prefix

Identity = tuple[int, int] | str  # device and inode of a local file or directory; else the address

BROKEN_LINK = "link to a missing file"
MATCHED_DIRECTORY = "directory, which a glob does not search"

# A larger directory is searched for similar names only so far, because the comparison takes a while.
MAX_ENTRIES = 10_000
MAX_SUGGESTIONS = 3

_KINDS = {
    stat.S_IFIFO: "named pipe",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
    stat.S_IFDIR: "directory",
}


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory that a search meets: its path, its identity whatever links lead to it, and the names in it."""

    path: str
    identity: Identity
    names: frozenset[str]


class SkippedEntry(Protocol):
    """Decides which directories below the searched one are skipped."""

    def is_marker(self, name: str) -> bool:
        """Whether the decision depends on a file or directory of this name."""

    def skips(self, directory: Directory) -> bool:
        """Whether to skip a directory with everything in it."""

    def skips_name(self, directory: Directory, name: str) -> bool:
        """Whether to skip one name, and everything below it, in the directory where a glob starts."""


@dataclass(slots=True)
class Listing:
    """The files that a path, directory or glob names, and what else the search met.

    Attributes:
        files: Regular files, unordered.
        searched: The directory that was searched; empty if a path or glob named the files one by one.
        skipped: Directories that the caller's SkippedEntry selected.
        special: Paths that are not regular files, each with what it is.
        linked: Directories that were reached a second time, each with the path by which it was reached first.
        hidden: The number of hidden entries.
    """

    files: list[FileInfo] = field(default_factory=list)
    searched: str = ""
    skipped: list[str] = field(default_factory=list)
    special: list[tuple[str, str]] = field(default_factory=list)
    linked: list[tuple[str, str]] = field(default_factory=list)
    hidden: int = 0

    @property
    def is_named(self) -> bool:
        """Whether a path or glob named the files one by one."""
        return not self.searched


def identity_of(status: os.stat_result, path: str) -> Identity:
    """Device and inode of a file; its path if the file system has no inode numbers."""
    return (status.st_dev, status.st_ino) if status.st_ino else path


def file_info(path: str, status: os.stat_result, *, is_link: bool) -> FileInfo:
    """The FileInfo of a local file."""
    fingerprint = f"{status.st_size}-{status.st_mtime_ns}"
    return FileInfo(path, status.st_size, fingerprint, identity_of(status, path), is_link)


def kind_of_special(mode: int) -> str:
    """A name for what is not a regular file."""
    return _KINDS.get(stat.S_IFMT(mode), "special file")


def walk(root: str, skip: SkippedEntry) -> Listing:
    """Every file below a directory, except hidden ones.

    Directories are visited before links to directories, and links in the order of their paths. So the path by which a
    linked directory is reached does not depend on the order in which the file system lists.
    """
    listing = Listing(searched=root)
    seen: dict[Identity, str] = {}
    pending, links = [root], list[str]()
    while pending or links:
        path = pending.pop() if pending else heapq.heappop(links)
        try:
            identity = identity_of(os.stat(path), path)
            if identity in seen:
                listing.linked.append((path, seen[identity]))
                continue
            seen[identity] = path
            with os.scandir(path) as scanned:
                entries = sorted(scanned, key=lambda entry: entry.name)
        except OSError as error:
            raise _cannot_list(path, error) from error
        if skip.skips(Directory(path, identity, frozenset(entry.name for entry in entries))):
            listing.skipped.append(path)
            continue
        for entry in entries:
            _add_entry(entry, listing, pending, links)
    return listing


def _add_entry(entry: os.DirEntry[str], listing: Listing, pending: list[str], links: list[str]) -> None:
    """Add a file to the listing, and a directory to those that are visited next."""
    if entry.name.startswith("."):
        listing.hidden += 1
        return
    try:
        status = None if entry.is_dir() else entry.stat()
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP):
            raise _cannot_list(entry.path, error) from error
        if entry.is_symlink():  # anything else was removed a moment ago
            listing.special.append((entry.path, BROKEN_LINK))
        return
    if status is not None:
        _add_file(listing, entry.path, status, is_link=entry.is_symlink())
    elif entry.is_symlink():
        heapq.heappush(links, entry.path)
    else:
        pending.append(entry.path)


def _add_file(listing: Listing, path: str, status: os.stat_result, *, is_link: bool) -> None:
    if stat.S_ISREG(status.st_mode):
        listing.files.append(file_info(path, status, is_link=is_link))
    else:
        listing.special.append((path, kind_of_special(status.st_mode)))


def match(pattern: str, skip: SkippedEntry) -> Listing:
    """The files that match a glob. A matching directory is `special`, unless the pattern has ** and searches it."""
    listing = Listing()
    root, directory_at = fixed_prefix(pattern), functools.cache(_directory_at)
    skipped: dict[str, None] = {}
    for path in dict.fromkeys(glob.glob(pattern, recursive=True)):
        directory = _skipped_above(root, path, skip, directory_at, is_named=True)
        if directory is not None:
            skipped[directory] = None
            continue
        try:
            status = os.stat(path)
        except OSError:
            listing.special.append((path, BROKEN_LINK))
            continue
        if not stat.S_ISDIR(status.st_mode):
            _add_file(listing, path, status, is_link=os.path.islink(path))
        elif "**" not in pattern:
            listing.special.append((path, MATCHED_DIRECTORY))
    listing.skipped.extend(skipped)
    return listing


def _skipped_above(
    root: str, path: str, skip: SkippedEntry, directory_at: Callable[[str], Directory | None], *, is_named: bool
) -> str | None:
    """The outermost skipped directory above a path below a root; None if the path is to be listed.

    A root that is only the start of a pattern (`is_named`) is not skipped itself, but names in it may be.
    """
    for place, name in _directories_above(root, path):
        directory = directory_at(place)
        if directory is None:
            continue
        if skip.skips_name(directory, name) if is_named and place == root else skip.skips(directory):
            return directory.path
    return None


def _directory_at(path: str) -> Directory | None:
    path = path or "/"
    try:
        return Directory(path, identity_of(os.stat(path), path), frozenset(os.listdir(path)))
    except OSError:
        return None


def without_skipped(root: str, files: list[FileInfo], skip: SkippedEntry, *, is_named: bool) -> Listing:
    """The listing of remote files below an address, without those in directories that `skip` selects."""
    names: dict[str, set[str]] = {}
    for file in files:
        for directory, name in _directories_above(root, file.path):
            markers = names.setdefault(directory, set())
            if skip.is_marker(name):
                markers.add(name)
    directories = {path: Directory(path, path, frozenset(markers)) for path, markers in names.items()}
    reasons = [_skipped_above(root, file.path, skip, directories.get, is_named=is_named) for file in files]
    kept = [file for file, reason in zip(files, reasons, strict=True) if reason is None]
    return Listing(kept, "" if is_named else root, sorted({reason for reason in reasons if reason is not None}))


def _directories_above(root: str, path: str) -> Iterator[tuple[str, str]]:
    """The directories from an address down to a file, each with the next name on the way."""
    if not path.startswith(f"{root}/"):
        return
    directory = root
    for name in path[len(root) + 1 :].split("/"):
        yield directory, name
        directory = f"{directory}/{name}"


def _cannot_list(path: str, error: OSError) -> SourceError:
    return SourceError(f"cannot list {error.filename or path}", os.strerror(error.errno or 0))


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
