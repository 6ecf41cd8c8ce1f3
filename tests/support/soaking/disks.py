"""Small file systems that fill up and grow, and are gone in the end."""

from __future__ import annotations

import contextlib
import functools
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = 4096
AMPLE_BYTES = 1 << 30
AMPLE_FILES = 100_000
"""A number, since a file system that once had no limit cannot be given one."""


@dataclass(frozen=True)
class Disk:
    """A file system of a size that can be changed."""

    directory: Path

    def resize(self, size_bytes: int, files: int = 0) -> None:
        """Give it so many bytes and, unless 0, files. It is never smaller than what it holds."""
        needed = sum(-(-path.stat().st_size // PAGE_BYTES) * PAGE_BYTES for path in self.directory.rglob("*"))
        there = sum(1 for _ in self.directory.rglob("*")) + 2
        limits = f"size={max(size_bytes, needed, PAGE_BYTES)},nr_inodes={max(files, there) if files else AMPLE_FILES}"
        self._remount(limits)

    def read_only(self, is_so: bool) -> bool:
        """Forbid or allow writing; whether that was done."""
        return self._remount("ro" if is_so else "rw", check=False)

    def _remount(self, options: str, *, check: bool = True) -> bool:
        command = ["mount", "-o", f"remount,{options}", str(self.directory)]
        return subprocess.run(command, capture_output=True, check=check).returncode == 0


@contextlib.contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[Disk]:
    """A file system at the directory, which is made."""
    directory.mkdir(parents=True)
    options = f"size={max(size_bytes, PAGE_BYTES)},nr_inodes={AMPLE_FILES}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], capture_output=True, check=True)
    try:
        yield Disk(directory)
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


@functools.cache
def available() -> bool:
    """Whether file systems may be mounted here."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with small_disk(Path(folder) / "disk", PAGE_BYTES) as disk:
                disk.resize(2 * PAGE_BYTES)
        except (OSError, subprocess.CalledProcessError):
            return False
    return True
