"""Deaths and failures in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenmill.api.wording import size
from tokenmill.errors import RunFailed
from tokenmill.executors.outcomes import Died, Failed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenmill.planning import UnitTask

NAMED_FAILURES = 5


def obituary(death: Died[Any], what: str) -> str:
    """Who died, how, of what, and with how much memory."""
    words = f"; it said: {death.last_words.splitlines()[-1][:200]}" if death.last_words else ""
    memory = f"peak memory {size(death.worker.peak_bytes)}"
    return f"worker {death.worker.pid} {death.how} on {what} after {death.seconds:.1f} s, {memory}{words}"


def unit_obituary(death: Died[UnitTask]) -> str:
    """The same, for the unit it had."""
    return obituary(death, f"unit {death.item.unit} ({span(death.item)})")


def span(task: UnitTask) -> str:
    """What a unit is made of."""
    first = task.files[0].path
    if len(task.files) > 1:
        return f"{first} and {len(task.files) - 1} more files"
    return first if task.start is None else f"{first}, {task.start} to {task.stop}"


def run_failed(failures: Sequence[Failed[UnitTask] | Died[UnitTask]], left: int, units: int, log: str) -> RunFailed:
    """The error that ends a run whose units could not all be done."""
    details = []
    for failure in failures[:NAMED_FAILURES]:
        lines = _reason(failure).splitlines()
        details += [f"unit {failure.item.unit}: {lines[0]}", *lines[1:]]
    if len(failures) > NAMED_FAILURES:
        details.append(f"and {len(failures) - NAMED_FAILURES} more: see {log}")
    return RunFailed(
        f"{left:,} of {units:,} units are not done",
        *details,
        "What is committed stays. When the cause is gone, run the same command again.",
    )


def _reason(failure: Failed[UnitTask] | Died[UnitTask]) -> str:
    if isinstance(failure, Died):
        return obituary(failure, span(failure.item))
    if failure.explained:
        return failure.message
    return f"{failure.kind}: {failure.message or 'no message'}\n  in           {span(failure.item)}"
