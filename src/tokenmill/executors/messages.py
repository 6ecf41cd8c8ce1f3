"""Messages about deaths and failures of work that is not a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tokenmill.errors import FAILED, TRY_AGAIN, RunFailed, TokenmillError, combined_exit_code
from tokenmill.executors.outcomes import Cause, Died, Failed, Item
from tokenmill.humanize import count, size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


Error = TypeVar("Error", bound=TokenmillError)


NAMED_FAILURES = 5


COMMITTED_STAYS = "What is committed stays. When the cause is gone, run the same command again."


def describe_death(death: Died[Any], what: str) -> str:
    """Who died, how, of what, and with how much memory."""
    words = f"; it said: {death.said}" if death.said else ""
    if death.end.cause is Cause.LOST:
        return f"a worker on {death.worker.node} {death.how}; it had {what} for {death.seconds:.1f} s"
    memory = f"peak memory {size(death.worker.peak_bytes)}"
    return f"{death.worker} {death.how} on {what} after {death.seconds:.1f} s, {memory}{words}"


def raised_again(failure: Failed[Any], kind: type[Error]) -> Error:
    """An error that explained itself in a worker, to be raised here."""
    return kind(*(line.strip() for line in failure.message.splitlines()), exit_code=failure.exit_code)


def exit_code_of_failures(failures: Iterable[Failed[Any] | Died[Any]]) -> int:
    """The exit code of a command that ends with these failures. A worker that was killed or lost may live next time."""
    return combined_exit_code(
        failure.exit_code if isinstance(failure, Failed) else TRY_AGAIN if _may_pass(failure) else FAILED
        for failure in failures
    )


def _may_pass(death: Died[Any]) -> bool:
    return death.end.by_others or death.end.by_kernel


def fewer_workers(workers: int) -> str:
    """What follows from a death for lack of memory."""
    return f"memory ran out: going on with {count(workers, 'worker')}"


def out_of(some: int, total: int, what: str) -> str:
    """Some of all, with the verb that goes with it: 1 of 1 unit is, 1 of 2 units is, 2 of 9 units are."""
    return f"{some:,} of {count(total, what)} {'is' if some == 1 else 'are'}"


def work_failed(failures: Sequence[Failed[Item] | Died[Item]], describe: Callable[[Item], str]) -> RunFailed:
    """The error that ends other work, some of which could not be done."""
    return RunFailed(
        "not everything could be done",
        *_reasons(failures, describe, lambda it: describe(it.item), ""),
        COMMITTED_STAYS,
        exit_code=exit_code_of_failures(failures),
    )


def _reasons(
    failures: Sequence[Failed[Item] | Died[Item]],
    name: Callable[[Item], str],
    place: Callable[[Failed[Item] | Died[Item]], str],
    more: str,
) -> list[str]:
    details = []
    for failure in failures[:NAMED_FAILURES]:
        lines = _reason(failure, place(failure)).splitlines()
        node = [f"  node         {failure.worker.node}"] if failure.worker.node else []
        details += [f"{name(failure.item)}: {lines[0]}", *node, *lines[1:]]
    if len(failures) > NAMED_FAILURES:
        details.append(f"and {len(failures) - NAMED_FAILURES} more{more}")
    return details


def _reason(failure: Failed[Item] | Died[Item], place: str) -> str:
    if isinstance(failure, Died):
        return describe_death(failure, place)
    if failure.explained:
        return failure.message
    return f"{failure.kind}: {failure.message or 'no message'}\n  in           {place}"
