"""Objects as sources: find them by key, directory or glob, and read byte ranges of one version."""

from __future__ import annotations

import glob
import itertools
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tokenmill.errors import USAGE, SourceError
from tokenmill.storage.addresses import FileInfo, absolute, check, split_url
from tokenmill.storage.globs import braces, fixed_prefix, matches
from tokenmill.storage.local.files import check_size
from tokenmill.storage.objects import clients
from tokenmill.storage.objects.errors import another_version, explained, failed
from tokenmill.storage.objects.requests import request
from tokenmill.system.storage_settings import current

if TYPE_CHECKING:
    from obstore.store import ObjectStore

LIST_PER_BATCH = 1000


def find(url: str) -> tuple[bool, list[FileInfo]]:
    """The objects that a URL names: one, those that match it (both True), or those below it (False)."""
    check(url)
    url = absolute(url)
    scheme, bucket, key = split_url(url)
    if glob.has_magic(key):
        listed = below(f"{scheme}://{bucket}/{fixed_prefix(key)}")
        matching = [file for file in listed if matches(split_url(file.path)[2], key)]
        files = [file for file in matching if file.size or stat_existing(file.path)]  # else it marks a directory
        if not files:
            raise SourceError(f"no object matches {url}", *braces(key), exit_code=USAGE)
        return True, files
    if key and (file := stat_existing(url)) is not None:
        return True, [file]
    files = [file for file in below(url) if not re.search(r"(^|/)\.", file.path[len(url) :])]
    if not files:
        raise SourceError(f"there is no object {url}, and no object below it", *braces(key), exit_code=USAGE)
    return False, files


def below(url: str, store: ObjectStore | None = None) -> Iterator[FileInfo]:
    """Every object below a URL, except the empty objects that mark directories.

    Their keys end with a slash, which the client removes. Keys are sorted: the content of a directory follows it.
    """
    store, prefix = _at(url, store)
    root = url[: len(url) - len(prefix)].rstrip("/")
    metas = (meta for page in _pages(url, store, prefix) for meta in page)
    files = (FileInfo(f"{root}/{meta['path']}", meta["size"], _fingerprint(meta)) for meta in metas)
    for file, following in itertools.pairwise(itertools.chain(files, [FileInfo("", 0, "")])):
        is_directory = file.path == url or following.path.startswith(f"{file.path}/")
        if file.size or not is_directory:
            yield file


def sizes_below(url: str, store: ObjectStore | None = None) -> Iterator[tuple[str, int]]:
    """Names and sizes of all objects below a URL. A name is what follows the URL."""
    return ((file.path[len(url) + 1 :], file.size) for file in below(url, store))


def sizes_between(url: str, after: str, until: str | None, store: ObjectStore | None = None) -> list[tuple[str, int]]:
    """Names and sizes of the objects directly below a URL, after one name and up to another one, in key order."""
    store, prefix = _at(url, store)
    files: list[tuple[str, int]] = []
    for page in _pages(url, store, prefix, f"{prefix}/{after}"):
        sizes = [(meta["path"][len(prefix) + 1 :], meta["size"]) for meta in page]
        files += [(name, size) for name, size in sizes if "/" not in name and (until is None or name <= until)]
        if until is not None and sizes[-1][0] > until:
            break
    return files


def _at(url: str, store: ObjectStore | None) -> tuple[ObjectStore, str]:
    """The given client, or that of the current settings, and the key of a URL."""
    return (store, split_url(url)[2]) if store is not None else clients.client(url, current())


def _pages(url: str, store: Any, prefix: str, last: str | None = None) -> Iterator[Any]:
    """The pages of a listing, after a key if one is given. A page that breaks off is requested again."""
    import obstore  # noqa: PLC0415 - not for local runs
    from obstore.exceptions import BaseError  # noqa: PLC0415

    pages: Iterator[Any] | None = None

    def next_page() -> Any:
        nonlocal pages
        rest = pages or iter(obstore.list(store, prefix or None, offset=last, chunk_size=LIST_PER_BATCH))
        pages = None  # after an error, a new listing begins after the last key
        page = next(rest, None)
        pages = rest
        return page

    try:
        while (page := request(next_page)) is not None:
            yield page
            last = page[-1]["path"]
    except (BaseError, FileNotFoundError) as error:
        raise failed(url, "list", error) from None


