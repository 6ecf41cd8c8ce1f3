"""Errors that cross the process border, and the one loop over outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from tokenmill import errors
from tokenmill.errors import BadDocument, RunFailed, SourceError, StoreError, TokenmillError
from tokenmill.executors.fan_out import MAX_FAILURES, ignore, run_all
from tokenmill.executors.outcomes import (
    DEFAULT_POLICY,
    Cause,
    Died,
    Done,
    ExitReport,
    Failed,
    Item,
    RetryPolicy,
    Value,
    Worker,
    error_record,
)
from tokenmill.sources.missing_column import NoColumn
from tokenmill.tokenization.audit import AuditMismatchError

WORKER = Worker(7, 0)
ALL_ERRORS = (*vars(errors).values(), NoColumn, AuditMismatchError)
CLASSES = [kind for kind in ALL_ERRORS if isinstance(kind, type) and issubclass(kind, TokenmillError)]


@pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind is not AuditMismatchError])
def test_an_error_is_raised_again_as_it_was(kind: type[TokenmillError]) -> None:
    """Class, message, exit code and lines are the same on the other side."""
    error = kind("a headline", "first line", "  an indented line", exit_code=7)
    failure = Failed.of("item", error, WORKER)
    again = failure.error()
    assert (type(again), str(again), again.args, again.exit_code) == (kind, str(error), error.args, 7)
    assert (failure.kind, failure.message, failure.explained) == (kind.__name__, str(error), True)


def test_an_error_with_parameters_of_its_own_is_raised_again() -> None:
    """The constructor of a subclass is not called with lines of text."""
    error = AuditMismatchError(3)
    assert type(Failed.of("item", error, WORKER).error()) is AuditMismatchError
    assert str(Failed.of("item", error, WORKER).error()) == str(error)


def test_the_class_of_a_failure_is_known() -> None:
    """A failure is of its class and of the classes above it; one that is not ours is of none."""
    failure = Failed.of("item", NoColumn("no column"), WORKER)
    assert failure.is_a(NoColumn)
    assert failure.is_a(SourceError)
    assert not failure.is_a(StoreError)
    foreign = Failed.of("item", ValueError("StoreError"), WORKER)
    assert foreign.error_class is None
    assert not foreign.is_a(TokenmillError)
    assert foreign.message == "StoreError"


def test_a_class_that_is_not_imported_becomes_the_general_one() -> None:
    """The message and the exit code survive."""
    _, headline, details, exit_code, explained = error_record(StoreError("a headline", "a line", exit_code=75))
    failure = Failed("item", "NeverImportedError", headline, details, exit_code, explained, WORKER)
    assert type(failure.error()) is TokenmillError
    assert (failure.message, failure.error().exit_code) == ("a headline\n  a line", 75)


def test_which_errors_may_be_the_fault_of_a_machine() -> None:
    """Bad data, a wrong call and a tokenizer fail on every machine."""
    assert {kind.__name__ for kind in CLASSES if kind.may_succeed_elsewhere} == {
        "CorruptStore",
        "LimitReached",
        "SourceError",
        "StorageError",
        "StoreError",
    }


class Fake:
    """An executor that turns each item into the outcome that is written in it."""

    def __init__(self) -> None:
        self.taken = 0

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], policy: RetryPolicy = DEFAULT_POLICY
    ) -> Iterator[Done[Item, Value] | Failed[Item] | Died[Item]]:
        """Yield one outcome for each item, after a death that is retried if it dies."""
        for item in items:
            self.taken += 1
            if item == "done":
                yield Done(item, function(item), WORKER, 0.0)
            elif item == "failed":
                yield Failed.of(item, BadDocument("a bad document"), WORKER)
            else:
                for final in (False, True):
                    yield Died(item, ExitReport(1, Cause.CRASH), WORKER, 0.0, 1, final, "", b"", policy.max_kills)


def test_failures_are_raised_together_at_the_end() -> None:
    """What is done is yielded; after some failures no item is taken any more."""
    executor = Fake()
    results: list[Done[str, str]] = []
    with pytest.raises(RunFailed) as raised:
        results += run_all(executor, str.upper, ["failed", "done", "died"])
    assert ([done.value for done in results], executor.taken) == (["DONE"], 3)
    assert "failed: a bad document" in raised.value.details
    assert any(line.startswith("died: worker 7 exited with code 1 on died") for line in raised.value.details)
    with pytest.raises(RunFailed):
        list(run_all(executor := Fake(), str.upper, ["failed"] * 100))
    assert executor.taken == MAX_FAILURES


def test_failures_and_deaths_are_handled_by_the_caller() -> None:
    """Each final failure is passed on once, each death whether final or not; nothing is raised, and no item left."""
    failures: list[Any] = []
    deaths: list[Any] = []
    items = ["done", *["failed"] * 20, "died", "done"]
    done = run_all(Fake(), str.upper, items, on_failure=failures.append, on_death=deaths.append)
    assert [outcome.value for outcome in done] == ["DONE", "DONE"]
    assert [failure.item for failure in failures] == [*["failed"] * 20, "died"]
    assert [death.final for death in deaths] == [False, True]
    assert len(list(run_all(Fake(), str.upper, items, on_failure=ignore))) == 2


def test_external_kills_are_retried_more_often_unless_the_caller_says_otherwise() -> None:
    """The policy reaches the executor."""
    kills: list[int] = []

    def on_death(death: Died[str]) -> None:
        kills.append(death.workers)

    list(run_all(Fake(), str.upper, ["died"], on_failure=ignore, on_death=on_death))
    policy = RetryPolicy(max_kills=4)
    list(run_all(Fake(), str.upper, ["died"], on_failure=ignore, on_death=on_death, policy=policy))
    assert kills == [10, 10, 4, 4]
