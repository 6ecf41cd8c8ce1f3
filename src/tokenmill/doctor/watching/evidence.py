"""All that was seen of a command from its start to its end, for the diagnosis."""

from __future__ import annotations

from dataclasses import dataclass, field

from tokenmill.doctor.watching.deaths import Death
from tokenmill.doctor.watching.hangs import Hang
from tokenmill.doctor.watching.stopping import Stack


@dataclass(frozen=True, slots=True)
class Evidence:
    """`code` and `number` are the command's exit code or signal, `said` is the end of its stderr.

    `most` is the largest number of processes at a time. `told` is the signal by which somebody ended the command
    through the doctor; `hang`, what was seen when it was ended because nothing moved; `cycle`, how many workers in a
    row had died when it was found to start new ones for ever.
    """

    code: int | None
    number: int | None
    said: str
    most: int
    deaths: list[Death]
    limits: dict[str, int]
    told: int | None = None
    hang: Hang | None = None
    cycle: int | None = None
    stacks: list[Stack] = field(default_factory=list)

    @property
    def ended_well(self) -> bool:
        """Whether the command itself says that all is well."""
        return self.code == 0

    @property
    def was_interrupted(self) -> bool:
        """Whether somebody ended the command, by the terminal or by telling the doctor."""
        return self.told is not None and not self.ended_well
