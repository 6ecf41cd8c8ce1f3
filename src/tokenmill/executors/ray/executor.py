"""Workers on the nodes of a Ray cluster, supervised by one actor for each few processors (see node_actor).

Ray starts the actors and carries the calls. This module decides which actor gets which item, and which items are
assigned again. If an actor does not answer for some seconds, its items are assigned to others, whether Ray knows that
its node is lost or not. Nodes that join get actors, and a dead actor is replaced.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self

from tokenmill.errors import RunFailed
from tokenmill.executors.forkserver_main import Preload
from tokenmill.executors.outcomes import (
    DEFAULT_POLICY,
    OWN_BYTES,
    Capacity,
    Cause,
    Died,
    ExitReport,
    Item,
    Outcome,
    RetryPolicy,
    Value,
    Worker,
    never,
)
from tokenmill.executors.ray.cluster import Call, Cluster, Node, NodeLostError
from tokenmill.executors.ray.dispatch import Dispatch
from tokenmill.executors.ray.node_actor import NodeConfig, NodeOrder, NodeReply, own_version
from tokenmill.humanize import count, size
from tokenmill.system import machine, storage_settings

# Maximum of processors for each actor: others may need the rest of a large node, and a death costs less.
PROCESSORS_PER_ACTOR = 8

# Seconds between two searches for new nodes.
NODES_SECONDS = 2.0

# Seconds that one wait for answers takes at most, and between two looks at all actors: there may be thousands.
WAIT_SECONDS = 0.25

# Seconds that an actor waits for further outcomes after the first: short items share a reply.
GATHER_SECONDS = 0.02

# Maximum of calls a second to all actors: with more actors, each waits longer for further outcomes.
MAX_CALLS_PER_SECOND = 1000

# Maximum of that time. It has to be well below SILENT_SECONDS.
MAX_GATHER_SECONDS = 3.0

# Seconds without an answer after which an actor's items are assigned to others.
SILENT_SECONDS = 10.0

# Maximum of what counts between two waits: if this process was suspended, that is no fault of an actor.
MAX_WAIT_SECONDS = 1.0

# Seconds that an actor may take to start before a smaller one is tried.
START_SECONDS = 120.0

# Actors that may fail to start on a node before the node is given up.
MAX_START_FAILURES = 3

# Failures in a row, at items that another node can do, after which a node is given up.
MAX_FAULTS = 3

# Seconds without any actor after which a message says why.
PATIENCE_SECONDS = 30.0


@dataclass(eq=False)
class _ActorHandle:
    """An actor: the call that it has not answered, and when it was called, by the executor's clock.

    It may have fewer workers than processors, if memory ran out. `worker_bytes` is what it has reserved for each.
    """

    name: str
    node: Node
    actor: Any
    processors: int
    workers: int
    worker_bytes: int
    waiting: int = 0
    call: Call | None = None
    called: float = 0.0
    run_number: int = 0
    is_silent: bool = False
    is_removed: bool = False
    has_answered: bool = False
    created: float = field(default_factory=time.monotonic)

    @property
    def is_late(self) -> bool:
        """Whether it has not started, so that a smaller one might: others may use some of its node."""
        return not self.has_answered and self.processors > 1 and time.monotonic() - self.created > START_SECONDS

    @property
    def is_up(self) -> bool:
        """Whether it has started and answers."""
        return self.has_answered and not self.is_silent


@dataclass(frozen=True, slots=True)
class _Demand:
    """The workers and the memory that `start` was called with."""

    workers: int = 0
    worker_bytes: int | None = None
    memory_bytes: int | None = None
    max_workers: int = 0

    @property
    def bytes_per_worker(self) -> int:
        """Memory of the node that each worker needs; 0 if not known."""
        if self.memory_bytes is not None:
            return self.memory_bytes // self.workers
        return self.worker_bytes or 0


@dataclass
class _StartFailures:
    """Actors that died before their first answer, by node; the node and the reason of the last one."""

    by_node: Counter[str] = field(default_factory=Counter)
    reason: str = ""
    node: str = ""


class RayExecutor:
    """Runs functions on a Ray cluster: the one at an address, else the one of this machine.

    `say` shows a message to the user. An item may be done twice, where a node is cut off or slow: functions have to
    allow that.
    """

    def __init__(
        self, address: str | None = None, preload: Preload = (), say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._preload = preload
        self._say = say
        self._cluster = Cluster(address)
        self._handles: list[_ActorHandle] = []
        self._calls: dict[Call, _ActorHandle] = {}
        # Seconds of runs, without those in which this process was suspended or did something else.
        self._clock = 0.0
        self._demand = _Demand()
        self._start_failures = _StartFailures()
        self._excluded_nodes: set[str] = set()
        self._actor_numbers = itertools.count(1)
        self._item_numbers = itertools.count(1)
        self._runs = 0
        self._nodes_listed = -math.inf
        self._idle_since = time.monotonic()

    @property
    def room(self) -> Capacity:
        """The capacity of the nodes that are alive now."""
        nodes = self._cluster.nodes()
        if not nodes:
            return Capacity(1, 1, 0)
        return Capacity(
            processors=sum(node.processors for node in nodes),
            cores_per_machine=max(node.processors for node in nodes),
            bytes_per_core=int(
                min(machine.DEFAULT_MEMORY_FRACTION * node.memory_bytes / node.processors for node in nodes)
            ),
            machines=len(nodes),
        )

    @property
    def workers(self) -> int:
        """Number of workers on the nodes that answer."""
        return sum(handle.workers for handle in self._handles if handle.is_up)

    @property
    def waiting(self) -> int:
        """Number of workers whose requests a server has just refused because there are too many."""
        return sum(handle.waiting for handle in self._handles if handle.is_up)

    @property
    def nodes(self) -> list[str]:
        """The nodes that answer."""
        return sorted({handle.node.name for handle in self._handles if handle.is_up})

    def start(
        self,
        workers: int,
        worker_bytes: int | None = None,
        memory_bytes: int | None = None,
        most_workers: int | None = None,
    ) -> Self:
        """Start workers as far as there are nodes for them (see Pool.start); each gets an equal part of the memory.

        Actors that have reserved as much memory as their workers need now go on.
        """
        self._demand = _Demand(workers, worker_bytes, memory_bytes, most_workers or workers)
        for handle in [handle for handle in self._handles if handle.worker_bytes < self._demand.bytes_per_worker]:
            self._remove(handle)
        self._start_actors()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for handle in list(self._handles):
            self._remove(handle)
        self._cluster.leave()

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], policy: RetryPolicy = DEFAULT_POLICY
    ) -> Iterator[Outcome[Item, Value]]:
        """Yield outcomes in order of completion; an item whose worker dies, or whose node is lost, is retried."""
        self._runs += 1
        dispatch = Dispatch(items, policy, self._item_numbers)
        order = NodeOrder(function, replace(policy, should_stop=never), storage_settings.exported())
        looked, waited = -math.inf, time.monotonic()
        while not dispatch.is_done() and not policy.should_stop():
            if time.monotonic() - looked > WAIT_SECONDS:
                looked = time.monotonic()
                self._start_actors()
                yield from self._lose_silent(dispatch)
                for handle in self._handles:
                    self._call(handle, dispatch, order, policy)
            for call in self._cluster.answered(WAIT_SECONDS):
                if call in self._calls:
                    handle = self._calls.pop(call)
                    handle.call = None
                    yield from self._receive(handle, call, dispatch)
                    self._call(handle, dispatch, order, policy)
            self._clock += min(time.monotonic() - waited, MAX_WAIT_SECONDS)
            waited = time.monotonic()

    def _lose_silent(self, dispatch: Dispatch) -> Iterator[Outcome[Any, Any]]:
        """Assign the items of actors that do not answer to others."""
        for handle in self._handles:
            if handle.is_up and handle.call is not None and self._clock - handle.called > SILENT_SECONDS:
                handle.is_silent = True
                yield from self._lose(handle, dispatch, f"nothing was heard of its node for {SILENT_SECONDS:.0f} s")

    def _start_actors(self) -> None:
        """Start actors on nodes that have room for more; replace those that start too slowly by smaller ones."""
        if time.monotonic() - self._nodes_listed < NODES_SECONDS:
            return
        self._nodes_listed = time.monotonic()
        alive = [node for node in self._cluster.nodes() if node.id not in self._excluded_nodes]
        nodes = [node for node in alive if self._start_failures.by_node[node.id] < MAX_START_FAILURES]
        for handle in [handle for handle in self._handles if handle.is_late]:
            self._remove(handle)
            self._start_actor(handle.node, handle.processors // 2)
        self._start_missing(nodes)
        if any(handle.has_answered for handle in self._handles):
            self._idle_since = time.monotonic()
        elif alive and not nodes:
            raise RunFailed(
                "no node of the Ray cluster can work",
                f"node         {self._start_failures.node}",
                f"reason       {self._start_failures.reason}",
                "Every node needs this version of tokenmill: pip install 'tokenmill[ray]'",
            )
        elif time.monotonic() - self._idle_since > PATIENCE_SECONDS:
            self._idle_since = time.monotonic()
            needed = f"{count(1, 'processor')} and {size(self._demand.bytes_per_worker + OWN_BYTES)} of memory"
            self._say(f"waiting for a node of the cluster that has {needed} to spare")

    def _start_missing(self, nodes: Iterable[Node]) -> None:
        """Start further actors on the nodes that have room for them."""
        on_node = Counter[str]()
        for handle in self._handles:
            on_node[handle.node.id] += handle.processors
        left = self._demand.max_workers - sum(handle.processors for handle in self._handles if not handle.is_silent)
        for node in nodes:
            room = min(self._fitting(node) - on_node[node.id], left)
            for first in range(0, room, PROCESSORS_PER_ACTOR):
                self._start_actor(node, min(room - first, PROCESSORS_PER_ACTOR))
            left -= max(room, 0)

    def _fitting(self, node: Node) -> int:
        """The number of workers that a node has processors and memory for."""
        if not self._demand.bytes_per_worker:
            return node.processors
        actors = math.ceil(node.processors / PROCESSORS_PER_ACTOR)
        return min(node.processors, int(node.memory_bytes - actors * OWN_BYTES) // self._demand.bytes_per_worker)

    def _start_actor(self, node: Node, workers: int) -> None:
        each = self._demand.bytes_per_worker
        config = NodeConfig(own_version(), self._preload, workers, storage_settings.exported())
        actor = self._cluster.start_actor(node, config, workers * each + OWN_BYTES)
        name = f"{node.id}/{next(self._actor_numbers)}"
        self._handles.append(_ActorHandle(name, node, actor, workers, workers, each))

    def _call(self, handle: _ActorHandle, dispatch: Dispatch, order: NodeOrder, policy: RetryPolicy) -> None:
        """Send an actor the function or further items, if it has answered the last call."""
        if handle.call is not None or handle.is_removed:
            return
        if handle.run_number != self._runs:
            demand = self._demand
            memory = None if demand.memory_bytes is None else handle.processors * demand.bytes_per_worker
            own = replace(order, worker_bytes=demand.worker_bytes, memory_bytes=memory)
            handle.run_number = self._runs
            self._send(handle, "begin", own)
            return
        workers = min(handle.workers, policy.workers or handle.workers)
        gather_seconds = min(max(GATHER_SECONDS, len(self._handles) / MAX_CALLS_PER_SECOND), MAX_GATHER_SECONDS)
        window = workers * (1 + policy.prefetch + dispatch.reserve(gather_seconds))
        items = dispatch.give(handle.name, window - dispatch.held(handle.name))
        if items or dispatch.held(handle.name):
            self._send(handle, "exchange", items, gather_seconds)

    def _send(self, handle: _ActorHandle, method: str, *args: Any) -> None:
        handle.call, handle.called = self._cluster.call(handle.actor, method, *args), self._clock
        self._calls[handle.call] = handle

    def _receive(self, handle: _ActorHandle, call: Call, dispatch: Dispatch) -> Iterator[Outcome[Any, Any]]:
        try:
            reply = self._cluster.answer(call)
        except NodeLostError as lost:
            if lost.by_itself and not handle.has_answered:
                self._start_failures.by_node[handle.node.id] += 1
                self._start_failures.node, self._start_failures.reason = handle.node.name, str(lost)
            self._remove(handle)
            yield from self._lose(handle, dispatch, str(lost))
            return
        handle.has_answered, handle.is_silent = True, False
        handle.workers, handle.waiting = reply.workers, reply.waiting
        yield from self._with_workers(_accepted(handle, reply, dispatch))
        for node in [node for node, faults in dispatch.faults.items() if faults >= MAX_FAULTS]:
            yield from self._exclude(node, dispatch)

    def _with_workers(self, outcomes: Iterable[Outcome[Any, Any]]) -> Iterator[Outcome[Any, Any]]:
        """The outcomes; each death with the number of workers on all nodes."""
        for outcome in outcomes:
            yield replace(outcome, workers=self.workers) if isinstance(outcome, Died) else outcome

    def _lose(self, handle: _ActorHandle, dispatch: Dispatch, reason: str) -> Iterator[Outcome[Any, Any]]:
        """Assign the items of a lost actor to others."""
        worker = Worker(0, 0, handle.node.name)  # which one of them is not known
        yield from self._with_workers(dispatch.lose(handle.name, ExitReport(0, Cause.NODE_LOST, detail=reason), worker))

    def _exclude(self, node: str, dispatch: Dispatch) -> Iterator[Outcome[Any, Any]]:
        """Stop using a node that fails at items which others can do."""
        del dispatch.faults[node]
        self._excluded_nodes.add(node)
        handles = [handle for handle in self._handles if handle.node.id == node]
        for name in {handle.node.name for handle in handles}:
            self._say(f"note: node {name} is no longer used: it fails on items that other nodes can do")
        for handle in handles:
            self._remove(handle)
            yield from self._lose(handle, dispatch, "its node is not used any more")

    def _remove(self, handle: _ActorHandle) -> None:
        if not handle.is_removed:
            handle.is_removed = True
            self._handles.remove(handle)
            if handle.call is not None:
                del self._calls[handle.call]
            self._cluster.kill_actor(handle.actor)


def _accepted(handle: _ActorHandle, reply: NodeReply, dispatch: Dispatch) -> Iterator[Outcome[Any, Any]]:
    """The outcomes that count, with the name of the node."""
    for outcome in reply.outcomes:
        worker = replace(outcome.worker, node=handle.node.name)
        accepted = dispatch.answer(handle.name, outcome.item, replace(outcome, worker=worker))
        if accepted is not None:
            yield accepted
