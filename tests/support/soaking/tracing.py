"""Every change that a command makes to the files below a directory, in order, as strace sees it."""

from __future__ import annotations

import codecs
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    "openat,open,write,pwrite64,lseek,ftruncate,fsync,fdatasync,"
    "rename,renameat,renameat2,link,linkat,mkdir,unlink,unlinkat,rmdir"
)
LONGEST_WRITE = 1 << 22
TEXT = r'"((?:[^"\\]|\\.)*)"'
AT = r"(?:AT_FDCWD<[^>]*>, )?"
FILE = r"(\d+)<([^>]*)>"

PATTERNS = {
    "open": re.compile(rf"open(?:at)?\({AT}{TEXT}, ([A-Z_|0-9]+).*\) = {FILE}"),
    "write": re.compile(rf"write\({FILE}, {TEXT}, \d+\) = (\d+)"),
    "write at": re.compile(rf"pwrite64\({FILE}, {TEXT}, \d+, (\d+)\) = (\d+)"),
    "seek": re.compile(rf"lseek\({FILE}, .*\) = (\d+)"),
    "resize": re.compile(rf"ftruncate\({FILE}, (\d+)\) = 0"),
    "sync": re.compile(rf"f(?:data)?sync\({FILE}\) = 0"),
    "rename": re.compile(rf"rename(?:at2?)?\({AT}{TEXT}, {AT}{TEXT}.*\) = 0"),
    "link": re.compile(rf"link(?:at)?\({AT}{TEXT}, {AT}{TEXT}.*\) = 0"),
    "make": re.compile(rf"mkdir\({TEXT}, .*\) = 0"),
    "remove": re.compile(rf"(?:unlink|rmdir)\({TEXT}\) = 0"),
    "remove in": re.compile(rf"unlinkat\({FILE}, {TEXT}, .*\) = 0"),
}


@dataclass(frozen=True)
class Event:
    """One change: of what kind, to which path (or from it to another), with which bytes at which place."""

    kind: str
    path: str
    other: str = ""
    data: bytes = b""
    place: int = 0


def available() -> bool:
    """Whether commands can be traced here."""
    strace = shutil.which("strace")
    return strace is not None and subprocess.run([strace, "-o", os.devnull, "true"], check=False).returncode == 0


def trace(command: Sequence[str], below: Path, logs: Path) -> list[Event]:
    """Run a command, which has to end well; what it did to the files below a directory, and to that directory."""
    logs.mkdir()
    options = ["-ff", "-y", "-ttt", "-s", str(LONGEST_WRITE), "-e", f"trace={CALLS}", "-e", "signal=none"]
    done = subprocess.run(
        ["strace", *options, "-o", str(logs / "log"), *command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = []
    for log in logs.iterdir():
        text = log.read_text(errors="surrogateescape")
        process = log.suffix
        lines += [(*line.split(" ", 1), process) for line in text.splitlines() if str(below) in line]
    lines.sort(key=lambda line: float(line[0]))
    events = _events([(call, process) for _, call, process in lines])
    return [event for event in events if event.path == str(below) or event.path.startswith(f"{below}/")]


def _events(lines: Sequence[tuple[str, str]]) -> Iterator[Event]:
    """Calls to events."""
    files = _OpenFiles()
    for call, process in lines:
        kind, found = _matched(call)
        if found is None:
            continue
        if kind in {"open", "seek", "write"}:
            yield from files.take(kind, process, found)
        elif kind == "write at":
            yield Event("write", found[2], data=_bytes(found[3])[: int(found[5])], place=int(found[4]))
        elif kind == "resize":
            yield Event("resize", found[2], place=int(found[3]))
        elif kind in {"rename", "link"}:
            yield Event(kind, _text(found[1]), _text(found[2]))
        elif kind == "remove in":
            yield Event("remove", os.path.join(found[2], _text(found[3])))
        else:
            yield Event(kind, found[2] if kind == "sync" else _text(found[1]))


class _OpenFiles:
    """Where each open file of each process stands; None if all that is written goes to its end."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], int | None] = {}

    def take(self, kind: str, process: str, found: re.Match[str]) -> Iterator[Event]:
        """What a call that opens, seeks or writes does."""
        if kind == "open":
            path, flags, descriptor, _ = found.groups()
            self._places[process, descriptor] = None if "O_APPEND" in flags else 0
            if "O_CREAT" in flags or "O_TRUNC" in flags:
                yield Event("open", _text(path), data=b"cut" if "O_TRUNC" in flags else b"")
            return
        file = (process, found[1])
        place = self._places.get(file, 0)
        if kind == "write":
            data = _bytes(found[3])[: int(found[4])]
            yield Event("write", found[2], data=data, place=-1 if place is None else place)
            self._places[file] = None if place is None else place + len(data)
        elif place is not None:
            self._places[file] = int(found[3])


def _matched(call: str) -> tuple[str, re.Match[str] | None]:
    for kind, pattern in PATTERNS.items():
        found = pattern.match(call)
        if found is not None:
            return kind, found
    return "", None


def _bytes(written: str) -> bytes:
    return codecs.escape_decode(written.encode("utf-8", "surrogateescape"))[0]  # type: ignore[attr-defined,no-any-return,unused-ignore]


def _text(written: str) -> str:
    return _bytes(written).decode("utf-8", "surrogateescape")
