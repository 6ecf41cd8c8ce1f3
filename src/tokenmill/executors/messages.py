"""Messages about worker deaths and failed items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tokenmill.errors import FAILED, TRY_AGAIN, RunFailed, combined_exit_code
from tokenmill.executors.outcomes import Cause, Died, Failed, Item
from tokenmill.humanize import count, size

# Failures that a message names; the others are only counted.
NAMED_FAILURES = 5

COMMITTED_STAYS = "Committed work is kept. Fix the cause, then run the same command again."


def describe_death(death: Died[Any], what: str) -> str:
    """The worker, how it ended, on which item, after how long and with how much memory."""
    if death.end.cause is Cause.NODE_LOST:
        return f"a worker on {death.worker.node} {death.end}; it had {what} for {death.seconds:.1f} s"
    output = f"; its last output: {death.last_line}" if death.last_line else ""
    memory = f"peak memory {size(death.worker.peak_bytes)}"
    return f"{death.worker} {death.end} on {what} after {death.seconds:.1f} s, {memory}{output}"


def exit_code_of_failures(failures: Iterable[Failed[Any] | Died[Any]]) -> int:
    """The exit code of a command that ends with these failures."""
    return combined_exit_code(
        failure.exit_code
        if isinstance(failure, Failed)
        # A worker that was killed from outside may survive the next time.
        else TRY_AGAIN
        if failure.end.by_others or failure.end.by_kernel
        else FAILED
        for failure in failures
    )


def fewer_workers(workers: int) -> str:
    """The note after a death for lack of memory."""
    return f"memory ran out: going on with {count(workers, 'worker')}"


def out_of(some: int, total: int, what: str) -> str:
    """A fraction with its verb: 1 of 1 unit is, 1 of 2 units is, 2 of 9 units are."""
    return f"{some:,} of {count(total, what)} {'is' if some == 1 else 'are'}"


def work_failed(
    failures: Sequence[Failed[Item] | Died[Item]], describe: Callable[[Item], str], total: int | None = None
) -> RunFailed:
    """The error that ends work of which some items failed, of `total` items if their number is known."""
    headline = count(len(failures), "item") if total is None else f"{len(failures):,} of {count(total, 'item')}"
    return RunFailed(
        f"{headline} failed",
        *_reasons(failures, describe, lambda failure: describe(failure.item), ""),
        COMMITTED_STAYS,
        exit_code=exit_code_of_failures(failures),
    )


def _reasons(
    failures: Sequence[Failed[Item] | Died[Item]],
    name: Callable[[Item], str],
    locate: Callable[[Failed[Item] | Died[Item]], str],
    more: str,
) -> list[str]:
    """Lines about the first failures: the item's name, its node and the reason; `more` ends the line about the rest."""
    details = []
    for failure in failures[:NAMED_FAILURES]:
        lines = _reason(failure, locate(failure)).splitlines()
        node = [f"  node         {failure.worker.node}"] if failure.worker.node else []
        details += [f"{name(failure.item)}: {lines[0]}", *node, *lines[1:]]
    if len(failures) > NAMED_FAILURES:
        details.append(f"and {len(failures) - NAMED_FAILURES} more{more}")
    return details


def _reason(failure: Failed[Item] | Died[Item], location: str) -> str:
    if isinstance(failure, Died):
        return describe_death(failure, location)
    if failure.explained:
        return failure.message
    return f"{failure.kind}: {failure.message or 'no message'}\n  in           {location}"
