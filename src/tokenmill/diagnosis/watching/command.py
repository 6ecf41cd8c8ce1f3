"""Runs a command, watches its processes and diagnoses why it died. Needs Linux.

The command runs as usual, except that PYTHONFAULTHANDLER is set and the doctor relays its stderr. If the doctor is
killed, the command continues, with a stderr that no process reads.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tokenmill.diagnosis.causes import Finding
from tokenmill.diagnosis.watching import hangs
from tokenmill.diagnosis.watching.deaths import Death, DeathExaminer
from tokenmill.diagnosis.watching.diagnosis import Evidence, diagnose
from tokenmill.diagnosis.watching.processes import Process, count_workers
from tokenmill.diagnosis.watching.stderr import StderrRelay
from tokenmill.diagnosis.watching.tree import ProcessTree
from tokenmill.errors import UsageError
from tokenmill.humanize import Readable, count, duration, size

# Interval of the search for new processes while some have just started.
FAST_SECONDS = 0.005
# The same otherwise.
CALM_SECONDS = 0.03
# Remaining processes have this long to end after the command.
LEFTOVER_SECONDS = 1.0
# This many deaths per killer are reported one by one; the others are counted.
MAX_DEATHS = 20
# This many deaths are shown while the command runs.
SHOWN_DEATHS = 3
# Signals to the doctor, which it reads one by one with their origin.
BLOCKED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH})
# Arguments of prctl.
SET_SUBREAPER, GET_SUBREAPER = 36, 37
# Makes Python print its stack when native code crashes or the doctor aborts it.
ENVIRONMENT = {"PYTHONFAULTHANDLER": "1"}


class LeftoverProcess(Readable, msgspec.Struct, frozen=True):
    """A process that still runs after the command has ended."""

    pid: int
    name: str


class Watched(Readable, msgspec.Struct, frozen=True):
    """How a command went.

    `exit_code` is 128 + n for signal n. `peak_bytes` is the peak of all processes together. `cpu_seconds` covers the
    command and its descendants, `doctor_cpu_seconds` the doctor.
    """

    command: list[str]
    exit_code: int
    seconds: float
    cpu_seconds: float
    doctor_cpu_seconds: float
    processes: int
    most_at_once: int
    peak_bytes: int
    hung: bool
    interrupted: bool
    deaths_by_killer: dict[str, int]
    deaths: list[Death]
    findings: list[Finding]
    left_behind: list[LeftoverProcess]


def watch(
    command: Sequence[str],
    *,
    hang_seconds: float = 60.0,
    stop_hung: bool = False,
    on_message: Callable[[str], None] | None = None,
    output: int | None = None,
) -> Watched:
    """Runs a command to its end and reports how it went.

    Args:
        command: The program and its arguments.
        hang_seconds: Report a hang if nothing moves for this long.
        stop_hung: Also end a command that hangs.
        on_message: Receives each line that is reported while the command runs. Default: write it to stderr.
        output: The file descriptor for the command's stdout. Default: inherited.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError(
            "the doctor can watch a command only on Linux",
            "On this system it can examine a function: tokenmill doctor FILE.py:FUNCTION",
        )
    with (
        blocked_signals() as mask,
        subreaper(),
        contextlib.closing(_Watch(hang_seconds, stop_hung, on_message)) as watching,
    ):
        return watching.run(command, mask, output)


