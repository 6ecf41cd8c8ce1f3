"""Which actor has which items: whatever actors do, each item has one outcome that counts."""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tokenmill.errors import StorageError, TokenizerError
from tokenmill.executors.outcomes import Cause, Died, Done, ExitReport, Failed, Outcome, RetryPolicy, Worker
from tokenmill.executors.ray import dispatch as dispatching
from tokenmill.executors.ray.dispatch import Dispatch

LOST = ExitReport(0, Cause.NODE_LOST, detail="its node has gone")
MANY = RetryPolicy(max_kills=10)
NOBODY = Worker(0, 0, "node")


def done(number: int, seconds: float = 1.0) -> Done[int, int]:
    """The answer of an actor that has done an item."""
    return Done(number, number * 10, Worker(7, 0), seconds)


def failed(number: int) -> Failed[int]:
    """The answer of an actor that could not do it."""
    return Failed.of(number, StorageError("no network"), Worker(7, 0))


def new(items: Any, terms: RetryPolicy = MANY) -> Dispatch:
    """A dispatch of some items."""
    return Dispatch(items, terms, itertools.count(1))


def test_items_are_taken_as_actors_have_room() -> None:
    """What is not given out yet is not taken from where it comes from, but for one that tells whether there is any."""
    taken: list[int] = []

    def items() -> Iterator[int]:
        for item in range(100):
            taken.append(item)
            yield item

    dispatch = new(items())
    assert not dispatch.is_done()
    assert dispatch.give("a", 3) == [(1, 0), (2, 1), (3, 2)]
    assert taken == [0, 1, 2]
    assert dispatch.held("a") == 3
    assert dispatch.give("a", 0) == []
    assert dispatch.give("a", -1) == []


def test_nothing_to_do_is_done() -> None:
    """A run of no items ends without any actor."""
    assert new([]).is_done()


def test_what_a_lost_actor_had_goes_to_others() -> None:
    """Each item of a lost actor is told of once, and given out again before new ones."""
    dispatch = new("abcd")
    dispatch.give("one", 2)
    deaths = dispatch.lose("one", LOST, NOBODY)
    assert [(death.item, death.final, death.attempt) for death in deaths] == [("a", False, 1), ("b", False, 1)]
    assert [item for _, item in dispatch.give("two", 3)] == ["a", "b", "c"]
    assert dispatch.held("one") == 0


def test_a_late_answer_of_a_lost_actor_counts_if_it_is_the_first() -> None:
    """An actor that was only cut off has not worked for nothing; what it did is not given out any more."""
    dispatch = new("a")
    [(number, _)] = dispatch.give("one", 1)
    dispatch.lose("one", LOST, NOBODY)
    outcome = dispatch.answer("one", number, done(number))
    assert isinstance(outcome, Done)
    assert outcome.item == "a"
    assert dispatch.give("two", 1) == []
    assert dispatch.is_done()


def test_an_actor_that_was_cut_off_fails_for_that_reason_alone() -> None:
    """Its failures do not count for what others have been given meanwhile."""
    dispatch = new("a")
    [(number, _)] = dispatch.give("one", 1)
    dispatch.lose("one", LOST, NOBODY)
    assert dispatch.answer("one", number, failed(number)) is None
    assert dispatch.give("two", 1) == [(number, "a")]
    assert dispatch.answer("one", number, failed(number)) is None
    assert isinstance(dispatch.answer("two", number, failed(number)), Failed)
    assert dispatch.is_done()


def test_what_one_node_fails_at_is_tried_on_others_and_not_for_ever() -> None:
    """Two other nodes try it; then the failure counts. Actors of one node are one node."""
    dispatch = new("ab")
    [(first, _)] = dispatch.give("one/1", 1)
    [(other, _)] = dispatch.give("one/2", 1)
    assert isinstance(dispatch.answer("one/1", first, failed(first)), Failed)  # there is no other node
    for node in ("two/1", "three/1"):
        dispatch.give(node, 1)
    assert isinstance(dispatch.answer("one/2", other, failed(other)), Died)
    assert dispatch.give("one/1", 1) == []
    for node in ("two/1", "three/1"):
        assert dispatch.give(node, 1) == [(other, "b")]
        last = dispatch.answer(node, other, failed(other))
        assert isinstance(last, Died if node == "two/1" else Failed)
    assert dispatch.is_done()
    assert not dispatch.faults


def test_a_node_is_blamed_for_what_others_can_do() -> None:
    """Its faults are counted until it does something itself."""
    dispatch = new("abcd")
    dispatch.give("good/1", 1)
    for expected in (1, 2, 3):
        [(number, _)] = dispatch.give("bad/1", 1)
        assert isinstance(dispatch.answer("bad/1", number, failed(number)), Died)
        assert dispatch.give("good/1", 1) == [(number, "abcd"[number - 1])]
        dispatch.answer("good/1", number, done(number))
        assert dispatch.faults["bad"] == expected
    dispatch.answer("bad/1", 1, done(1))
    assert dispatch.faults["bad"] == 0
    assert dispatch.is_done()


