"""The sockets on which a process and its descendants listen, as /proc shows them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import struct
from pathlib import Path

LISTEN = "0A"


def descendants(pid: int) -> list[int]:
    """A process and all processes that descend from it."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = [pid]
    for each in found:  # it grows meanwhile
        found += [child for child, parent in parents.items() if parent == each]
    return found


def named(pid: int, name: str) -> list[int]:
    """The descendants of a process that run a program with this name."""
    found = []
    for each in descendants(pid):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{each}/comm").read_text().strip() == name:
                found.append(each)
    return found


def listening(pids: list[int]) -> list[tuple[str, int]]:
    """Addresses and ports on which any of these processes accepts TCP connections."""
    owned = {inode for pid in pids for inode in _sockets(pid)}
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == LISTEN and fields[9] in owned:
                address, _, port = fields[1].partition(":")
                found.append((_address(address), int(port, 16)))
    return found


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches an address."""
    parsed = ipaddress.ip_address(address)
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def _sockets(pid: int) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
                if target.startswith("socket:["):
                    found.append(target[len("socket:[") : -1])
    return found


def _address(written: str) -> str:
    """An address of /proc/net, which is written in words of four bytes in the machine's order."""
    words = [int(written[start : start + 8], 16) for start in range(0, len(written), 8)]
    return str(ipaddress.ip_address(b"".join(struct.pack("=I", word) for word in words)))
