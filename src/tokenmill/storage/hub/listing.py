"""Datasets on the Hugging Face Hub as sources: list their files at a commit."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import quote, urljoin

import msgspec

from tokenmill.errors import USAGE, SourceError, StorageError
from tokenmill.humanize import count
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.globs import braces, fixed_prefix, matches
from tokenmill.storage.hub.address import HubAddress, is_commit, parse
from tokenmill.storage.hub.cache import kept_copy, local_copy
from tokenmill.storage.hub.client import endpoint
from tokenmill.storage.hub.files import fetch, locate
from tokenmill.storage.hub.requests import (
    CHECK_ENDPOINT,
    FIRST_ATTEMPTS,
    Backoff,
    TransientError,
    answer,
    check,
    is_missing,
    not_the_hub,
)
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode

__all__ = ["fetch", "find", "kept_copy", "local_copy", "stat"]

T = TypeVar("T")

# Of one page. The Hub's have less than 1 MB.
MAX_PAGE_BYTES = 64 << 20
# Of one listing. The Hub has up to 1,000 entries on a page, about 300 bytes each, and advises against more than 100,000
# files in a repository.
MAX_PAGES = 5_000
MAX_ENTRIES = 2_000_000
MAX_LISTING_BYTES = 1 << 30


class _Commit(msgspec.Struct):
    """The used part of the Hub's description of a dataset."""

    sha: str


class _LfsFile(msgspec.Struct):
    """A file stored outside git: its SHA-256."""

    oid: str


class _TreeEntry(msgspec.Struct):
    """A file or directory in a listing."""

    kind: str = msgspec.field(name="type")
    path: str
    oid: str
    size: int = 0
    lfs: _LfsFile | None = None


def find(url: str) -> tuple[bool, list[FileInfo]]:
    """The files that a URL names: one, those that match it (both True), or those below it (False).

    A branch or tag is resolved to a commit once. The URLs of the files contain that commit.
    """
    address = parse(url)
    is_glob = glob.has_magic(address.path)
    if address.path and not is_glob and not url.endswith("/"):
        location = locate(address, FIRST_ATTEMPTS)
        if location is not None:
            return True, [location.info]
    address = address.at(_commit(address), address.path)
    return (True, _matching(url, address)) if is_glob else (False, _below(url, address))


def stat(url: str) -> FileInfo:
    """Size and fingerprint of one file: SHA-256 of a large file, SHA-1 of the git blob of a small one."""
    location = locate(parse(url), FIRST_ATTEMPTS)
    if location is None:
        raise SourceError(f"there is no {url}")
    return location.info


def _matching(url: str, address: HubAddress) -> list[FileInfo]:
    """The files that match a glob, or the one file whose name is the pattern itself."""
    folder = fixed_prefix(address.path)
    pattern = address.path[len(folder) :].strip("/")
    files = _files(address.at(address.revision, folder), recursive="/" in pattern or "**" in pattern)
    if files is None:
        raise _no_folder(address, folder)
    listed = list(files)
    exact = [file for file in listed if file.path == address.path]
    chosen = exact or [file for file in listed if matches(file.path, address.path)]
    if not chosen:
        raise SourceError(
            f"no file matches {url}", f"looked at    commit {address.revision}", *braces(address.path), exit_code=USAGE
        )
    return [_info(address, file) for file in chosen]


def _below(url: str, address: HubAddress) -> list[FileInfo]:
    """The files below a directory, except hidden ones."""
    files = _files(address, recursive=True)
    if files is None:
        details = (f"looked at    commit {address.revision}", *braces(address.path))
        raise SourceError(f"no such file or directory: {url}", *details, exit_code=USAGE)
    start = len(address.path)
    return [_info(address, file) for file in files if not re.search(r"(^|/)\.", file.path[start:])]


