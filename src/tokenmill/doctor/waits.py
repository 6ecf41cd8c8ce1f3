"""Describes what an idle process waits for, from its system call. Covers Linux on x86-64 and ARM."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tokenmill.system import procfs

# FUTEX_PRIVATE_FLAG: the lock is not shared with other processes.
FUTEX_PRIVATE = 128
# Index of the timeout among the arguments of futex.
FUTEX_TIMEOUT = 3


def _names_by_number(**names: tuple[int, ...]) -> dict[int, str]:
    return {number: name for name, numbers in names.items() for number in numbers}


SYSCALLS = {
    "x86_64": _names_by_number(
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
    "aarch64": _names_by_number(
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
DESCRIPTIONS = {
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
    """What a process waits for. `for_private_lock`: a lock in its own memory, without a timeout."""

    description: str
    for_private_lock: bool = False


def wait_of(pid: int) -> Wait:
    """Returns what the main thread of a process waits for."""
    stat = procfs.stat(pid)
    if stat is None or stat.state in STATES:
        return Wait(STATES[stat.state] if stat is not None else "has ended")
    name, arguments = _system_call(pid)
    if name == "futex":
        return _futex_wait(arguments, stat.threads)
    if name in VERBS:
        return Wait(f"{VERBS[name]} {_describe_file(pid, arguments[0])}")
    return Wait(DESCRIPTIONS[name]) if name is not None else _by_kernel_function(pid)


def waits_for_lock(pid: int) -> bool:
    """Returns whether all threads of a process wait for a lock without a timeout. False if unreadable."""
    try:
        threads = [int(name) for name in os.listdir(f"{procfs.PROC}/{pid}/task")]
    except OSError:
        return False
    calls = [_system_call(pid, thread) for thread in threads]
    return bool(calls) and all(name == "futex" and arguments[FUTEX_TIMEOUT] == 0 for name, arguments in calls)


def _system_call(pid: int, thread: int | None = None) -> tuple[str | None, list[int]]:
    """Returns the name (None if unknown) and arguments of the system call that a thread is in.

    Without `thread`, the main thread is read.
    """
    directory = f"{procfs.PROC}/{pid}" if thread is None else f"{procfs.PROC}/{pid}/task/{thread}"
    fields = procfs.read(f"{directory}/syscall").decode().split()
    name = SYSCALLS.get(os.uname().machine, {}).get(int(fields[0])) if fields and fields[0].isdigit() else None
    return name, [int(field, 16) for field in fields[1:7]]


def _futex_wait(arguments: list[int], threads: int) -> Wait:
    is_private, has_timeout = bool(arguments[1] & FUTEX_PRIVATE), arguments[FUTEX_TIMEOUT] != 0
    if not is_private:
        return Wait("waits for a lock that processes share")
    if has_timeout:
        return Wait("waits for a lock or a moment")
    single = ", and has no other thread to release it" if threads == 1 else ""
    return Wait(f"waits for a lock in its own memory{single}", for_private_lock=True)


def _describe_file(pid: int, file: int) -> str:
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
