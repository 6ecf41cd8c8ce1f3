"""Workers that have several items at once: they foresee some, do one, publish others, and die in the midst of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.ahead_functions import Foreseeing, Item, Stages, echo, thread_names
from tests.support.executor_functions import double, negate
from tests.support.killing import alive, wait_until
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.outcomes import Cause, Died, Done, Failed, RetryPolicy

pytestmark = pytest.mark.timeout(60)

AHEAD = RetryPolicy(prefetch=2)
MEGABYTE = 1 << 20


@pytest.fixture
def log(tmp_path: Path) -> str:
    """Where the functions write down what they do."""
    return str(tmp_path / "log")


@pytest.fixture
def one() -> Iterator[LocalExecutor]:
    """An executor with one worker."""
    with LocalExecutor().start(1) as executor:
        yield executor


def lines(log: str) -> list[tuple[str, int]]:
    """What was done, to which item, in order."""
    words = (line.rsplit(" ", 2) for line in Path(log).read_text().splitlines())
    return [(what, int(number)) for what, _, number in words]


def begun(log: str) -> Counter[int]:
    """How often each item was begun."""
    return Counter(number for what, number in lines(log) if what == "begin")


def items(*what: str) -> list[Item]:
    """Items with numbers."""
    return list(enumerate(what))


def finals(outcomes: list[Any]) -> dict[int, Any]:
    """What became of each item in the end; nothing may become of one twice."""
    ends = [outcome for outcome in outcomes if not isinstance(outcome, Died) or outcome.final]
    assert len({outcome.item for outcome in ends}) == len(ends)
    return {outcome.item[0]: outcome for outcome in ends}


def values(outcomes: Iterable[Any]) -> list[Any]:
    """The values of outcomes that are all done."""
    found = list(outcomes)
    assert all(isinstance(outcome, Done) for outcome in found), found
    return [outcome.value for outcome in found]


def deaths(outcomes: list[Any]) -> list[Died[Any]]:
    """The deaths among outcomes."""
    return [outcome for outcome in outcomes if isinstance(outcome, Died)]


def test_items_are_foreseen_while_others_are_done(one: LocalExecutor, log: str) -> None:
    """A worker hears of the next two items while it is at one, always before it does them, and does them in order."""
    outcomes = list(one.run(Foreseeing(log), items(*["wait for two"] * 8, "", ""), AHEAD))
    assert values(outcomes) == list(range(10))
    assert [number for what, number in lines(log) if what == "begin"] == list(range(10))
    assert all(lines(log).index(("prefetch", number)) < lines(log).index(("begin", number)) for number in range(1, 10))


def test_nothing_is_foreseen_unless_asked_for(one: LocalExecutor, log: str) -> None:
    """A worker with one item at a time has no further thread and foresees nothing, also after a run that did."""
    (before,) = one.run(thread_names, [0])
    assert len(values([before])[0]) == 2  # the main thread, and the one that ends with the parent
    list(one.run(Foreseeing(log), items("wait for two", "", ""), AHEAD))
    count = len(lines(log))
    list(one.run(Foreseeing(log), items(*[""] * 20)))
    assert [what for what, _ in lines(log)[count:]] == ["begin"] * 20


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_future_is_answered_for_when_it_is_done(one: LocalExecutor, log: str, ahead: int) -> None:
    """Values and errors of futures come back as those of the function do, each with its own item."""
    what = ["publish", "publish fail", "", "publish unsendable", "fail", "publish exit", "publish"]
    before = one.pids
    ends = finals(list(one.run(Foreseeing(log, publish_seconds=0.05), items(*what), RetryPolicy(prefetch=ahead))))
    assert {number: end.value for number, end in ends.items() if isinstance(end, Done)} == {0: 0, 2: 2, 6: 6}
    failed = {number: (end.kind, end.explained, end.note) for number, end in ends.items() if isinstance(end, Failed)}
    assert failed == {
        1: ("SourceError", True, b""),
        3: ("TypeError", False, b""),
        4: ("SourceError", True, b"failing 4"),
        5: ("SystemExit", False, b""),
    }
    assert "ahead_functions.py" in ends[1].traceback
    assert one.pids == before


@pytest.mark.parametrize("ahead", [0, 7])
def test_a_worker_goes_on_while_it_publishes_but_not_for_ever(one: LocalExecutor, log: str, ahead: int) -> None:
    """At most two futures are outstanding when the next item is begun; what they take counts."""
    work = items(*["publish wait for two"] * 6, "publish", "publish")
    outcomes = list(one.run(Stages(log, publish_seconds=0.05), work, RetryPolicy(prefetch=ahead)))
    assert sorted(values(outcomes)) == list(range(8))
    assert all(isinstance(outcome, Done) and outcome.seconds >= 0.05 for outcome in outcomes)
    open_items, most = 0, 0
    for what, _ in lines(log):
        open_items += 1 if what == "begin" else -1
        most = max(most, open_items)
    assert most == 3


def test_a_slow_future_does_not_hold_back_the_others(one: LocalExecutor, log: str) -> None:
    """While the future of one item is not done, a worker does all items after it."""
    done: list[int] = []
    for outcome in one.run(Stages(log), items("publish wait for word", *["publish"] * 9), AHEAD):
        done.append(outcome.item[0])
        if len(done) == 9:
            Path(f"{log}.word").touch()
    assert done[-1] == 0
    assert sorted(done) == list(range(10))


def test_items_go_to_the_worker_that_has_fewest(log: str) -> None:
    """However many a worker may have, two items go to two workers, and no more are taken than workers may have."""
    taken = 0

    def numbers() -> Iterator[int]:
        nonlocal taken
        for number in range(1000):
            taken += 1
            yield number

    with LocalExecutor().start(2) as executor:
        outcomes = list(executor.run(Stages(log, seconds=0.2), items("", ""), RetryPolicy(prefetch=5)))
        assert {outcome.worker.pid for outcome in outcomes} == set(executor.pids)
        for done, _ in enumerate(executor.run(double, numbers(), AHEAD), 1):
            assert taken <= done + 2 * 3
        assert taken == 1000


@pytest.mark.parametrize("function", [Stages, Foreseeing])
@pytest.mark.parametrize("deadly", [0, 2, 4])
@pytest.mark.parametrize(("what", "exit_code"), [("crash once", -signal.SIGABRT), ("be killed", -signal.SIGKILL)])
def test_a_death_is_blamed_on_the_item_that_the_worker_was_at(
    one: LocalExecutor, log: str, function: type[Stages], deadly: int, what: str, exit_code: int
) -> None:
    """Of the three items that a worker has when it dies, one is told of and tried again; the others are done once."""
    work = items(*[what if number == deadly else "" for number in range(5)])
    outcomes = list(one.run(function(log, seconds=0.02), work, AHEAD))
    (death,) = deaths(outcomes)
    assert (death.item, death.attempt, death.end.exit_code) == ((deadly, what), 1, exit_code)
    assert death.note == (f"crashing {deadly}".encode() if what == "crash once" else b"")
    assert death.seconds < 5
    assert {number: end.value for number, end in finals(outcomes).items()} == {number: number for number in range(5)}
    others = [number for number in range(5) if number != deadly]
    assert [number for doing, number in lines(log) if doing == "begin" and number != deadly] == others
    assert begun(log)[deadly] == 2


def test_deaths_are_counted_for_each_item(one: LocalExecutor, log: str) -> None:
    """Deadly items that a worker has at once are told apart; what was with them is not tried more often for it."""
    what = ["crash", "crash", "", "crash", "", ""]
    outcomes = list(one.run(Foreseeing(log), items(*what), RetryPolicy(max_crashes=2, prefetch=3)))
    told = Counter((death.item[0], death.attempt, death.final) for death in deaths(outcomes))
    assert told == {(number, attempt, attempt == 2): 1 for number in (0, 1, 3) for attempt in (1, 2)}
    assert {number for number, end in finals(outcomes).items() if isinstance(end, Done)} == {2, 4, 5}
    assert begun(log) == {0: 2, 1: 2, 2: 1, 3: 2, 4: 1, 5: 1}


def test_a_death_in_the_background_is_blamed_on_what_is_published(one: LocalExecutor, log: str) -> None:
    """When a worker dies that was at no item, the oldest that it has is to blame."""
    outcomes = list(one.run(Foreseeing(log, publish_seconds=0.2), items("", "publish crash once"), AHEAD))
    (death,) = deaths(outcomes)
    assert (death.item[0], death.note) == (1, b"")
    assert {number: end.value for number, end in finals(outcomes).items()} == {0: 0, 1: 1}


def test_what_a_dead_worker_was_publishing_is_done_again(one: LocalExecutor, log: str) -> None:
    """Items that were not answered for when another one killed their worker are done again, and not blamed."""
    work = items("publish", "publish", "crash once", "")
    outcomes = list(one.run(Stages(log, publish_seconds=0.5), work, RetryPolicy(max_crashes=2, prefetch=3)))
    assert [death.item[0] for death in deaths(outcomes)] == [2]
    assert sorted(end.value for end in finals(outcomes).values()) == [0, 1, 2, 3]
    assert begun(log) == {0: 2, 1: 2, 2: 2, 3: 1}


def test_a_worker_over_its_share_is_replaced_when_it_has_answered(log: str) -> None:
    """A worker that holds too much finishes the items it has, gets no others, and gives way to a new one."""
    with LocalExecutor().start(1, worker_bytes=100 * MEGABYTE) as executor:
        (first,) = executor.pids
        outcomes = list(executor.run(Foreseeing(log), items("", "grow", *[""] * 6), AHEAD))
        second = executor.pids[0]
    assert values(outcomes) == list(range(8))
    pids = [outcome.worker.pid for outcome in outcomes]
    assert pids[:2] == [first, first]
    assert 2 <= pids.count(first) <= 4
    assert pids == sorted(pids, key=[first, second].index)
    assert set(begun(log).values()) == {1}


def test_a_run_that_is_left_with_items_in_flight_does_not_speak_in_the_next(log: str) -> None:
    """When a run is left, what its workers still have is dropped with them, and the next run has workers of its own."""
    with LocalExecutor().start(2) as executor:
        before = executor.pids
        for _ in executor.run(Foreseeing(log, seconds=0.05), items(*["publish"] * 20), AHEAD):
            break
        assert sorted(values(executor.run(negate, range(10), AHEAD))) == list(range(-9, 1))
        assert not set(before) & set(executor.pids)
        assert wait_until(lambda: not alive(before))


def test_a_stopped_worker_is_found(one: LocalExecutor, log: str) -> None:
    """A worker that is stopped is given up after as long as it marked; the items that it had with it are done."""
    outcomes = list(one.run(Foreseeing(log), items("", "stop", "", ""), RetryPolicy(max_crashes=1, prefetch=2)))
    (death,) = deaths(outcomes)
    assert (death.item[0], death.end.cause, death.note, death.final) == (1, Cause.STALLED, b"stopped", True)
    assert begun(log) == {0: 1, 1: 1, 2: 1, 3: 1}


@pytest.mark.parametrize("others", [0, 4])
def test_a_future_that_is_never_done_is_found(one: LocalExecutor, log: str, others: int) -> None:
    """A worker that waits too long for a future, be it for lack of items or for room, is given up for that item."""
    function = Foreseeing(log, wait_seconds=1.0)
    what = ["publish hang", *["publish"] * others]
    outcomes = list(one.run(function, items(*what), RetryPolicy(max_crashes=1, prefetch=2)))
    (death,) = deaths(outcomes)
    assert (death.item[0], death.end.cause, death.end.limit) == (0, Cause.STALLED, 1.0)
    assert sorted(end.value for end in finals(outcomes).values() if isinstance(end, Done)) == list(range(1, others + 1))


def test_waiting_for_futures_is_not_silence_while_some_are_done(one: LocalExecutor, log: str) -> None:
    """Each answer is a sign of life: futures may take longer together than one may take."""
    function = Stages(log, publish_seconds=1.0, wait_seconds=1.8)
    outcomes = list(one.run(function, items("publish", "publish later"), AHEAD))
    assert values(outcomes) == [0, 1]


def test_a_worker_that_answers_for_what_it_was_stopped_for_takes_no_other_item_along(
    one: LocalExecutor, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the answer is faster than the kill, the answer counts, and what else the worker had is done by another."""
    outcomes = []
    for outcome in one.run(Foreseeing(log), items("", "wait for word", "", ""), AHEAD):
        outcomes.append(outcome)
        if outcome.item[0] == 0:
            assert wait_until(lambda: ("begin", 1) in lines(log))
            with monkeypatch.context() as patch:
                patch.setattr(one._forkserver, "kill", lambda pid: None)
                one._workers[0].stop(Cause.STALLED, 1.0)
            Path(f"{log}.word").touch()
    assert values(outcomes) == list(range(4))
    first, second, third, fourth = (outcome.worker.pid for outcome in outcomes)
    assert first == second != third == fourth