def _no_folder(address: HubAddress, folder: str) -> SourceError:
    """The error for a glob in a folder that does not exist, such as a version that a named dataset does not have."""
    above = folder.rpartition("/")[0]
    return SourceError(
        f"{address.repository} has no {folder} at its commit {address.revision}",
        f"looked for   {address.url}",
        *braces(folder),
        f"See {endpoint()}/datasets/{address.repository}/tree/{address.revision}/{above}".rstrip("/"),
        exit_code=USAGE,
    )


def _info(address: HubAddress, file: _TreeEntry) -> FileInfo:
    return FileInfo(address.at(address.revision, file.path).url, file.size, file.lfs.oid if file.lfs else file.oid)


def _commit(address: HubAddress) -> str:
    """The commit of a revision now."""
    if address.is_pinned:
        return address.revision
    # Without `expand` the answer would list every file.
    target = f"{endpoint()}/api/datasets/{address.repository}/revision/{quote(address.revision, safe='')}?expand=sha"
    page = _page(address, target, _Commit)
    if page is None or not is_commit(page[0].sha):
        raise SourceError(f"the dataset has no revision {address.revision}", f"file         {address.url}")
    return page[0].sha


def _files(folder: HubAddress, recursive: bool) -> Iterator[_TreeEntry] | None:
    """The files in a directory; None if the directory does not exist."""
    path = f"/{quote(folder.path, safe='')}" if folder.path else ""
    target = (
        f"{endpoint()}/api/datasets/{folder.repository}/tree/{folder.revision}{path}?recursive={recursive}&expand=False"
    )
    first = _page(folder, target, list[_TreeEntry])
    return None if first is None else _pages(folder, *first)


def _pages(folder: HubAddress, page: list[_TreeEntry], following: str | None, read: int) -> Iterator[_TreeEntry]:
    """The files of a page of `read` bytes, and those of the pages after it. Raises SourceError if there is no end."""
    pages, entries = 1, len(page)
    yield from (entry for entry in page if entry.kind == "file")
    while following is not None:
        if pages >= MAX_PAGES or entries >= MAX_ENTRIES or read >= MAX_LISTING_BYTES:
            raise _endless(
                folder,
                f"read         {count(pages, 'page')}, {entries:,} entries, {read:,} bytes, and more follow",
                f"maximum      {MAX_PAGES:,} pages, {MAX_ENTRIES:,} entries, {MAX_LISTING_BYTES:,} bytes",
            )
        next_page = _page(folder, following, list[_TreeEntry])
        if next_page is None:  # never seen
            raise StorageError("a listing of the Hub breaks off", f"file         {folder.url}")
        page, following, page_bytes = next_page
        pages, entries, read = pages + 1, entries + len(page), read + page_bytes
        yield from (entry for entry in page if entry.kind == "file")


def _page(address: HubAddress, target: str, kind: type[T]) -> tuple[T, str | None, int] | None:
    """One page of the Hub, the URL of the next one, and the page's bytes; None if the path does not exist."""
    backoff = Backoff(address, FIRST_ATTEMPTS)
    while True:
        try:
            with answer("GET", target) as response:
                if is_missing(response):
                    return None
                check(address, response)
                following = response.links.get("next", {}).get("url")
                content = _body(address, response)
                return decode(content, kind), following and urljoin(target, following), len(content)
        except TransientError as error:
            backoff.wait(error)
        except MalformedDataError as error:
            raise not_the_hub(address, str(error)) from error


def _body(address: HubAddress, response: Any) -> bytes:
    """The content of an answer. Raises SourceError before more than the largest page is in memory."""
    content = bytearray()
    for chunk in response.iter_bytes():
        content += chunk
        if len(content) > MAX_PAGE_BYTES:
            raise _endless(
                address,
                f"read         {len(content):,} bytes of one page, and more follow",
                f"maximum      {MAX_PAGE_BYTES:,} bytes of a page",
            )
    return bytes(content)


def _endless(address: HubAddress, read: str, maximum: str) -> SourceError:
    advice = "For a larger dataset, name directories or globs below it: each is a listing of its own."
    return SourceError(
        "a listing of the Hub is too long", f"file         {address.url}", read, maximum, CHECK_ENDPOINT, advice
    )
