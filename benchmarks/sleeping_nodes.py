"""Nodes for many_actors.py: the actors are those of the product, but their workers sleep instead of tokenizing.

They run as Ray actors (`RealNodes`), or in the driver's process with time skipped instead of waited for
(`SimulatedNodes`). Both take the place of `tokenmill.executors.ray.cluster.Cluster`.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.million_units import Pretend
from tokenmill.executors.local import Queue
from tokenmill.executors.outcomes import Done, Worker
from tokenmill.executors.ray import node_actor
from tokenmill.executors.ray.cluster import Call, Cluster, Node, NodeLostError
from tokenmill.executors.ray.node_actor import NodeActor, NodeConfig, NodeReply
from tokenmill.pipeline.unit.commit import Committed, report_existing
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.storage import AlreadyPublishedError, folder_at

# What Ray takes of the driver for a call and its answer: assumed.
CALL_SECONDS = 300e-6

# How long Ray itself takes, in the simulation, to report that a node is lost.
RAY_LOSS_SECONDS = 30.0

# How many times as long units take on a slow node.
SLOW_FACTOR = 5

# How long an item takes that is not a unit: a part of planning, or what nodes do until all have started.
SHORT_SECONDS = 0.1


class WritePart(Pretend):
    """The function of a worker: writes a part of made-up tokens, unless the unit has one."""

    def __call__(self, task: UnitTask) -> Committed:
        """Write the part of a unit, and report it."""
        try:
            return super().__call__(task)
        except AlreadyPublishedError:
            return report_existing(folder_at(self.directory), task.unit, self.engine)


def seconds_of(item: object, unit_seconds: float) -> float:
    """How long an item takes: units differ by a fifth."""
    if not isinstance(item, UnitTask):
        return SHORT_SECONDS
    return unit_seconds * random.Random(item.unit).uniform(0.8, 1.2)


class SleepingExecutor:
    """Stands for the local executor of an actor. At `ends` the node is lost."""

    waiting = 0  # no worker waits for a bucket

    def __init__(self, unit_seconds: float, ends: float, _preload: object) -> None:
        self._unit_seconds, self._ends = unit_seconds, ends
        self._count = itertools.count()

    def start(self, workers: int, *_: object) -> None:
        """Have so many workers."""
        self.workers, self.pids = workers, [0] * workers

    def begin(self, function: Callable[[Any], Any], items: Iterator[Any], _policy: object) -> Queue:
        """Begin a run; an earlier run is forgotten."""
        self._function = function
        self._asleep: list[tuple[float, int, float, Any]] = []
        return Queue(items)

    def hand_out(self, queue: Queue) -> bool:
        """Let each idle worker sleep for an item; return whether any worker sleeps."""
        while len(self._asleep) < self.workers and (attempt := queue.next()) is not None:
            seconds = seconds_of(attempt.item, self._unit_seconds)
            heapq.heappush(self._asleep, (time.monotonic() + seconds, next(self._count), seconds, attempt.item))
        return bool(self._asleep)

    def collect(self, _queue: Queue, seconds: float) -> Iterator[Done[Any, Any]]:
        """Wait for the first worker that awakes; yield the outcomes of all that are awake."""
        time.sleep(max(0.0, min(self._asleep[0][0] - time.monotonic(), seconds)))
        if time.monotonic() > self._ends:
            raise NodeLostError("its node has died", by_itself=False)
        while self._asleep and self._asleep[0][0] <= time.monotonic():
            _, _, taken, item = heapq.heappop(self._asleep)
            yield Done(item, self._function(item), Worker(os.getpid(), 0), taken)


def make_nodes(options: argparse.Namespace) -> list[Node]:
    """The nodes that the driver is told of."""
    return [Node(str(number), f"node-{number}", options.workers, 64 << 30) for number in range(options.nodes)]


class Host:
    """A Ray actor that has the actors of some nodes, each called in a thread of its own."""

    def __init__(self, unit_seconds: float) -> None:
        self._nodes: dict[str, NodeActor] = {}
        node_actor.LocalExecutor = partial(SleepingExecutor, unit_seconds, math.inf)  # type: ignore[attr-defined,assignment]

    def pid(self) -> int:
        """The process."""
        return os.getpid()

    def call(self, node: str, config: NodeConfig | None, method: str, *args: Any) -> NodeReply:
        """Call the actor of a node, which is made at its first call."""
        if config is not None and node not in self._nodes:
            self._nodes[node] = NodeActor(config)
        reply: NodeReply = getattr(self._nodes[node], method)(*args)
        return reply


class RealNodes(Cluster):
    """Nodes whose actors are in processes of Ray on this machine."""

    options: argparse.Namespace

    def __init__(self, _address: str | None) -> None:
        super().__init__(None)
        self.calls, self._hosts, self._nodes = 0, dict[int, Any](), make_nodes(self.options)
        threads = -(-self.options.nodes // self.options.processes) + 1
        self._host_class = self._ray.remote(num_cpus=0, max_concurrency=threads)(Host)

    def nodes(self) -> list[Node]:
        """The pretended nodes, in the time that Ray takes to list the real one."""
        super().nodes()
        return self._nodes

    def start_actor(self, node: Node, config: NodeConfig, memory_bytes: int) -> Any:  # noqa: ARG002
        """The actor of a node: its process, which is started if need be, its name and its configuration."""
        number = int(node.id) % self.options.processes
        if number not in self._hosts:
            self._hosts[number] = self._host_class.remote(self.options.seconds)
        return self._hosts[number], node.id, config

    def kill_actor(self, actor: Any) -> None:
        """Leave the process: it ends with Ray."""

    def call(self, actor: Any, method: str, *args: Any) -> Call:
        """Call an actor through its process."""
        self.calls += 1
        host, node, config = actor
        return super().call(host, "call", node, config if method == "begin" else None, method, *args)

    def signal(self, host: int, number: signal.Signals) -> None:
        """Send a signal to a process. New actors of its nodes get a new one."""
        os.kill(self._ray.get(self._hosts.pop(host).pid.remote()), number)

    def busy_seconds(self) -> float:
        """CPU time of the driver."""
        return time.process_time()


class SkippingClock:
    """A clock that goes on while this process computes, and leaps where it would sleep."""

    def __init__(self) -> None:
        self._real, self.skipped = time.monotonic, 0.0

    def monotonic(self) -> float:
        """The time."""
        return self._real() + self.skipped

    def sleep(self, seconds: float) -> None:
        """Leap."""
        self.skipped += seconds


class SimulatedNodes:
    """Nodes in this process. A call runs when it is made, and is answered at the time at which it would end."""

    options: argparse.Namespace
    clock: SkippingClock

    def __init__(self, _address: str | None) -> None:
        rng = random.Random(7)
        self.calls, self._waited, self._began, self._nodes = 0, 0.0, time.monotonic(), make_nodes(self.options)
        self._due: list[tuple[float, int, Call]] = []
        rate = -math.log1p(-self.options.deaths) / 3600
        self.ends = [self._began + rng.expovariate(rate) if rate else math.inf for _ in self._nodes]
        self._slow = set(rng.sample(range(self.options.nodes), round(self.options.slow * self.options.nodes)))

    def nodes(self) -> list[Node]:
        """The nodes that are not lost."""
        return [node for node, end in zip(self._nodes, self.ends, strict=True) if time.monotonic() < end]

    def start_actor(self, node: Node, config: NodeConfig, memory_bytes: int) -> NodeActor:  # noqa: ARG002
        """The actor of a node."""
        number = int(node.id)
        seconds = self.options.seconds * (SLOW_FACTOR if number in self._slow else 1)
        node_actor.LocalExecutor = partial(SleepingExecutor, seconds, self.ends[number])  # type: ignore[attr-defined,assignment]
        node_actor.CHECK_SECONDS = node_actor.REPLY_SECONDS  # type: ignore[attr-defined]
        return NodeActor(config)

    def call(self, actor: NodeActor, method: str, *args: Any) -> Call:
        """Let the actor answer, and turn the clock back."""
        self.calls += 1
        self.clock.sleep(CALL_SECONDS)
        now, call, loss = time.monotonic(), Call(), 0.0
        try:
            call.set_result(getattr(actor, method)(*args))
        except NodeLostError as error:
            call.set_exception(error)
            loss = RAY_LOSS_SECONDS
        heapq.heappush(self._due, (time.monotonic() + loss, self.calls, call))
        self.clock.skipped -= time.monotonic() - now
        return call

    def answered(self, seconds: float) -> Iterator[Call]:
        """The calls whose answers are there; wait at most `seconds` for the first."""
        wait = min(self._due[0][0] - time.monotonic(), seconds) if self._due else seconds
        if wait > 0:
            self.clock.sleep(wait)
            self._waited += wait
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            yield heapq.heappop(self._due)[2]

    def answer(self, call: Call) -> NodeReply:
        """The answer."""
        return call.result()

    def kill_actor(self, actor: NodeActor) -> None:
        """There is nothing to kill."""

    def leave(self) -> None:
        """There is nothing to leave."""

    def busy_seconds(self) -> float:
        """The time in which the driver did not wait."""
        return time.monotonic() - self._began - self._waited
