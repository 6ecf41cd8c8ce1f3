"""Addresses: a path on a disk, or a URL such as `s3://bucket/folder/file` and `hf://datasets/org/name@sha/file`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")

OBJECT_STORES = ("s3", "gs", "az")
HUB = "hf"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as it stands now. The fingerprint changes when the content does."""

    path: str
    size: int
    fingerprint: str


def scheme(address: str) -> str:
    """`s3`, `hf` and so on; empty for a path on a disk."""
    match = _URL.match(address)
    return match[1].lower() if match else ""


def absolute(address: str) -> str:
    """The address in the form that is stored: absolute, `~` and `..` resolved; a URL without a slash at its end."""
    if scheme(address):
        return address.rstrip("/")
    path = os.path.abspath(os.path.expanduser(address))
    return path[1:] if path.startswith("//") else path  # which POSIX lets mean something else, and no system does


def split_url(url: str) -> tuple[str, str, str]:
    """The scheme, the bucket and the key of an object's URL."""
    rest = url[len(scheme(url)) + 3 :]
    bucket, _, key = rest.partition("/")
    return scheme(url), bucket, key
