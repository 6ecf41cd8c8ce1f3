"""Run a command, watch the processes that come from it, and say why it died. Needs Linux.

The command runs as it would without the doctor, except that PYTHONFAULTHANDLER is set and its stderr passes through
the doctor. If the doctor itself is killed, the command goes on, with a stderr that nobody reads.
"""

from __future__ import annotations

import collections
import contextlib
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec

from tokenmill.doctor.causes import Finding
from tokenmill.doctor.watching import launching, signals, stopping
from tokenmill.doctor.watching.deaths import Coroner, Death
from tokenmill.doctor.watching.diagnosis import diagnose
from tokenmill.doctor.watching.evidence import Evidence
from tokenmill.doctor.watching.hangs import POOL_DIED, Cycle, Hang, Stillness
from tokenmill.doctor.watching.live import Speaker
from tokenmill.doctor.watching.processes import Process
from tokenmill.doctor.watching.stderr import Relay
from tokenmill.doctor.watching.tree import Tree
from tokenmill.errors import UsageError

TICK_SECONDS, CALM_SECONDS = 0.005, 0.03
"""How often new processes are looked for: when some have just come, and otherwise."""

LEFT_BEHIND_SECONDS = 1.0
"""How long what is still there may take to end after the command."""

KEPT_DEATHS = 20
"""So many of each kind are told of one by one; the others are counted."""


class Left(msgspec.Struct, frozen=True):
    """A process that still runs after the command has ended."""

    pid: int
    name: str