def stat(url: str, store: ObjectStore | None = None) -> FileInfo:
    """Size and fingerprint of one object."""
    file = stat_existing(url, store)
    if file is None:
        raise SourceError(f"there is no {url}")
    return file


def stat_existing(url: str, store: ObjectStore | None = None) -> FileInfo | None:
    """The same; None if there is no such object."""
    import obstore  # noqa: PLC0415 - not for local runs

    store, key = _at(url, store)
    try:
        meta = request(obstore.head, store, key)
    except FileNotFoundError:
        return None
    except obstore.exceptions.BaseError as error:
        raise failed(url, "read", error) from None
    return FileInfo(url, meta["size"], _fingerprint(meta))


def fetch(url: str, fingerprint: str, start: int, stop: int, store: ObjectStore | None = None) -> pa.Buffer:
    """The bytes from start to stop of the version of an object with this fingerprint."""
    from obstore.exceptions import BaseError, PreconditionError  # noqa: PLC0415 - not for local runs

    def check_version(meta: Any) -> None:
        if _fingerprint(meta) != fingerprint:  # not every server obeys If-Match
            raise another_version(url, fingerprint, FileInfo(url, meta["size"], _fingerprint(meta)))

    store, key = _at(url, store)
    try:
        version = {"if_match": fingerprint} if fingerprint.startswith('"') else {}  # a weak etag matches nothing
        options: Any = {"range": (start, stop), **version}
        _, data = request(_get, store, key, options, check_version)
    except (PreconditionError, FileNotFoundError):
        raise another_version(url, fingerprint, stat_existing(url, store)) from None
    except BaseError as error:
        raise failed(url, "read", error) from None
    if len(data) != stop - start:
        raise EOFError(f"bytes {start} to {stop} were asked for, and {len(data)} came")
    return pa.py_buffer(data)


def fetch_any(url: str, start: int, stop: int, store: ObjectStore) -> tuple[pa.Buffer, FileInfo]:
    """The bytes from start to stop, fewer if the object is shorter, and the version of the object that they are of."""
    import obstore  # noqa: PLC0415 - not for local runs

    with explained(url, "read"):
        try:
            meta, data = request(_get, store, split_url(url)[2], {"range": (start, stop)})
        except obstore.exceptions.GenericError as error:
            if "status code: 416" not in str(error):  # the range starts after the end of the object
                raise
            return pa.py_buffer(b""), FileInfo(url, 0, "")
        return pa.py_buffer(data), FileInfo(url, meta["size"], _fingerprint(meta))


def fetch_whole(url: str, store: ObjectStore, *, checked: bool = False) -> pa.Buffer:
    """All bytes of an object. With `checked`, raise CorruptStore if it is too large to be read whole."""

    def check(meta: Any) -> None:
        if checked:
            check_size(url, meta["size"])

    with explained(url, "read"):
        return pa.py_buffer(request(_get, store, split_url(url)[2], None, check)[1])


def _get(store: ObjectStore, key: str, options: Any, check: Callable[[Any], None] = lambda _: None) -> tuple[Any, Any]:
    """The metadata of an object, which `check` may refuse before the content is read, and the content."""
    import obstore  # noqa: PLC0415 - not for local runs

    result = obstore.get(store, key, options=options)
    check(result.meta)
    return result.meta, result.bytes()


def _fingerprint(meta: Any) -> str:
    """The etag in quotes, which Azure omits in listings; without an etag, size and time."""
    etag: str | None = meta["e_tag"]
    if not etag:
        return f"{meta['size']}-{meta['last_modified'].timestamp():.6f}"
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'
