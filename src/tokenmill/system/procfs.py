"""What Linux tells about a process in /proc. A process can end at any moment: then the answer is None or empty."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass

TICKS = os.sysconf("SC_CLK_TCK")
FORKED_WITHOUT_EXEC = 0x40
"""The kernel's mark, PF_FORKNOEXEC, of a process that still runs its parent's program."""

LIMITS = (b"Max open files", b"Max address space")
ZOMBIE = "Z"
READ_BYTES = 1 << 14
SHORT_BYTES = 1 << 11
"""The kernel hands over about a page at a time: what is shorter than this is whole."""

PROC = "/proc"


@dataclass(frozen=True, slots=True)
class Stat:
    """The line of /proc/PID/stat, as far as it is used here. `exit_status` is in the form of `wait`."""

    state: str
    parent: int
    forked: bool
    cpu_seconds: float
    threads: int
    start_ticks: int
    exit_status: int


def read(path: str) -> bytes:
    """A small file, or the beginning of a larger one; nothing if it cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        data = os.read(file, READ_BYTES)
        while SHORT_BYTES < len(data) < READ_BYTES and (more := os.read(file, READ_BYTES)):
            data += more
    except OSError:
        return b""
    else:
        return data
    finally:
        os.close(file)


def stat(pid: int, task: int | None = None) -> Stat | None:
    """The state of a process, or of one of its threads."""
    line = read(f"{PROC}/{pid}/stat" if task is None else f"{PROC}/{pid}/task/{task}/stat")
    fields = line[line.rfind(b")") + 2 :].split()  # the name before it may hold anything
    if len(fields) < 50:
        return None
    return Stat(
        state=fields[0].decode(),
        parent=int(fields[1]),
        forked=bool(int(fields[6]) & FORKED_WITHOUT_EXEC),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / TICKS,
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        exit_status=int(fields[49]),
    )


def status(pid: int) -> bytes:
    """The text of /proc/PID/status."""
    return read(f"{PROC}/{pid}/status")


def number(text: bytes, name: bytes) -> int:
    """A number in /proc/PID/status, 0 if it is not there. Sizes are in kilobytes."""
    begin = text.find(b"\n" + name + b":\t")
    return int(text[begin + len(name) + 3 :].split(None, 1)[0]) if begin >= 0 else 0


def held_bytes(text: bytes) -> int:
    """The memory without the files that are mapped, by the text of /proc/PID/status."""
    return (number(text, b"RssAnon") + number(text, b"RssShmem")) * 1024


def is_thread(pid: int) -> bool:
    """Whether the number is that of a thread which is not its process's first."""
    return number(status(pid), b"Tgid") not in (pid, 0)


def share_bytes(pid: int) -> int | None:
    """The memory of a process without files, where what it shares is divided among those who share it."""
    for line in read(f"{PROC}/{pid}/smaps_rollup").split(b"\n"):
        if line.startswith(b"Pss_Anon:"):
            return int(line.split()[1]) * 1024
    return None


def words(pid: int) -> tuple[str, ...]:
    """The command line."""
    line = read(f"{PROC}/{pid}/cmdline").rstrip(b"\0")
    return tuple(word.decode(errors="replace") for word in line.split(b"\0")) if line else ()


def program(pid: int) -> str:
    """The file that runs, without its directory."""
    try:
        return os.path.basename(os.readlink(f"{PROC}/{pid}/exe"))
    except OSError:
        return ""


def limits(pid: int) -> dict[str, int]:
    """The limits of LIMITS that are set, by the name that /proc gives them."""
    text, found = read(f"{PROC}/{pid}/limits"), {}
    for name in LIMITS:
        begin = text.find(name)
        soft = text[begin + len(name) :].split(None, 1)[:1] if begin >= 0 else []
        if soft and soft[0].isdigit():
            found[name.decode()] = int(soft[0])
    return found


def listing() -> set[int]:
    """Every process there is."""
    return {int(name) for name in os.listdir(PROC) if name.isdigit()}


def seconds_since_start(start_ticks: int) -> float:
    """How long ago a process was started."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / TICKS)


def dump_no_core(pid: int) -> None:
    """Keep a process from writing a core file when it is aborted."""
    # 1, not 0: a program that takes core files through a pipe is started whatever the limit, except for 1
    resource.prlimit(pid, resource.RLIMIT_CORE, (1, 1))


class PidCounter:
    """The number that the kernel gave last, to a process or a thread: it moves whenever something was started."""

    def __init__(self) -> None:
        self._file = os.open(f"{PROC}/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def last(self) -> int:
        """The last number given."""
        return int(os.pread(self._file, 128, 0).split()[-1])

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)