def test_an_item_that_is_lost_too_often_is_given_up() -> None:
    """After as many losses as the terms allow, there is no further attempt."""
    dispatch = new("a", RetryPolicy(max_kills=2))
    for final in (False, True):
        dispatch.give("one", 1)
        [death] = dispatch.lose("one", LOST, NOBODY)
        assert death.final is final
    assert dispatch.is_done()


def test_late_items_are_copied_to_idle_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle actor gets what another one has had for too long, once; the first answer counts."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    dispatch = new("abc")
    numbers = [number for number, _ in dispatch.give("slow", 2)]
    [(third, _)] = dispatch.give("quick", 1)
    dispatch.answer("quick", third, done(third, seconds=4.0))
    now += 11.0
    assert dispatch.give("quick", 4) == []  # three times four seconds are not over
    now += 2.0
    assert [number for number, _ in dispatch.give("quick", 4)] == numbers
    now += 2.0
    assert dispatch.give("third", 4) == []  # two actors have them already
    assert dispatch.answer("slow", numbers[0], failed(numbers[0])) is None
    assert isinstance(dispatch.answer("quick", numbers[0], done(numbers[0])), Done)
    assert isinstance(dispatch.answer("slow", numbers[1], done(numbers[1])), Done)
    assert dispatch.answer("quick", numbers[1], done(numbers[1])) is None
    assert dispatch.is_done()


def test_idle_actors_share_late_items(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every idle actor gets copies at once: with a thousand actors, one a second would take a quarter of an hour."""
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    dispatch = new(range(6))
    numbers = [number for number, _ in dispatch.give("slow", 6)]
    now += 100.0
    assert dispatch.give("silent", 0) == []
    given = [[number for number, _ in dispatch.give(actor, 4)] for actor in ("one", "two", "three")]
    assert given == [numbers[:2], numbers[2:4], numbers[4:]]
    assert dispatch.give("four", 4) == []


def test_quick_items_are_given_in_larger_lots() -> None:
    """A worker has some hundredths of a second of work before it, but no more than a few dozen items."""
    dispatch = new(range(3))
    assert dispatch.reserve(0.0) == 1
    for number, _ in dispatch.give("a", 2):
        dispatch.answer("a", number, done(number, seconds=0.01))
    assert dispatch.reserve(0.0) == 6
    assert dispatch.reserve(0.1) == 16  # for the time that outcomes wait for others
    dispatch = new(range(3))
    for number, _ in dispatch.give("a", 2):
        dispatch.answer("a", number, done(number, seconds=0.0))
    assert dispatch.reserve(0.0) == dispatching.MAX_RESERVE


def test_each_item_has_one_outcome_whatever_actors_do() -> None:
    """Actors answer in any order, are lost, come back late and answer twice: one outcome of each item is told."""
    for seed in range(1000):
        chance = random.Random(seed)
        items = chance.randint(0, 12)
        assert _told(new(range(items), RetryPolicy(max_kills=1000)), chance) == Counter(range(items)), seed


def _told(dispatch: Dispatch, chance: random.Random) -> Counter[int]:
    """How often the end of each item was told, when actors did what they did by chance."""
    told: Counter[int] = Counter()
    known: list[tuple[str, int]] = []
    for _ in range(chance.randint(0, 500)):
        if dispatch.is_done():
            break
        actor = chance.choice("abc")
        step = chance.choice(["give", "give", "answer", "answer", "answer", "fail", "die", "lose"])
        if step == "give":
            known += [(actor, number) for number, _ in dispatch.give(actor, chance.randint(0, 3))]
        elif step == "lose":
            assert not any(death.final for death in dispatch.lose(actor, LOST, NOBODY))
        elif known:
            who, number = chance.choice(known)
            end = replace(LOST, cause=Cause.CRASH)
            dead = Died(number, end, NOBODY, 1.0, 1, final=step == "die", output_tail="", note=b"", workers=1)
            answers: dict[str, Outcome[Any, Any]] = {"answer": done(number), "fail": failed(number)}
            outcome = dispatch.answer(who, number, answers.get(step, dead))
            if outcome is not None and (not isinstance(outcome, Died) or outcome.final):  # else it is tried again
                told[outcome.item] += 1
    while not dispatch.is_done():
        for number, item in dispatch.give("last", 2):
            outcome = dispatch.answer("last", number, done(number))
            assert outcome is not None
            told[item] += 1
        for actor in "abc":
            dispatch.lose(actor, LOST, NOBODY)
    return told


def test_a_tokenizer_that_cannot_be_used_is_not_tried_elsewhere() -> None:
    """A TokenizerError of one node is the outcome at once: another node with other libraries must not hide it."""
    dispatch = new(["a", "b"], RetryPolicy())
    dispatch.give("one/1", 1)
    dispatch.give("two/1", 1)
    outcome = dispatch.answer("one/1", 1, Failed.of(1, TokenizerError("another tiktoken"), Worker(7, 0)))
    assert isinstance(outcome, Failed)
    assert (outcome.item, outcome.message) == ("a", "another tiktoken")
    assert not dispatch.faults
    assert dispatch.give("two/1", 5) == []
