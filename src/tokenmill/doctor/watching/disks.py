"""Finds full file systems. Network file systems are skipped because statvfs can block on them."""

from __future__ import annotations

import os
import re

from tokenmill.humanize import size
from tokenmill.system import procfs

# Local file systems.
LOCAL_TYPES = {
    *("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs"),
    *("tmpfs", "overlay", "vfat", "exfat", "ntfs3", "bcachefs"),
}
FULL_FRACTION = 0.001
ESCAPED = re.compile(r"\\([0-7]{3})")


def full() -> list[str]:
    """Returns one line per file system that is full now. Space may have been freed since the failure."""
    lines: dict[str, str] = {}
    for device, directory in _mounted():
        if device not in lines and os.path.isdir(directory):
            lines[device] = _describe_if_full(directory)
    return [line for line in lines.values() if line]


def _mounted() -> list[tuple[str, str]]:
    """Returns device and directory of each writable file system, the shortest directory first."""
    mounts = []
    for line in procfs.read(f"{procfs.PROC}/self/mountinfo").decode(errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        fields = mount.split()
        if source and source.split()[0] in LOCAL_TYPES and "rw" in fields[5].split(","):
            mounts.append((fields[2], ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])))
    return sorted(mounts, key=lambda mount: len(mount[1]))


def _describe_if_full(directory: str) -> str:
    """Returns a line if the file system has no free blocks or inodes, else an empty string."""
    try:
        stats = os.statvfs(directory)
    except OSError:
        return ""
    if stats.f_blocks and stats.f_bavail <= FULL_FRACTION * stats.f_blocks:
        free, total = (size(blocks * stats.f_frsize) for blocks in (stats.f_bavail, stats.f_blocks))
        return f"full: {directory} ({free} of {total} free)"
    return f"full: {directory} has no room for more files (inodes)" if stats.f_files and not stats.f_favail else ""