class Watched(msgspec.Struct, frozen=True):
    """How a command went. `exit_code` is 128 + n for signal n; `peak_bytes` is the most that all held together.

    `cpu_seconds` is what the command and all that came from it used, `doctor_cpu_seconds` what watching it took.
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
    left_behind: list[Left]


def watch(
    command: Sequence[str],
    *,
    hang_seconds: float = 60.0,
    stop_hung: bool = False,
    say: Callable[[str], None] | None = None,
    output: int | None = None,
) -> Watched:
    """Run a command to its end and say how it went.

    A command in which nothing moves for `hang_seconds` is reported, and ended only if `stop_hung`. `say` takes each
    line that is told while it runs, otherwise written to stderr; `output` is a file to have the command's stdout.
    """
    if not sys.platform.startswith("linux"):
        raise UsageError(
            "the doctor can watch a command only on Linux",
            "On this system it can examine a function: tokenmill doctor FILE.py:FUNCTION",
        )
    with (
        signals.taken() as mask,
        launching.adopting(),
        contextlib.closing(_Watch(hang_seconds, stop_hung, say)) as watching,
    ):
        return watching.run(command, mask, output)


class _Watch:
    def __init__(self, hang_seconds: float, stop_hung: bool, say: Callable[[str], None] | None) -> None:
        self._tree, self._coroner, self._relay = Tree(), Coroner(), Relay()
        self._speaker = Speaker(say or self._relay.say)
        self._stillness, self._cycle = Stillness(hang_seconds), Cycle()
        self._stop_hung = stop_hung
        self._deaths: list[Death] = []
        self._counts: collections.Counter[str] = collections.Counter()
        self._hang: Hang | None = None
        self._in_a_row: int | None = None
        self._told: int | None = None
        self._stacks: list[stopping.Stack] = []
        self._is_stopping = False
        self._said: str | None = None
        self._cpu_before = _cpu_seconds(resource.RUSAGE_SELF), _cpu_seconds(resource.RUSAGE_CHILDREN)

    def run(self, command: Sequence[str], mask: set[signal.Signals], output: int | None) -> Watched:
        root = self._tree.begin(launching.start(command, self._relay.theirs, output, mask), tuple(command))
        with launching.many_files():
            while root.ended is None:
                self._turn()
                if self._stop_hung and not self._is_stopping and (self._hang or self._in_a_row):
                    self._stop()
            self._linger()
        self._settle()
        return self._result(command, root)

    def close(self) -> None:
        self._relay.close()
        self._tree.close()
        self._coroner.close()

    def _turn(self) -> None:
        for process in self._tree.wait(TICK_SECONDS if self._tree.is_growing else CALM_SECONDS):
            self._take_down(process)
        self._answer_signals()
        for process in self._tree.find_new():
            self._coroner.meet(process)
        if self._tree.sample():
            for process in self._tree.alive.values():
                self._coroner.meet(process)
            self._look_for_hang()

    def _take_down(self, process: Process) -> None:
        """Note the end of a process."""
        death = self._coroner.examine(process)
        if death is not None and self._told is None:  # otherwise it follows from what somebody asked for
            self._note(death)
        in_a_row = self._cycle.note(process, self._tree.most)
        if in_a_row is not None and self._in_a_row is None:
            self._in_a_row = in_a_row
            self._speaker.cycle(process.parent, in_a_row, self._stop_hung)

    def _note(self, death: Death) -> None:
        if self._is_stopping:
            death = msgspec.structs.replace(death, killer="doctor", why="the doctor, because nothing moved")
        self._counts[death.killer] += 1
        if self._counts[death.killer] <= KEPT_DEATHS or death.role == "command":
            self._deaths.append(death)
        self._speaker.death(death)

    def _look_for_hang(self) -> None:
        if self._is_stopping:
            return
        hang = self._stillness.look(self._tree, self._relay.has_said(POOL_DIED))
        if hang is not None and self._hang is None:
            self._speaker.hang(hang, self._deaths, self._stop_hung)
        elif hang is None and self._hang is not None and self._told is None:
            self._speaker.moves_again()
        if self._told is None:
            self._hang = hang

    def _answer_signals(self) -> None:
        for sent in signals.pending():
            if sent.number == signal.SIGWINCH:
                self._relay.resize()
                continue
            self._told = sent.number
            if not sent.is_from_terminal:
                self._pass_on(sent.number)

    def _pass_on(self, number: int) -> None:
        for process in self._tree.alive.values():
            if process.is_command:
                with contextlib.suppress(PermissionError):  # sudo passes on only what the terminal sends
                    os.kill(process.pid, number)

    def _stop(self) -> None:
        self._settle()
        self._is_stopping = True
        self._said = self._relay.text()  # what is said from now on is what we make the processes say
        self._stacks, ended = stopping.stop(self._tree, self._relay)
        for process in ended:
            self._take_down(process)

    def _settle(self) -> None:
        """Let stderr be read to its end, however slowly; whoever interrupts that has seen enough."""
        self._relay.settle(lambda: any(sent.number != signal.SIGWINCH for sent in signals.pending()))

    def _linger(self) -> None:
        """Give what is left some time to end."""
        end = self._tree.now() + LEFT_BEHIND_SECONDS
        while self._tree.alive and self._tree.now() < end:
            self._turn()

    def _evidence(self, root: Process) -> Evidence:
        was_ended = self._is_stopping or self._told is not None
        return Evidence(
            code=root.code,
            number=root.signal,
            said=self._relay.text() if self._said is None else self._said,
            most=self._tree.most,
            deaths=[death for death in self._deaths if death.killer != "doctor"],
            limits=self._tree.limits,
            told=self._told,
            hang=self._hang if was_ended else None,
            cycle=self._in_a_row,
            stacks=self._stacks,
        )

    def _result(self, command: Sequence[str], root: Process) -> Watched:
        seen = self._evidence(root)
        return Watched(
            command=list(command),
            exit_code=_exit_code(root),
            seconds=round(root.ended or 0.0, 3),
            cpu_seconds=round(_cpu_seconds(resource.RUSAGE_CHILDREN) - self._cpu_before[1], 3),
            doctor_cpu_seconds=round(_cpu_seconds(resource.RUSAGE_SELF) - self._cpu_before[0], 3),
            processes=self._tree.seen,
            most_at_once=self._tree.most,
            peak_bytes=self._tree.peak,
            hung=not seen.ended_well and (seen.hang is not None or seen.cycle is not None),
            interrupted=seen.was_interrupted,
            deaths_by_killer=dict(self._counts),
            deaths=self._deaths,
            findings=diagnose(seen),
            left_behind=[Left(process.pid, process.name) for process in self._tree.alive.values()],
        )


def _cpu_seconds(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def _exit_code(root: Process) -> int:
    if root.signal is not None:
        return 128 + root.signal
    return 1 if root.code is None else root.code
