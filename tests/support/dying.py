"""Run what dies or hangs: a command under a time limit, in a memory cgroup or on a small disk; nothing of it is left.

Shared by the tests of the reproduction scripts and of the doctor. Linux only, but for the plain run of a command.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.support import ROOT

SCRIPTS = ROOT / "examples" / "why_it_dies"
MARK = "TOKENMILL_TEST_RUN"
"""The variable by which every process of a run is known, whatever group or parent it has moved to."""

STOP_SECONDS = 10.0
"""How long what was killed may take to disappear."""

_numbers = itertools.count()


@dataclass(frozen=True)
class Ending:
    """How a command ended: its exit code (None: it was still running and was stopped) and all that it printed."""

    exit_code: int | None
    output: str


@dataclass(frozen=True)
class Running:
    """A command at work."""

    process: subprocess.Popen[bytes]
    mark: str
    printed: IO[bytes]

    @property
    def alive(self) -> bool:
        """Whether the command has not ended."""
        return self.process.poll() is None

    def output(self) -> str:
        """What it has printed so far, on either stream."""
        with open(self.printed.name, "rb") as file:
            return file.read().decode(errors="replace")

    def others(self) -> list[int]:
        """The living processes that the command has started, and those that they have."""
        return sorted(set(marked(self.mark)) - {self.process.pid})

    def until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait until the condition holds; whether it did before the time was up or the command ended."""
        end = time.monotonic() + seconds
        while self.alive and time.monotonic() < end:
            if condition():
                return True
            time.sleep(0.02)
        return False

    def until_idle(self, idle_seconds: float, seconds: float) -> bool:
        """Wait until all that the command has started has used no CPU for so long, and still lives; whether it did."""
        used, since = self._cpu_ticks(), time.monotonic()

        def idle() -> bool:
            nonlocal used, since
            now = self._cpu_ticks()
            if now != used or not now:
                used, since = now, time.monotonic()
            return time.monotonic() - since >= idle_seconds

        return self.until(idle, seconds)

    def stop(self) -> None:
        """Kill the command and all that it has started, and wait until they are gone."""
        end_marked(self.mark)
        self.process.wait(STOP_SECONDS)

    def _cpu_ticks(self) -> dict[int, int]:
        return {pid: ticks for pid in self.others() if (ticks := _cpu_ticks(pid)) is not None}


@contextlib.contextmanager
def running(
    *command: str | Path,
    cgroup: Path | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """The command, started in its own session and, if given, in a cgroup; on leaving, nothing of it is left."""
    mark = uuid.uuid4().hex
    with tempfile.NamedTemporaryFile() as printed:
        process = subprocess.Popen(
            [str(word) for word in (within(cgroup, *command) if cgroup else command)],
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=cwd,
            env={**os.environ, **(environment or {}), MARK: mark},
        )
        run = Running(process, mark, printed)
        try:
            yield run
        finally:
            run.stop()


def run(
    *command: str | Path,
    seconds: float = 60.0,
    cgroup: Path | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Ending:
    """Run a command to its end, or for so many seconds."""
    with running(*command, cgroup=cgroup, cwd=cwd, environment=environment) as started:
        try:
            exit_code = started.process.wait(seconds)
        except subprocess.TimeoutExpired:
            exit_code = None
        return Ending(exit_code, started.output())


def within(cgroup: Path, *command: str | Path) -> tuple[str | Path, ...]:
    """The command that enters a cgroup and then is the given one."""
    return "sh", "-c", 'echo $$ > "$0" && exec "$@"', cgroup / "cgroup.procs", *command


def script(name: str, *arguments: str | Path) -> tuple[str | Path, ...]:
    """The command that runs one of the reproduction scripts."""
    return sys.executable, SCRIPTS / f"{name}.py", *arguments


def marked(mark: str) -> list[int]:
    """The processes that live and carry the mark in the environment they were started with."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        with contextlib.suppress(OSError):
            if entry.isdigit() and wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                found.append(int(entry))
    return found


def end_marked(mark: str) -> None:
    """Kill all that carries the mark, and wait until it is gone."""
    end = time.monotonic() + STOP_SECONDS
    while left := marked(mark):
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert time.monotonic() < end, f"processes that cannot be killed: {left}"
        time.sleep(0.01)


@contextlib.contextmanager
def memory_cgroup(limit_bytes: int) -> Iterator[Path]:
    """A new cgroup (v1 or v2) with so much memory and no swap; the test is skipped where none can be made."""
    name = f"tokenmill-test-{os.getpid()}-{next(_numbers)}"
    for parent, limit, swap in _cgroup_parents():
        directory = parent / name
        with contextlib.suppress(OSError):
            directory.mkdir()
            try:
                _set(directory / limit, limit_bytes)
                with contextlib.suppress(OSError):  # kernels that do not count swap
                    _set(directory / swap, 0 if swap == "memory.swap.max" else limit_bytes)
                _check_that_processes_may_enter(directory)
            except OSError:
                _remove_cgroup(directory)
                raise
            break
    else:
        pytest.skip("no memory cgroup can be made here")
    try:
        yield directory
    finally:
        _remove_cgroup(directory)


@contextlib.contextmanager
def small_disk(directory: Path, size_bytes: int) -> Iterator[Path]:
    """A file system of that size at the directory, which is made; the test is skipped where none may be mounted."""
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(directory)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", "--lazy", str(directory)], check=True)


def _cgroup_parents() -> Iterator[tuple[Path, str, str]]:
    """Where a cgroup might be made, with its files for memory and swap: the topmost first, then down to our own."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, own = line.split(":", 2)
        if "memory" in controllers.split(","):
            root, files = Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        elif number == "0":
            root, files = Path("/sys/fs/cgroup"), ("memory.max", "memory.swap.max")
        else:
            continue
        for path in reversed([Path(own), *Path(own).parents]):
            yield root / path.relative_to("/"), *files


def _set(file: Path, value: int) -> None:
    """Write to a file that the kernel has made; where it has not, the directory is no cgroup."""
    with open(file, "r+") as setting:
        setting.write(str(value))


def _check_that_processes_may_enter(directory: Path) -> None:
    """Raise an OSError if not: a user may own a cgroup and yet not be allowed to move a process there."""
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            _set(directory / "cgroup.procs", sleeper.pid)
        finally:
            sleeper.kill()


def _remove_cgroup(directory: Path) -> None:
    end = time.monotonic() + STOP_SECONDS
    while True:  # a process that has just ended is counted for a moment longer
        try:
            directory.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)
        else:
            return


def _cpu_ticks(pid: int) -> int | None:
    """The CPU that a process has used; None if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return int(fields[11]) + int(fields[12])
