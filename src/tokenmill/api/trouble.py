"""Deaths and failures in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenmill.errors import RunFailed
from tokenmill.executors.outcomes import Died, Failed, Item
from tokenmill.wording import size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenmill.planning import UnitTask

NAMED_FAILURES = 5
COMMITTED_STAYS = "What is committed stays. When the cause is gone, run the same command again."


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
    return RunFailed(
        f"{left:,} of {units:,} units are not done",
        *_reasons(failures, lambda task: f"unit {task.unit}", span, f": see {log}"),
        COMMITTED_STAYS,
    )


def work_failed(failures: Sequence[Failed[Item] | Died[Item]], describe: Callable[[Item], str]) -> RunFailed:
    """The error that ends other work, some of which could not be done."""
    return RunFailed("not everything could be done", *_reasons(failures, describe, describe, ""), COMMITTED_STAYS)


def _reasons(
    failures: Sequence[Failed[Item] | Died[Item]],
    name: Callable[[Item], str],
    place: Callable[[Item], str],
    more: str,
) -> list[str]:
    details = []
    for failure in failures[:NAMED_FAILURES]:
        lines = _reason(failure, place(failure.item)).splitlines()
        details += [f"{name(failure.item)}: {lines[0]}", *lines[1:]]
    if len(failures) > NAMED_FAILURES:
        details.append(f"and {len(failures) - NAMED_FAILURES} more{more}")
    return details


def _reason(failure: Failed[Item] | Died[Item], place: str) -> str:
    if isinstance(failure, Died):
        return obituary(failure, place)
    if failure.explained:
        return failure.message
    return f"{failure.kind}: {failure.message or 'no message'}\n  in           {place}"
