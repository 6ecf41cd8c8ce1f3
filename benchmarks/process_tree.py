"""A process and its descendants: which there are, and the memory they hold together, looked at again and again."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

SAMPLE_SECONDS = 0.05


@dataclass
class Watch:
    """Looks at a process and its descendants again and again, every `seconds`, from a thread."""

    root: int
    seconds: float = SAMPLE_SECONDS
    tree_bytes: int = 0
    share_bytes: int = 0
    process_bytes: int = 0
    root_bytes: int = 0
    seen: set[int] = field(default_factory=set)

    def start(self) -> None:
        """Begin to look."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self.seconds):
            now = {pid: held for pid in process_tree(self.root) if (held := memory_of(pid))}
            mapped = max((held.mapped_bytes for held in now.values()), default=0)
            self.tree_bytes = max(self.tree_bytes, mapped + sum(held.own_bytes for held in now.values()))
            self.share_bytes = max(self.share_bytes, sum(held.share_bytes for held in now.values()))
            self.process_bytes = max([self.process_bytes, *(held.most_bytes for held in now.values())])
            if self.root in now:
                self.root_bytes = max(self.root_bytes, now[self.root].most_bytes)
            self.seen.update(now)


def process_tree(root: int) -> list[int]:
    """A process and all its descendants, as far as they still live."""
    children: dict[int, list[int]] = defaultdict(list)
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _read(f"/proc/{name}/stat").rpartition(b")")[2].split()):
            children[int(fields[1])].append(int(name))
    found = [root]
    for pid in found:
        found += children[pid]
    return found


class Held(NamedTuple):
    """The memory of one process: its own, that of the files it maps, the most that ever was resident, and its share.

    The share counts every resident page, those of data files that are mapped included, divided by how many map it.
    """

    own_bytes: int
    mapped_bytes: int
    most_bytes: int
    share_bytes: int


def memory_of(pid: int) -> Held | None:
    """What a process holds now; None if it is gone."""
    lines = (_read(f"/proc/{pid}/status") + _read(f"/proc/{pid}/smaps_rollup")).splitlines()
    found = {words[0]: int(words[1]) * 1024 for line in lines if (words := line.split())[:1] and words[0] in _FIELDS}
    if len(found) < len(_FIELDS):
        return None
    own = found[b"Pss_Anon:"] + found[b"Pss_Shmem:"]
    return Held(own, found[b"RssFile:"], found[b"VmHWM:"], found[b"Pss:"])


_FIELDS = (b"Pss:", b"Pss_Anon:", b"Pss_Shmem:", b"RssFile:", b"VmHWM:")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:  # the process has ended
        return b""
