"""A model of what a loss of power leaves: only what was synced is sure, anything else may be there or not.

The bytes of a file are sure from its sync on, as they were then; a name (and its absence) from the sync of its
directory on. This is less than any file system in use promises.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.soaking.tracing import Event


@dataclass(eq=False)
class File:
    """The bytes of a file, now and on the disk."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""

    @property
    def sure(self) -> bool:
        """Whether all of its bytes are on the disk."""
        return self.synced == bytes(self.data)


@dataclass(eq=False)
class Folder:
    """The names in a directory, now and on the disk, and what was done to them since."""

    names: dict[str, Folder | File] = field(default_factory=dict)
    synced: dict[str, Folder | File] = field(default_factory=dict)
    since: list[dict[str, Folder | File]] = field(default_factory=list)

    def change(self, name: str, entry: Folder | File | None, gone: str | None = None) -> None:
        """Give a name to something, or take it away; `gone` is a name that ends in the same moment."""
        for each in (gone, name):
            if each is not None:
                self.names.pop(each, None)
        if entry is not None:
            self.names[name] = entry
        self.since.append(dict(self.names))

    def sync(self) -> None:
        """From now on these names are sure."""
        self.synced, self.since = dict(self.names), []


class Machine:
    """Directories and files as a traced command changes them."""

    def __init__(self, top: Path) -> None:
        """The directory `top` exists, and is empty."""
        self.top = str(top)
        self.root = Folder()

    def play(self, event: Event) -> None:
        """One change."""
        folder, name = self._parent(event.path)
        entry = folder.names.get(name) if name else folder
        if event.kind == "open":
            self._open(folder, name, cut=bool(event.data))
        elif event.kind == "make":
            folder.change(name, Folder())
        elif event.kind == "remove":
            folder.change(name, None)
        elif event.kind == "rename":
            folder.change(os.path.basename(event.other), entry, gone=name)
        elif event.kind == "link":
            folder.change(os.path.basename(event.other), entry)
        elif event.kind == "sync":
            self._sync(entry)
        elif isinstance(entry, File):
            self._write(entry, event)

    @staticmethod
    def _open(folder: Folder, name: str, *, cut: bool) -> None:
        entry = folder.names.get(name)
        if entry is None:
            folder.change(name, File())
        elif cut and isinstance(entry, File):
            entry.data.clear()

    @staticmethod
    def _sync(entry: Folder | File | None) -> None:
        if isinstance(entry, File):
            entry.synced = bytes(entry.data)
        elif entry is not None:
            entry.sync()

    @staticmethod
    def _write(file: File, event: Event) -> None:
        size = event.place if event.kind == "resize" else max(event.place, 0)
        if event.kind == "resize":
            del file.data[size:]
        file.data.extend(bytes(max(0, size - len(file.data))))
        if event.kind == "write":
            place = len(file.data) if event.place < 0 else event.place
            file.data[place : place + len(event.data)] = event.data

    def _parent(self, path: str) -> tuple[Folder, str]:
        """The directory that a path is in, and its name there; no name for the top itself."""
        parts = [part for part in os.path.relpath(path, self.top).split(os.sep) if part != "."]
        folder = self.root
        for part in parts[:-1]:
            step = folder.names[part]
            assert isinstance(step, Folder)
            folder = step
        return folder, parts[-1] if parts else ""

    def entry(self, path: str) -> Folder | File | None:
        """What has that path now."""
        folder, name = self._parent(path)
        return folder.names.get(name) if name else folder

    def sure(self, path: str = ".") -> dict[str, bytes]:
        """The files that a loss of power leaves below a directory, at worst, by their paths from there."""
        folder: Folder | File = self.root
        for part in Path(path).parts:
            assert isinstance(folder, Folder)
            folder = folder.names[part]
        assert isinstance(folder, Folder)
        return dict(_sure_files(folder, ""))


def _sure_files(folder: Folder, prefix: str) -> Iterable[tuple[str, bytes]]:
    for name, entry in folder.synced.items():
        if isinstance(entry, Folder):
            yield from _sure_files(entry, f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", entry.synced


def write_crash(rng: random.Random, folder: Folder, target: Path, strict: bool) -> None:
    """Write the directory as a loss of power may leave it: at worst if `strict`, else with some of what is unsure."""
    target.mkdir(exist_ok=True)
    states = [folder.synced] if strict else [folder.synced, *folder.since]
    for name, entry in rng.choice(states).items():
        if isinstance(entry, Folder):
            write_crash(rng, entry, target / name, strict)
        else:
            (target / name).write_bytes(entry.synced if strict else _some(rng, entry))


def _some(rng: random.Random, file: File) -> bytes:
    """What may be found of a file: what was synced, or some of what came later, or room for it."""
    if file.sure:
        return file.synced
    now = bytes(file.data)
    return rng.choice([file.synced, now, now[: rng.randint(0, len(now))], bytes(len(now))])
