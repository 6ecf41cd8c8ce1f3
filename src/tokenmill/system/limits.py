"""System limits of a process: open files, processes and threads, address space and memory.

Each error names the limit, its value, and how to raise it. `require_limits` checks the minimum before a command loads
its libraries, because native code fails without a message if it gets no thread or memory.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource

from tokenmill.errors import FAILED, TRY_AGAIN, LimitReached, TokenmillError, is_transient
from tokenmill.humanize import count, size
from tokenmill.system import cgroups, machine, procfs

MIN_FILES = 24  # open files of a command with one worker and local sources
MIN_PROCESSES = 8  # processes and threads of a command with one worker
MIN_ADDRESS_BYTES = 768 << 20  # address space of a command with one worker: libraries, an engine and a batch
MAX_COUNTED_PROCESSES = 4096  # under a higher limit the user's processes are not counted

NO_PROCESS = "no process can be started"

# Messages of Python, Arrow and the executor if the system gives them no thread or process.
NO_THREAD = ("can't start new thread", "Failed to launch worker thread", NO_PROCESS)

# Messages of the dynamic loader if there is no address space left.
NO_ADDRESSES = ("failed to map segment", "cannot allocate memory", "Cannot allocate memory")


def require_limits() -> None:
    """Raise LimitReached if a limit of this process is below the minimum of a run."""
    files, addresses, processes = _soft(resource.RLIMIT_NOFILE), address_bytes(), free_processes()
    if files is not None and files < MIN_FILES:
        raise _files(files)
    if addresses is not None and addresses < MIN_ADDRESS_BYTES:
        raise _addresses(addresses)
    if processes is not None and processes < MIN_PROCESSES:
        raise _processes()


def explained(error: BaseException) -> TokenmillError | None:
    """An error for users, if the system is the cause and not tokenmill; otherwise None."""
    reached = reached_by(error)
    if reached is not None:
        return reached
    if isinstance(error, MemoryError):
        return _memory()
    if isinstance(error, OSError) and error.errno and is_transient(error):
        where = [f"file         {error.filename}"] if error.filename else []
        headline = f"the system could not do what it was asked: {os.strerror(error.errno)}"
        again = "Run the same command again: committed work is kept."
        return TokenmillError(headline, *where, again, exit_code=TRY_AGAIN)
    return None


def reached_by(error: BaseException) -> LimitReached | None:
    """The limit that caused an error, or an error in its chain of causes; None if no limit did.

    Memory counts only if the address space is limited. Otherwise a document may have needed too much of it.
    """
    cause: BaseException | None = error
    while cause is not None:
        limit = _reached(cause)
        if limit is not None:
            during = [f"during       {error.headline}"] if isinstance(error, TokenmillError) else []
            return LimitReached(limit.headline, *during, *limit.details, exit_code=limit.exit_code)
        cause = cause.__cause__
    return None


def _reached(error: BaseException) -> LimitReached | None:
    text, number = str(error), error.errno if isinstance(error, OSError) else None
    addresses = address_bytes()
    if number == errno.EMFILE:
        return _files(_soft(resource.RLIMIT_NOFILE))
    if number == errno.ENFILE:
        return LimitReached("the machine has no file handles left", "See fs.file-max.", exit_code=TRY_AGAIN)
    no_memory = isinstance(error, MemoryError) or number == errno.ENOMEM or any(part in text for part in NO_ADDRESSES)
    no_thread = any(part in text for part in NO_THREAD)
    if no_thread and (addresses is None or (free_processes() or MIN_PROCESSES) < MIN_PROCESSES):
        return _processes()
    if (no_memory or no_thread) and addresses is not None:
        return _addresses(addresses)
    return None


def address_bytes() -> int | None:
    """The limit of this process's address space (ulimit -v); None without a limit."""
    return _soft(resource.RLIMIT_AS)


def free_processes() -> int | None:
    """How many processes and threads this process may have, itself included; None without a limit."""
    limits = [value for value in (_free_in_group(), _free_of_user()) if value is not None]
    return min(limits, default=None)


def _free_in_group() -> int | None:
    free = []
    for directory, _ in cgroups.membership(os.getpid(), "pids"):
        limit, used = (procfs.read(f"{directory}/pids.{name}").strip() for name in ("max", "current"))
        if limit.isdigit() and used.isdigit():
            free.append(int(limit) - int(used) + 1)
    return min(free, default=None)


def _free_of_user() -> int | None:
    limit = _soft(resource.RLIMIT_NPROC)
    if limit is None or limit > MAX_COUNTED_PROCESSES or os.geteuid() == 0:  # root has no limit
        return None
    used = 0
    for name in filter(str.isdigit, os.listdir(procfs.PROC) if os.path.isdir(procfs.PROC) else []):
        with contextlib.suppress(OSError):
            if os.stat(f"{procfs.PROC}/{name}").st_uid == os.getuid():
                used += len(os.listdir(f"{procfs.PROC}/{name}/task"))
    return limit - used + 1


def _soft(limit: int) -> int | None:
    value = resource.getrlimit(limit)[0]
    return None if value == resource.RLIM_INFINITY else value


def _files(limit: int | None) -> LimitReached:
    return LimitReached(
        "the limit of open files is too low",
        f"limit        {count(limit or 0, 'file')} (ulimit -n)",
        "Raise it, for example with `ulimit -n 4096`, or use fewer --workers.",
        exit_code=FAILED,
    )


def _addresses(limit: int) -> LimitReached:
    return LimitReached(
        "the limit of memory addresses is too low",
        f"limit        {size(limit)} for each process (ulimit -v)",
        f"needed       at least {size(MIN_ADDRESS_BYTES)}, more with large documents",
        "Raise it, or remove it with `ulimit -v unlimited`, and limit memory with --memory.",
        exit_code=FAILED,
    )


def _processes() -> LimitReached:
    lines = []
    group, user = cgroups.pids_limit(os.getpid()), _soft(resource.RLIMIT_NPROC)
    if group is not None:
        lines.append(f"limit        {group:,} processes in the control group (pids.max)")
    if user is not None and os.geteuid() != 0:
        lines.append(f"limit        {user:,} processes of this user (ulimit -u)")
    return LimitReached(
        "the system starts no more processes or threads",
        *(lines or ["limit        not known: see kernel.threads-max"]),
        f"needed       {MIN_PROCESSES} with one worker, and one for each further worker",
        "Raise the limit, end other processes, or use fewer --workers.",
        exit_code=FAILED if min(group or MIN_PROCESSES, user or MIN_PROCESSES) < MIN_PROCESSES else TRY_AGAIN,
    )


def _memory() -> LimitReached:
    return LimitReached(
        "memory ran out",
        f"there is     {size(machine.memory_bytes())}",
        "Free some, or give --memory or --workers a smaller value, and run the same command again.",
        exit_code=TRY_AGAIN,
    )
