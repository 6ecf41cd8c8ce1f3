"""What is concluded from a death or an error in isolation: which row is tried alone next, which is left out, and when
the unit itself is at fault.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from tokenmill.executors.outcomes import Cause, Died, Failed
from tokenmill.humanize import signal_name
from tokenmill.pipeline.isolate import ExcludedRow, IsolatedUnit, RowId
from tokenmill.pipeline.position import position_in

Item = TypeVar("Item")
STUMBLES = 2
"""How often a unit may die where no document is at fault."""

HUNGERS = 3
"""How many documents may be suspected in a row of taking too much memory, and be innocent: it is all of them then."""


def after_probe(patient: IsolatedUnit) -> IsolatedUnit:
    """The suspect was encoded alone and all went well: from now on it is encoded so."""
    cleared = [] if patient.suspect is None else [patient.suspect]
    return replace(patient, suspect=None, apart=(*patient.apart, *cleared))


def after_trouble(patient: IsolatedUnit, trouble: Died[IsolatedUnit] | Failed[IsolatedUnit]) -> IsolatedUnit | None:
    """What to do next with a unit that did not get through; None if there is nothing left to try."""
    row = row_at(trouble)
    if row is None:
        stumbled = replace(patient, stumbles=patient.stumbles + 1)
        return stumbled if stumbled.stumbles < STUMBLES else None
    if row == patient.suspect:
        return leave_out(patient, row, trouble)
    hungers = patient.hungers + is_memory(trouble)
    if row in patient.apart or hungers > HUNGERS:  # it passes alone, but not with what came before it
        return None
    return replace(patient, suspect=row, hungers=hungers)


def is_memory(trouble: Died[Item] | Failed[Item]) -> bool:
    """Whether memory ran out, be it told by a death or by an error."""
    if isinstance(trouble, Failed):
        return trouble.kind.endswith("MemoryError")
    return trouble.end.cause is Cause.MEMORY


def leave_out(patient: IsolatedUnit, row: RowId, trouble: Died[IsolatedUnit] | Failed[IsolatedUnit]) -> IsolatedUnit:
    """The unit without a row that is to blame."""
    verdict = ExcludedRow(row, *reason(trouble))
    return replace(patient, suspect=None, left_out=(*patient.left_out, verdict), hungers=0)


def row_at(trouble: Died[Item] | Failed[Item]) -> RowId | None:
    """The one row that a worker was encoding, if it was at one."""
    place = position_in(trouble.note)
    if place is None or place.stage != "encode" or place.source is None or place.first is None:
        return None
    return RowId(place.source, place.first) if place.first == place.last else None


def reason(trouble: Died[Item] | Failed[Item]) -> tuple[str, str]:
    """Why a row is left out: a phrase to count by, and particulars. The same wherever and whenever it happens."""
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
