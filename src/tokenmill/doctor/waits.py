"""What a process that does nothing waits for, by the system call it is in. Linux on x86-64 and ARM tells most."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokenmill.system import procfs

FUTEX_PRIVATE = 128
TIME_LIMIT = 3
"""The place of the time limit among the arguments of futex."""


def _by_number(**names: tuple[int, ...]) -> dict[int, str]:
    return {number: name for name, numbers in names.items() for number in numbers}


CALLS = {
    "x86_64": _by_number(
        read=(0, 17, 45, 47),
        write=(1, 20, 44, 46),
        poll=(7, 23, 232, 270, 271, 281),
        futex=(202,),
        semaphore=(220,),
        child=(61, 247),
        sleep=(35, 230),
        connect=(42,),
        file_lock=(72, 73),
        signal=(34, 128, 130),
    ),
    "aarch64": _by_number(
        read=(63, 67, 207, 212),
        write=(64, 68, 206, 211),
        poll=(22, 72, 73),
        futex=(98,),
        semaphore=(192,),
        child=(95, 260),
        sleep=(101, 115),
        connect=(203,),
        file_lock=(25, 32),
        signal=(133, 137),
    ),
}
WORDS = {
    "poll": "waits for something to arrive",
    "semaphore": "waits for a lock that processes share",
    "child": "waits for a process to end",
    "sleep": "sleeps",
    "connect": "waits for a network connection",
    "file_lock": "waits for a lock on a file",
    "signal": "waits for a signal",
}
VERBS = {"read": "waits to read from", "write": "waits to write to"}
STATES = {
    "D": "waits for a disk or a network file system",
    "T": "is stopped (SIGSTOP)",
    "t": "is stopped by a debugger",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """What a process waits for, in words; and whether that is a lock in its own memory, without a time limit."""

    words: str
    for_own_lock: bool = False


def wait_of(pid: int) -> Wait:
    """What the first thread of a process waits for."""
    seen = procfs.stat(pid)
    if seen is None or seen.state in STATES:
        return Wait(STATES[seen.state] if seen is not None else "has ended")
    name, arguments = _call(pid)
    if name == "futex":
        return _lock(arguments, seen.threads)
    if name in VERBS:
        return Wait(f"{VERBS[name]} {_described(pid, arguments[0])}")
    return Wait(WORDS[name]) if name is not None else _by_kernel_function(pid)


def waits_for_lock(pid: int) -> bool:
    """Whether every thread of a process waits for a lock, without a time limit. False where that cannot be read."""
    try:
        threads = [int(name) for name in os.listdir(f"{procfs.PROC}/{pid}/task")]
    except OSError:
        return False
    calls = [_call(pid, thread) for thread in threads]
    return bool(calls) and all(name == "futex" and arguments[TIME_LIMIT] == 0 for name, arguments in calls)


def _call(pid: int, thread: int | None = None) -> tuple[str | None, list[int]]:
    """The system call that a thread, or else the first one, is in: its name, if it is known, and its arguments."""
    where = f"{procfs.PROC}/{pid}" if thread is None else f"{procfs.PROC}/{pid}/task/{thread}"
    fields = procfs.read(f"{where}/syscall").decode().split()
    name = CALLS.get(os.uname().machine, {}).get(int(fields[0])) if fields and fields[0].isdigit() else None
    return name, [int(field, 16) for field in fields[1:7]]


def _lock(arguments: list[int], threads: int) -> Wait:
    is_own, has_limit = bool(arguments[1] & FUTEX_PRIVATE), arguments[TIME_LIMIT] != 0
    if not is_own:
        return Wait("waits for a lock that processes share")
    if has_limit:
        return Wait("waits for a lock or a moment")
    alone = ", and has no other thread to release it" if threads == 1 else ""
    return Wait(f"waits for a lock in its own memory{alone}", for_own_lock=True)


def _described(pid: int, file: int) -> str:
    try:
        name = os.readlink(f"{procfs.PROC}/{pid}/fd/{file}")
    except OSError:
        return f"file {file}"
    kind = name.partition(":")[0]
    return {"pipe": "a pipe", "socket": "a connection"}.get(kind, name)


def _by_kernel_function(pid: int) -> Wait:
    function = procfs.read(f"{procfs.PROC}/{pid}/wchan").decode(errors="replace").strip("\0\n")
    if function in ("", "0"):
        return Wait("runs, or waits for what cannot be seen from here")
    return Wait("waits for a lock" if "futex" in function else f"waits in {function}")