def test_large_items_and_values_do_not_block_each_other() -> None:
    """Megabytes go both ways at once without either side waiting for the other to read."""
    work = [bytes([number]) * (3 * MEGABYTE) for number in range(12)]
    with LocalExecutor().start(2) as executor:
        outcomes = list(executor.run(echo, work, RetryPolicy(prefetch=3)))
    assert sorted(values(outcomes)) == work


WHAT_MAY_COME = ["", "publish", "fail", "publish fail", "crash", "crash once", "be killed"]


@pytest.mark.parametrize("ahead", range(4))
def test_every_item_comes_to_one_end_whatever_is_killed(log: str, ahead: int) -> None:
    """With workers killed at random, each item ends once, as it would without, and only what crashes is blamed."""
    chance = random.Random(ahead)
    work = items(*chance.choices(WHAT_MAY_COME, k=25))
    terms = RetryPolicy(max_crashes=2, max_kills=1000, prefetch=ahead)
    function = (Stages, Foreseeing)[ahead % 2](log, publish_seconds=0.01)
    outcomes = []
    with LocalExecutor().start(1 + ahead % 3) as executor:
        for outcome in executor.run(function, work, terms):
            outcomes.append(outcome)
            if chance.random() < 0.2:
                with contextlib.suppress(ProcessLookupError):  # it has crashed already
                    os.kill(chance.choice(executor.pids), signal.SIGKILL)
    kinds = {"fail": Failed, "publish fail": Failed, "crash": Died}
    ends = {number: type(end) for number, end in finals(outcomes).items()}
    assert ends == {number: kinds.get(what, Done) for number, what in work}
    crashes = Counter(death.item for death in deaths(outcomes) if death.end.cause is Cause.CRASH)
    assert all(crashes[item] == 2 for item in work if item[1] == "crash")
    assert all(item[1].startswith("crash") for item in crashes)