class _Watch:
    def __init__(self, hang_seconds: float, stop_hung: bool, on_message: Callable[[str], None] | None) -> None:
        self._tree, self._examiner, self._relay = ProcessTree(), DeathExaminer(), StderrRelay()
        self._show = on_message or self._relay.write_line
        self._hang_detector, self._restart_detector = hangs.HangDetector(hang_seconds), hangs.RestartDetector()
        self._stop_hung = stop_hung
        self._evidence = Evidence()
        self._deaths_by_killer: collections.Counter[str] = collections.Counter()
        self._shown_deaths = 0
        self._is_stopping = False
        self._cpu_before = _cpu_seconds(resource.RUSAGE_SELF), _cpu_seconds(resource.RUSAGE_CHILDREN)

    def run(self, command: Sequence[str], mask: set[signal.Signals], output: int | None) -> Watched:
        root = self._tree.start(start(command, self._relay.write_fd, output, mask), tuple(command))
        with raised_file_limit():
            while root.ended_at is None:
                self._step()
                if self._stop_hung and not self._is_stopping and (self._evidence.hang or self._evidence.restart_deaths):
                    self._stop()
            self._wait_for_leftovers()
        self._drain_stderr()
        return self._result(command, root)

    def close(self) -> None:
        self._relay.close()
        self._tree.close()

    def _step(self) -> None:
        for process in self._tree.wait(FAST_SECONDS if self._tree.is_growing else CALM_SECONDS):
            self._record_end(process)
        self._handle_signals()
        for process in self._tree.find_new():
            self._examiner.track(process)
        if self._tree.sample():
            for process in self._tree.alive.values():
                self._examiner.track(process)
            self._check_for_hang()

    def _record_end(self, process: Process) -> None:
        """Records the end of a process."""
        death = self._examiner.examine(process, count_workers([process, *self._tree.alive.values()]))
        if death is not None and self._evidence.received_signal is None:  # otherwise it is a consequence of that signal
            self._record_death(death)
        deaths = self._restart_detector.record(process, self._tree.max_alive)
        if deaths is not None and self._evidence.restart_deaths is None:
            self._evidence.restart_deaths = deaths
            died = f"{count(deaths, 'worker')} of process {process.parent} died in a row"
            self._show(f"doctor: {died}, and it goes on starting new ones")
            self._show_end("this does not end by itself")

    def _record_death(self, death: Death) -> None:
        if self._is_stopping:
            death = msgspec.structs.replace(death, killer="doctor", why="the doctor, because nothing moved")
        self._deaths_by_killer[death.killer] += 1
        if self._deaths_by_killer[death.killer] <= MAX_DEATHS or death.role == "command":
            self._evidence.deaths.append(death)
        if death.matters:
            self._shown_deaths += 1
            peak = f"; peak {size(death.peak_bytes)}" if death.peak_bytes else ""
            if self._shown_deaths <= SHOWN_DEATHS:
                self._show(f"doctor: process {death.pid} ({death.name}, {death.role}) died: {death.why}{peak}")
            elif self._shown_deaths == SHOWN_DEATHS + 1:
                self._show("doctor: more processes die; the report will count them")

    def _check_for_hang(self) -> None:
        if self._is_stopping or self._evidence.received_signal is not None:
            return
        hang, before = self._hang_detector.check(self._tree, self._relay.contains(hangs.POOL_DIED)), self._evidence.hang
        if hang is not None and before is None:
            self._show(f"doctor: nothing has moved for {duration(hang.seconds)}")
            for waiting in [waiting for waiting in hang.waits if waiting.is_deadlocked][:1]:
                self._show(f"doctor: worker {waiting.process.pid} {waiting.wait.description}")
            self._show_end("if it should not be waiting")
        elif hang is None and before is not None:
            self._show("doctor: it moves again")
        self._evidence.hang = hang

    def _show_end(self, condition: str) -> None:
        self._show("doctor: stopping it" if self._stop_hung else f"doctor: {condition}, press Ctrl-C for the report")

    def _handle_signals(self) -> None:
        for received in pending_signals():
            if received.si_signo == signal.SIGWINCH:
                self._relay.resize()
                continue
            self._evidence.received_signal = received.si_signo
            # One from the terminal has also reached the command, which is in the same process group.
            for process in [] if received.si_code > 0 else self._tree.alive.values():
                if process.is_command:
                    with contextlib.suppress(PermissionError):  # sudo forwards signals of the terminal only
                        os.kill(process.pid, received.si_signo)

    def _stop(self) -> None:
        self._drain_stderr()
        self._is_stopping = True
        self._evidence.stderr = self._relay.text()  # later output is caused by stopping
        self._evidence.stacks, ended = hangs.stop(self._tree, self._relay)
        for process in ended:
            self._record_end(process)

    def _drain_stderr(self) -> None:
        """Relays stderr to its end, however slowly. A signal interrupts this."""
        self._relay.drain(lambda: any(received.si_signo != signal.SIGWINCH for received in pending_signals()))

    def _wait_for_leftovers(self) -> None:
        """Waits a short time for the remaining processes to end."""
        end = self._tree.now() + LEFTOVER_SECONDS
        while self._tree.alive and self._tree.now() < end:
            self._step()

    def _result(self, command: Sequence[str], root: Process) -> Watched:
        seen = self._evidence
        seen.exit_code, seen.max_processes, seen.limits = root.exit_code, self._tree.max_alive, self._tree.limits
        if not self._is_stopping:
            seen.stderr = self._relay.text()
            seen.hang = seen.hang if seen.received_signal is not None else None
        code = root.exit_code if root.signal is None else 128 + root.signal
        return Watched(
            command=list(command),
            exit_code=1 if code is None else code,
            seconds=round(root.ended_at or 0.0, 3),
            cpu_seconds=round(_cpu_seconds(resource.RUSAGE_CHILDREN) - self._cpu_before[1], 3),
            doctor_cpu_seconds=round(_cpu_seconds(resource.RUSAGE_SELF) - self._cpu_before[0], 3),
            processes=self._tree.total,
            most_at_once=self._tree.max_alive,
            peak_bytes=self._tree.peak_bytes,
            hung=root.exit_code != 0 and (seen.hang is not None or seen.restart_deaths is not None),
            interrupted=seen.was_interrupted,
            deaths_by_killer=dict(self._deaths_by_killer),
            deaths=seen.deaths,
            findings=diagnose(seen),
            left_behind=[LeftoverProcess(process.pid, process.name) for process in self._tree.alive.values()],
        )


def _cpu_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def start(command: Sequence[str], stderr: int, stdout: int | None, mask: set[signal.Signals]) -> int:
    """Starts the command with the signal settings that this process had before Python and the doctor changed them."""
    actions = [(os.POSIX_SPAWN_DUP2, stderr, 2)]
    if stdout is not None:
        actions.insert(0, (os.POSIX_SPAWN_DUP2, stdout, 1))
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            {**os.environ, **ENVIRONMENT},
            file_actions=actions,
            setsigmask=mask,
            setsigdef={signal.SIGPIPE, signal.SIGXFSZ},
        )
    except OSError as error:
        raise UsageError(f"the command cannot be run: {command[0]}", f"{error.strerror}.") from None


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Makes this process, instead of process 1, the parent of the command's orphans."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int(0)
    prctl(GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(SET_SUBREAPER, before.value, 0, 0, 0)


@contextlib.contextmanager
def raised_file_limit() -> Iterator[None]:
    """Raises the file limit, for one pidfd per process. Use after the start: the command keeps its own limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def blocked_signals() -> Iterator[set[signal.Signals]]:
    """Blocks signals within a `with` block. Yields the previous mask, which the command must inherit."""
    before = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)}
    try:
        yield before
    finally:
        for _ in pending_signals():  # they were meant for the command
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pending_signals() -> Iterator[signal.struct_siginfo]:
    """Yields the signals that arrived since the last call."""
    while (info := signal.sigtimedwait(BLOCKED, 0)) is not None:
        yield info
