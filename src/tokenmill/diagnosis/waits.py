"""Describes what an idle process waits for, from its system call. Covers Linux on x86-64 and ARM."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokenmill.system import procfs

# FUTEX_PRIVATE_FLAG: the lock is not shared with other processes.
FUTEX_PRIVATE = 128
# Index of the timeout among the arguments of futex.
FUTEX_TIMEOUT = 3
FUTEX = "waits for a lock"
SHARED_LOCK = "waits for a lock that processes share"
# The numbers of the system calls that wait for something, on each kind of machine.
SYSCALLS = {
    "x86_64": {
        "waits to read from": (0, 17, 45, 47),
        "waits to write to": (1, 20, 44, 46),
        "waits for something to arrive": (7, 23, 232, 270, 271, 281),
        FUTEX: (202,),
        SHARED_LOCK: (220,),
        "waits for a process to end": (61, 247),
        "sleeps": (35, 230),
    },
    "aarch64": {
        "waits to read from": (63, 67, 207, 212),
        "waits to write to": (64, 68, 206, 211),
        "waits for something to arrive": (22, 72, 73),
        FUTEX: (98,),
        SHARED_LOCK: (192,),
        "waits for a process to end": (95, 260),
        "sleeps": (101, 115),
    },
}
STATES = {"D": "waits for a disk or a network file system", "T": "is stopped (SIGSTOP)"}


@dataclass(frozen=True, slots=True)
class Wait:
    """What a process waits for. `for_private_lock`: a lock in its own memory, without a timeout."""

    description: str
    for_private_lock: bool = False


def wait_of(pid: int) -> Wait:
    """Returns what the main thread of a process waits for."""
    stat = procfs.stat(pid)
    if stat is None or stat.state in STATES:
        return Wait(STATES[stat.state] if stat is not None else "has ended")
    description, arguments = _system_call(pid, pid)
    if description == FUTEX:
        return _futex_wait(arguments, stat.threads)
    if description.endswith((" from", " to")):
        return Wait(f"{description} {_describe_file(pid, arguments[0])}")
    return Wait(description or "runs, or waits for what cannot be seen from here")


def waits_for_lock(pid: int) -> bool:
    """Returns whether all threads of a process wait for a lock without a timeout. False if unreadable."""
    try:
        threads = [int(name) for name in os.listdir(f"{procfs.PROC}/{pid}/task")]
    except OSError:
        return False
    calls = [_system_call(pid, thread) for thread in threads]
    return bool(calls) and all(name == FUTEX and arguments[FUTEX_TIMEOUT] == 0 for name, arguments in calls)


def _system_call(pid: int, thread: int) -> tuple[str, list[int]]:
    """Returns what a thread does, empty if unknown, and the arguments of the system call that it is in."""
    fields = procfs.read(f"{procfs.PROC}/{pid}/task/{thread}/syscall").decode().split()
    number = int(fields[0]) if fields and fields[0].isdigit() else None
    calls = SYSCALLS.get(os.uname().machine, {})
    description = next((name for name, numbers in calls.items() if number in numbers), "")
    return description, [int(field, 16) for field in fields[1:7]]


def _futex_wait(arguments: list[int], threads: int) -> Wait:
    if not arguments[1] & FUTEX_PRIVATE:
        return Wait(SHARED_LOCK)
    if arguments[FUTEX_TIMEOUT] != 0:
        return Wait("waits for a lock or a moment")
    single = ", and has no other thread to release it" if threads == 1 else ""
    return Wait(f"waits for a lock in its own memory{single}", for_private_lock=True)


def _describe_file(pid: int, file: int) -> str:
    try:
        name = os.readlink(f"{procfs.PROC}/{pid}/fd/{file}")
    except OSError:
        return f"file {file}"
    return {"pipe": "a pipe", "socket": "a connection"}.get(name.partition(":")[0], name)
