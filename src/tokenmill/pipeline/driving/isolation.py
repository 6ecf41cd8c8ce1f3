"""Which units are isolated, that is tokenized document by document, and what to try next for them.

Decides which row is tried alone, which is excluded, and when the unit has failed.

`pipeline/unit/isolate.py` does the work in a worker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from tokenmill.executors.outcomes import Cause, Died, Failed, RetryPolicy
from tokenmill.humanize import signal_name
from tokenmill.pipeline.unit.isolate import ExcludedRow, IsolatedUnit, RowId
from tokenmill.pipeline.unit.plan import UnitTask, position_in
from tokenmill.tokenization.engines.protocol import CannotEncode

Trouble = Died[Any] | Failed[Any]

# When this many units wait for isolation, no other unit is started until they are isolated.
MAX_TO_ISOLATE = 100

# The same, also for units that have failed, before the first unit of this call is done: probably nothing works.
MAX_FAILURES_WITHOUT_SUCCESS = 10

# An isolated unit is given up when it has died this often while no document was being encoded.
MAX_UNEXPLAINED_DEATHS = 2

# An isolated unit is given up after this many cleared documents in a row were suspected of taking too much memory:
# then the unit as a whole takes too much.
MAX_MEMORY_DEATHS = 3


def may_be_a_document(trouble: Trouble) -> bool:
    """Whether a document of the unit may be the reason, so that the unit should be isolated."""
    if isinstance(trouble, Failed):
        return not trouble.explained or trouble.is_a(CannotEncode)
    return trouble.final and not trouble.end.by_others


def ran_out_of_memory(trouble: Trouble) -> bool:
    """Whether memory ran out, be it reported as a death or as an error."""
    if isinstance(trouble, Failed):
        return trouble.kind.endswith("MemoryError")  # pyarrow and numpy have MemoryErrors of their own
    return trouble.end.cause is Cause.MEMORY


class Isolation:
    """The units that wait for isolation, and what is known of their rows."""

    def __init__(self) -> None:
        self._to_isolate: dict[int, IsolatedUnit] = {}
        self._memory_ran_out = False

    def __len__(self) -> int:
        return len(self._to_isolate)

    def waiting(self) -> list[IsolatedUnit]:
        """The units that wait for their next attempt."""
        return list(self._to_isolate.values())

    def is_full(self, units_done: int) -> bool:
        """Whether the waiting units should be isolated before any other unit is started."""
        most = MAX_TO_ISOLATE if units_done else MAX_FAILURES_WITHOUT_SUCCESS
        return len(self._to_isolate) >= most

    def add(self, task: UnitTask) -> None:
        """Isolate this unit next."""
        self._to_isolate[task.unit] = IsolatedUnit(task)

    def update(self, unit: IsolatedUnit) -> None:
        """Replace what is known of a waiting unit."""
        self._to_isolate[unit.task.unit] = unit

    def remove(self, units: Iterable[int]) -> None:
        """Forget units that are done or have failed."""
        for unit in units:
            self._to_isolate.pop(unit, None)

    def note_memory(self, trouble: Trouble) -> None:
        """Remember that memory ran out: from then on units are isolated one at a time."""
        self._memory_ran_out |= ran_out_of_memory(trouble)

    def policy(self) -> RetryPolicy:
        """How the executor runs the waiting units: one death is enough, and one worker at a time if memory ran out."""
        return RetryPolicy(max_crashes=1, max_kills=10, workers=1 if self._memory_ran_out else None)

    def excluded_rows(self) -> list[ExcludedRow]:
        """The rows that are excluded from units that are not done yet."""
        return [row for unit in self._to_isolate.values() for row in unit.excluded]

    def rows_read(self) -> int:
        """How many rows the waiting units have, as far as is known."""
        return sum(max(unit.task.rows or 0, len(unit.excluded)) for unit in self._to_isolate.values())


def after_probe(unit: IsolatedUnit) -> IsolatedUnit:
    """The unit after its suspect was encoded alone without trouble: from now on the reference engine encodes it."""
    cleared = [] if unit.suspect is None else [unit.suspect]
    return replace(unit, suspect=None, cleared_rows=(*unit.cleared_rows, *cleared))


def after_trouble(unit: IsolatedUnit, trouble: Trouble) -> IsolatedUnit | None:
    """What to try next with a unit that failed or died; None if nothing is left to try."""
    row = row_at(trouble)
    if row is None:
        deaths = unit.unexplained_deaths + 1
        return replace(unit, unexplained_deaths=deaths) if deaths < MAX_UNEXPLAINED_DEATHS else None
    if row == unit.suspect:
        excluded = (*unit.excluded, ExcludedRow(row, *reason(trouble)))
        return replace(unit, suspect=None, excluded=excluded, memory_deaths=0)
    memory_deaths = unit.memory_deaths + ran_out_of_memory(trouble)
    # A cleared row passes alone, but not after the rows before it: no single row is to blame.
    if row in unit.cleared_rows or memory_deaths > MAX_MEMORY_DEATHS:
        return None
    return replace(unit, suspect=row, memory_deaths=memory_deaths)


def row_at(trouble: Trouble) -> RowId | None:
    """The row that the worker was encoding, if it was encoding a single one."""
    position = position_in(trouble.note)
    if position is None or position.stage != "encode" or position.source is None or position.first is None:
        return None
    return RowId(position.source, position.first) if position.first == position.last else None


def reason(trouble: Trouble) -> tuple[str, str]:
    """Why a row is excluded: a phrase to count by, and details. Both are the same on every machine."""
    if isinstance(trouble, Failed):
        return f"raised {trouble.kind}", trouble.message.partition("\n")[0]
    end = trouble.end
    if end.cause is Cause.STALLED:
        return "took too long", f"more than {end.limit or 0:g} s"
    if end.cause is Cause.MEMORY:
        return "took too much memory", ""
    if end.exit_code < 0:
        return f"killed its worker ({signal_name(-end.exit_code)})", ""
    return f"ended its worker (exit code {end.exit_code})", ""
