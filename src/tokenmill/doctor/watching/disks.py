"""Which file systems are full. Those of the network are not asked: the answer can take for ever."""

from __future__ import annotations

import os
import re

from tokenmill.humanize import size
from tokenmill.system import procfs

KINDS = {
    "ext2",
    "ext3",
    "ext4",
    "xfs",
    "btrfs",
    "zfs",
    "f2fs",
    "tmpfs",
    "overlay",
    "vfat",
    "exfat",
    "ntfs3",
    "bcachefs",
}
FULL_SHARE = 0.001
ESCAPED = re.compile(r"\\([0-7]{3})")


def full() -> list[str]:
    """A line for each that has next to no room now; what was full may have been tidied up since."""
    seen: dict[str, str] = {}
    for device, directory in _mounted():
        if device not in seen and os.path.isdir(directory):
            seen[device] = _lack(directory)
    return [line for line in seen.values() if line]


def _mounted() -> list[tuple[str, str]]:
    """The device and directory of each that can be written to, the shortest directory first."""
    found = []
    for line in procfs.read(f"{procfs.PROC}/self/mountinfo").decode(errors="replace").splitlines():
        place, _, source = line.partition(" - ")
        fields = place.split()
        if source and source.split()[0] in KINDS and "rw" in fields[5].split(","):
            found.append((fields[2], ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[4])))
    return sorted(found, key=lambda each: len(each[1]))


def _lack(directory: str) -> str:
    try:
        seen = os.statvfs(directory)
    except OSError:
        return ""
    if seen.f_blocks and seen.f_bavail <= FULL_SHARE * seen.f_blocks:
        return (
            f"full: {directory} ({size(seen.f_bavail * seen.f_frsize)} of {size(seen.f_blocks * seen.f_frsize)} free)"
        )
    return f"full: {directory} has no room for more files (inodes)" if seen.f_files and not seen.f_favail else ""
