"""Where the stores of a trial are: in a directory, in a bucket that a directory serves, or in a bucket of a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from tests.support.servers.seaweed import S3Server
from tokenmill.storage.objects import clients

Files = dict[str, bytes]
BUCKET = "fuzz"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}


class Place(Protocol):
    """All files of a trial, by their names below one root."""

    def address(self, name: str) -> str:
        """What commands call a directory of the place."""

    def read(self) -> Files:
        """All files."""

    def write(self, files: Files) -> None:
        """Write files, over those of the same names."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""


def replace(place: Place, files: Files) -> None:
    """Make a place hold these files and no others."""
    there = place.read()
    place.remove(there.keys() - files.keys())
    place.write({name: data for name, data in files.items() if there.get(name) != data})


@dataclass(frozen=True)
class DirectoryPlace:
    """The files are in a directory. With `url`, commands see them as the objects of a bucket."""

    root: Path
    url: str = ""

    def address(self, name: str) -> str:
        """A path, or the address of objects."""
        return f"{self.url or self.root}/{name}"

    def read(self) -> Files:
        """All files."""
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in sorted(self.root.rglob("*"))
            if path.is_file()
        }

    def write(self, files: Files) -> None:
        """Write files, over those of the same names."""
        for name, data in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files."""
        for name in names:
            (self.root / name).unlink()


@dataclass(frozen=True)
class ServerPlace:
    """The files are objects of a SeaweedFS."""

    server: S3Server
    url: str

    def address(self, name: str) -> str:
        """The address of objects."""
        return f"{self.url}/{name}"

    def read(self) -> Files:
        """All objects."""
        return self.server.objects(self.url)

    def write(self, files: Files) -> None:
        """Write objects."""
        store = self.server.store(self.url)
        for name, data in files.items():
            store.put(name, data)

    def remove(self, names: Iterable[str]) -> None:
        """Remove objects."""
        self.server.store(self.url).delete(list(names))


@contextmanager
def served_bucket(directory: Path) -> Iterator[DirectoryPlace]:
    """A bucket whose objects are the files of a directory: the package's client, without a server.

    It creates an object once, as a server does, and a request costs a hundredth of one.
    """
    from obstore.store import LocalStore

    root = directory / BUCKET
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clients, "_new_client", lambda *_: LocalStore(str(root), mkdir=True))
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        clients._cached_client.cache_clear()
        clients._check_reachable.cache_clear()
        yield DirectoryPlace(root, f"s3://{BUCKET}")
    clients._cached_client.cache_clear()
    clients._check_reachable.cache_clear()
