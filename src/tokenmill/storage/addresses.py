"""Addresses: a local path, or a URL such as `s3://bucket/folder/file` and `hf://datasets/org/name@sha/file`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

from tokenmill.errors import UsageError

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_QUERY = re.compile(r"\?[\w.-]+=")  # of a web URL. A ? without = is a wildcard, or part of a name.

OBJECT_STORES = ("s3", "gs", "az")
HUB = "hf"
_MISTYPED = re.compile(f"({'|'.join((*OBJECT_STORES, HUB))}):/?(?!/)", re.IGNORECASE)  # s3:/x
CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_SKIP_SIGNATURE=true if it is public.",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN.",
    HUB: "Set HF_TOKEN, or run `hf auth login`.",
}


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file at the time it was listed. Its fingerprint changes when its content does.

    Attributes:
        path: The absolute path, or the URL.
        size: The size in bytes.
        fingerprint: The etag, the hash, or size and time of a local file.
        identity: The device and inode of a local file, if it was listed.
        is_link: Whether the path itself is a symbolic link, if it was listed.
    """

    path: str
    size: int
    fingerprint: str
    identity: tuple[int, int] | str | None = field(default=None, compare=False)
    is_link: bool = field(default=False, compare=False)


def scheme(address: str) -> str:
    """`s3`, `hf` and so on; empty for a local path."""
    match = _URL.match(address)
    return match[1].lower() if match else ""


def absolute(address: str) -> str:
    """The address as it is stored: absolute, `~` and `..` resolved, no slash at its end, its scheme in lower case."""
    kind = scheme(address)
    if kind:
        return f"{kind}://{address[len(kind) + 3 :].rstrip('/')}"
    path = os.path.abspath(os.path.expanduser(address))
    return path[1:] if path.startswith("//") else path  # POSIX allows // a meaning of its own; no system uses it


def resolved(address: str) -> str:
    """A local path with its symbolic links resolved; a URL as it is."""
    return address if scheme(address) else os.path.realpath(address)


def split_url(url: str) -> tuple[str, str, str]:
    """The scheme, the bucket and the key of an object's URL."""
    rest = url[len(scheme(url)) + 3 :]
    bucket, _, key = rest.partition("/")
    return scheme(url), bucket, key


def check(address: str) -> None:
    """Raise UsageError for a mistyped address or one that contains secrets, which the message does not repeat."""
    mistyped = _MISTYPED.match(address)
    corrected = f"{mistyped[1].lower()}://{address[mistyped.end() :]}" if mistyped else address
    _refuse_secrets(corrected)
    if mistyped:
        raise UsageError(f"{address} is neither a URL nor a path", f"Write {corrected}, or ./{address} for a path.")
    if scheme(address) in OBJECT_STORES:
        _refuse_odd_keys(address)


def shown(url: str) -> str:
    """A URL without the password or signature that it may contain, for messages."""
    return f"{scheme(url)}://..." if "@" in url else url.partition("?")[0]


def _refuse_secrets(address: str) -> None:
    """Refuse keys and signatures: addresses are stored with every source and in every store."""
    kind = scheme(address)
    if kind not in CREDENTIALS:
        return
    if re.search("[:@]", address[len(kind) + 3 :].partition("/")[0]):
        raise UsageError(f"an address must not contain keys or user names ({kind}://...)", CREDENTIALS[kind])
    if _QUERY.search(address):
        raise UsageError(f"nothing belongs after a ? in an address ({shown(address)}?...)", "Leave it out.")


def _refuse_odd_keys(url: str) -> None:
    kind, bucket, key = split_url(absolute(url))
    if not bucket:
        raise UsageError(f"{url} names no bucket", f"Write {kind}://BUCKET/FOLDER.")
    odd = [name for name in key.split("/") if name in ("", ".", "..")] if key else []
    if odd:
        part = f"a part that is {odd[0]!r}" if odd[0] else "an empty part"
        raise UsageError(f"{url} has {part}", "Object stores have no empty names, no . and no ..")
