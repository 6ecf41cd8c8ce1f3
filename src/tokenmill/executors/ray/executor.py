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
from tokenmill.executors.ray.cluster import Cluster, Node, NodeLostError
from tokenmill.executors.ray.dispatch import Dispatch
from tokenmill.executors.ray.node_actor import NodeConfig, NodeOrder, NodeReply, own_version
from tokenmill.humanize import count, size
from tokenmill.system import machine, storage_settings

# Maximum of processors for each actor: others may need the rest of a large node, and a death costs less.
PROCESSORS_PER_ACTOR = 8

# Seconds between two searches for new nodes.
NODES_SECONDS = 2.0

# Seconds that one wait for answers takes at most.
WAIT_SECONDS = 0.25

# Seconds without an answer after which an actor's items are assigned to others.
SILENT_SECONDS = 10.0

# Maximum of what counts for one wait: if this process was suspended, that is no fault of an actor.
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
    """An actor: the call that it has not answered, and for how long.

    It may have fewer workers than processors, if memory ran out. `worker_bytes` is what it has reserved for each.
    """

    name: str
    node: Node
    actor: Any
    processors: int
    workers: int
    worker_bytes: int
    waiting: int = 0
    call: Any = None
    run_number: int = 0
    silent_seconds: float = 0.0
    is_silent: bool = False
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
        while not dispatch.is_done() and not policy.should_stop():
            self._start_actors()
            for handle in self._handles:
                self._call(handle, dispatch, order, policy)
            for handle in self._answered():
                yield from self._receive(handle, dispatch)
            for handle in self._handles:
                if handle.is_up and handle.silent_seconds > SILENT_SECONDS:
                    handle.is_silent = True
                    reason = f"nothing was heard of its node for {SILENT_SECONDS:.0f} s"
                    yield from self._lose(handle, dispatch, reason)

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
        for node in nodes:
            for workers in self._missing(node):
                self._start_actor(node, workers)
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

    def _missing(self, node: Node) -> Iterator[int]:
        """The number of workers for each further actor that the node has room for."""
        on_node = sum(handle.processors for handle in self._handles if handle.node.id == node.id)
        total = sum(handle.processors for handle in self._handles if not handle.is_silent)
        fitting = node.processors
        if self._demand.bytes_per_worker:
            actors = math.ceil(node.processors / PROCESSORS_PER_ACTOR)
            fitting = min(fitting, int(node.memory_bytes - actors * OWN_BYTES) // self._demand.bytes_per_worker)
        left = min(fitting - on_node, self._demand.max_workers - total)
        while left > 0:
            workers = min(left, PROCESSORS_PER_ACTOR)
            yield workers
            left -= workers

    def _start_actor(self, node: Node, workers: int) -> None:
        each = self._demand.bytes_per_worker
        config = NodeConfig(own_version(), self._preload, workers, storage_settings.exported())
        actor = self._cluster.start_actor(node, config, workers * each + OWN_BYTES)
        name = f"{node.id}/{next(self._actor_numbers)}"
        self._handles.append(_ActorHandle(name, node, actor, workers, workers, each))

    def _call(self, handle: _ActorHandle, dispatch: Dispatch, order: NodeOrder, policy: RetryPolicy) -> None:
        """Send an actor the function or further items, if it has answered the last call."""
        if handle.call is not None:
            return
        if handle.run_number != self._runs:
            demand = self._demand
            memory = None if demand.memory_bytes is None else handle.processors * demand.bytes_per_worker
            own = replace(order, worker_bytes=demand.worker_bytes, memory_bytes=memory)
            handle.run_number, handle.call = self._runs, handle.actor.begin.remote(own)
            return
        workers = min(handle.workers, policy.workers or handle.workers)
        window = workers * (1 + policy.prefetch + dispatch.reserve())
        items = dispatch.give(handle.name, window - dispatch.held(handle.name))
        if items or dispatch.held(handle.name):
            handle.call = handle.actor.exchange.remote(items)

    def _answered(self) -> list[_ActorHandle]:
        """Wait a moment; the actors whose calls have an answer or an error."""
        started = time.monotonic()
        calls = {handle.call: handle for handle in self._handles if handle.call is not None}
        if calls:
            answered = [calls[call] for call in self._cluster.answered(list(calls), WAIT_SECONDS)]
        else:
            time.sleep(WAIT_SECONDS)
            answered = []
        seconds = min(time.monotonic() - started, MAX_WAIT_SECONDS)
        for handle in self._handles:
            handle.silent_seconds = handle.silent_seconds + seconds if handle.call is not None else 0.0
        return answered

    def _receive(self, handle: _ActorHandle, dispatch: Dispatch) -> Iterator[Outcome[Any, Any]]:
        call, handle.call = handle.call, None
        try:
            reply = self._cluster.answer(call)
        except NodeLostError as lost:
            if lost.by_itself and not handle.has_answered:
                self._start_failures.by_node[handle.node.id] += 1
                self._start_failures.node, self._start_failures.reason = handle.node.name, str(lost)
            self._remove(handle)
            yield from self._lose(handle, dispatch, str(lost))
            return
        handle.has_answered, handle.is_silent, handle.silent_seconds = True, False, 0.0
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
        if handle in self._handles:
            self._handles.remove(handle)
            self._cluster.kill_actor(handle.actor)


def _accepted(handle: _ActorHandle, reply: NodeReply, dispatch: Dispatch) -> Iterator[Outcome[Any, Any]]:
    """The outcomes that count, with the name of the node."""
    for outcome in reply.outcomes:
        worker = replace(outcome.worker, node=handle.node.name)
        accepted = dispatch.answer(handle.name, outcome.item, replace(outcome, worker=worker))
        if accepted is not None:
            yield accepted
