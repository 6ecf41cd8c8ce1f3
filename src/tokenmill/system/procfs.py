"""Read /proc. A process can end at any moment: then the functions return None or something empty."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass

TICKS = os.sysconf("SC_CLK_TCK")
FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC: the process still runs its parent's program
LIMITS = (b"Max open files", b"Max address space")
ZOMBIE = "Z"
READ_BYTES = 1 << 14
SHORT_BYTES = 1 << 11  # the kernel returns about a page per read: a shorter result is complete
PROC = "/proc"


@dataclass(frozen=True, slots=True)
class Stat:
    """The used fields of /proc/PID/stat. `exit_status` has the encoding of `wait`."""

    state: str
    parent: int
    forked: bool
    cpu_seconds: float
    threads: int
    start_ticks: int
    exit_status: int


def read(path: str) -> bytes:
    """The content of a small file, or the beginning of a larger one; empty if it cannot be read."""
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
    fields = line[line.rfind(b")") + 2 :].split()  # the name before it may contain anything
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
    """A number in the text of /proc/PID/status; 0 if it is missing. Sizes are in kilobytes."""
    begin = text.find(b"\n" + name + b":\t")
    return int(text[begin + len(name) + 3 :].split(None, 1)[0]) if begin >= 0 else 0


def held_bytes(text: bytes) -> int:
    """The resident memory without mapped files, from the text of /proc/PID/status."""
    return (number(text, b"RssAnon") + number(text, b"RssShmem")) * 1024


def is_thread(pid: int) -> bool:
    """Whether the id belongs to a thread other than the first one of its process."""
    return number(status(pid), b"Tgid") not in (pid, 0)


def command_line(pid: int) -> tuple[str, ...]:
    """The program and its arguments."""
    line = read(f"{PROC}/{pid}/cmdline").rstrip(b"\0")
    return tuple(argument.decode(errors="replace") for argument in line.split(b"\0")) if line else ()


def program(pid: int) -> str:
    """The name of the executable, without its directory."""
    try:
        return os.path.basename(os.readlink(f"{PROC}/{pid}/exe"))
    except OSError:
        return ""


def limits(pid: int) -> dict[str, int]:
    """The soft limits of LIMITS that are set, by their names in /proc."""
    text, values = read(f"{PROC}/{pid}/limits"), {}
    for name in LIMITS:
        begin = text.find(name)
        soft = text[begin + len(name) :].split(None, 1)[:1] if begin >= 0 else []
        if soft and soft[0].isdigit():
            values[name.decode()] = int(soft[0])
    return values


def listing() -> set[int]:
    """The ids of all processes."""
    return {int(name) for name in os.listdir(PROC) if name.isdigit()}


def seconds_since_start(start_ticks: int) -> float:
    """The age of a process."""
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / TICKS)


def dump_no_core(pid: int) -> None:
    """Keep a process from writing a core file when it is aborted."""
    # 1, not 0: the kernel starts a program that receives core dumps through a pipe unless the limit is 1
    resource.prlimit(pid, resource.RLIMIT_CORE, (1, 1))


class PidCounter:
    """The id that the kernel assigned last. It changes whenever a process or thread is started."""

    def __init__(self) -> None:
        self._file = os.open(f"{PROC}/loadavg", os.O_RDONLY | os.O_CLOEXEC)

    def last(self) -> int:
        """The last id."""
        return int(os.pread(self._file, 128, 0).split()[-1])

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
