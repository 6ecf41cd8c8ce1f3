"""Everything observed of a command from its start to its end, for the diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenmill.doctor.watching.deaths import Death
from tokenmill.doctor.watching.hangs import Hang
from tokenmill.doctor.watching.stopping import Stack


@dataclass(frozen=True, slots=True)
class Evidence:
    """What was observed of a command.

    Attributes:
        exit_code: The command's exit code, None if a signal ended it.
        signal: The signal that ended the command.
        stderr: The end of the command's stderr.
        max_processes: The largest number of processes at a time.
        received_signal: The signal by which the user ended the command through the doctor.
        hang: The hang for which the command was ended.
        restart_deaths: The number of workers that had died in a row when an endless restart was detected.
    """

    exit_code: int | None
    signal: int | None
    stderr: str
    max_processes: int
    deaths: list[Death]
    limits: dict[str, int]
    received_signal: int | None = None
    hang: Hang | None = None
    restart_deaths: int | None = None
    stacks: list[Stack] = field(default_factory=list)

    @property
    def succeeded(self) -> bool:
        """Whether the command's exit code is 0."""
        return self.exit_code == 0

    @property
    def was_interrupted(self) -> bool:
        """Whether the user ended the command, from the terminal or by a signal to the doctor."""
        return self.received_signal is not None and not self.succeeded
