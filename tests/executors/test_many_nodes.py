"""The executor for Ray with hundreds of nodes, which are simulated: what it asks of them, and how often."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tokenmill[ray]'")

from tokenmill.executors.outcomes import Done, Worker
from tokenmill.executors.ray import executor as executor_module
from tokenmill.executors.ray.cluster import Call, Node
from tokenmill.executors.ray.executor import MAX_CALLS_PER_SECOND, RayExecutor
from tokenmill.executors.ray.node_actor import NodeReply

NODES, PROCESSORS = 512, 16

pytestmark = pytest.mark.fast


class Nodes:
    """A cluster whose actors do each item at once, and what was asked of it."""

    def __init__(self, _address: str | None) -> None:
        self.started: list[tuple[str, int]] = []
        self.gather_seconds: list[float] = []
        self.calls: list[Call] = []

    def nodes(self) -> list[Node]:
        """All nodes."""
        return [Node(f"id{number}", f"name{number}", PROCESSORS, 64 << 30) for number in range(NODES)]

    def start_actor(self, node: Node, config: Any, memory_bytes: int) -> int:
        """The actor, which is the number of its workers."""
        self.started.append((node.id, config.workers))
        return int(config.workers)

    def call(self, actor: int, method: str, *args: Any) -> Call:
        """Answer at once."""
        call = Call()
        outcomes: list[Any] = []
        if method == "exchange":
            items, gather_seconds = args
            self.gather_seconds.append(gather_seconds)
            outcomes = [Done(number, item, Worker(1, 0), 1.0) for number, item in items]
        call.set_result(NodeReply(outcomes, actor))
        self.calls.append(call)
        return call

    def answered(self, _seconds: float) -> Iterator[Call]:
        """All calls."""
        calls, self.calls = self.calls, []
        yield from calls

    def answer(self, call: Call) -> NodeReply:
        """The answer."""
        return call.result()

    def kill_actor(self, actor: int) -> None:
        """Nothing ends."""

    def leave(self) -> None:
        """Nothing ends."""


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> Iterator[RayExecutor]:
    """An executor on many nodes, with all their processors."""
    monkeypatch.setattr(executor_module, "Cluster", Nodes)
    with RayExecutor() as running:
        yield running.start(NODES * PROCESSORS)


def test_every_node_gets_its_actors_once(executor: RayExecutor) -> None:
    """Each has two of eight workers, however often nodes are listed; all items are done."""
    items = range(50_000)
    assert sorted(outcome.item for outcome in executor.run(str, items)) == list(items)
    cluster: Any = executor._cluster
    assert sorted(cluster.started) == sorted((f"id{number}", 8) for number in range(NODES) for _ in range(2))
    assert (executor.workers, len(executor.nodes)) == (NODES * PROCESSORS, NODES)


def test_a_node_beyond_what_was_asked_for_stays_idle(executor: RayExecutor) -> None:
    """The last actor has what is left of the workers."""
    executor._handles.clear()
    executor._nodes_listed = -1e9
    cluster: Any = executor._cluster
    cluster.started.clear()
    executor.start(20)
    assert cluster.started == [("id0", 8), ("id0", 8), ("id1", 4)]


def test_more_actors_are_called_less_often(executor: RayExecutor) -> None:
    """All actors together are called about a thousand times a second, so each gathers outcomes for longer."""
    assert len(list(executor.run(str, range(5000)))) == 5000
    cluster: Any = executor._cluster
    assert set(cluster.gather_seconds) == {2 * NODES / MAX_CALLS_PER_SECOND}


def test_an_answer_costs_the_same_with_many_actors(executor: RayExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The actors are not gone through for each answer: their calls are looked at four times a second at most."""
    looks = 0
    lose_silent = executor._lose_silent

    def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return lose_silent(*args)

    monkeypatch.setattr(executor, "_lose_silent", counted)
    started = time.monotonic()
    assert len(list(executor.run(str, range(20_000)))) == 20_000
    assert looks <= 2 + (time.monotonic() - started) / executor_module.WAIT_SECONDS
