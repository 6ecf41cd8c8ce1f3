"""Workers on the nodes of a Ray cluster, in crews that supervise themselves (see crew).

Ray starts the crews and carries the calls; what is given to whom, and what is given again, is decided here. A crew that
does not answer for some seconds has its items given to others, whether Ray knows that its node is lost or not. Crews
are put on nodes as they join, and new ones where one has died.
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
from tokenmill.executors.ray.node_actor import NodeConfig, NodeReply, own_version
from tokenmill.humanize import count, size
from tokenmill.system import environment, machine

PROCESSORS_OF_CREW = 8
"""How many processors a crew has at most: others may need the rest of a large node, and a death costs less."""

NODES_SECONDS = 2.0
"""How often new nodes are looked for."""

WAIT_SECONDS = 0.25
SILENT_SECONDS = 10.0
"""After how long without an answer what a crew has is given to others."""

MAX_WAIT_SECONDS = 1.0
"""What counts at most between two looks: that this process was stopped is no crew's fault."""

PLACE_SECONDS = 120.0
"""How long a crew may take to come, before two of half its size are tried."""

ATTEMPTS = 3
"""How many crews may die on a node, by their own doing, before one has answered."""

FAULTS = 3
"""How often in a row a node may fail at what another one can do."""

PATIENCE_SECONDS = 30.0
"""After how long without any crew it is said why."""


@dataclass(eq=False)
class _ActorHandle:
    """A crew as it is seen from here: the call that it has not answered, and for how long.

    It may have fewer workers than processors, if memory ran out.
    """

    name: str
    node: Node
    actor: Any
    processors: int
    workers: int
    call: Any = None
    shift: int = 0
    silent_seconds: float = 0.0
    is_silent: bool = False
    has_answered: bool = False
    born: float = field(default_factory=time.monotonic)

    @property
    def is_late(self) -> bool:
        """Whether it has not come because others use some of its node, so that a smaller one might."""
        return not self.has_answered and self.processors > 1 and time.monotonic() - self.born > PLACE_SECONDS


@dataclass(frozen=True, slots=True)
class _Means:
    """What crews are made with."""

    workers: int = 0
    worker_bytes: int | None = None
    memory_bytes: int | None = None
    most_workers: int = 0

    @property
    def share_bytes(self) -> int:
        """What each worker needs of its node's memory, as far as that was said."""
        if self.memory_bytes is not None:
            return self.memory_bytes // self.workers
        return self.worker_bytes or 0


@dataclass
class _StartFailures:
    """Crews that died before they had answered, on each node, and why the last one did."""

    attempts: Counter[str] = field(default_factory=Counter)
    reason: str = ""
    node: str = ""


class RayExecutor:
    """Runs functions on a Ray cluster: the one at an address, or the one that this machine is part of.

    If there is none, one is started here. `say` is told what somebody who waits should know. Items may be done twice,
    where a node is cut off or slow: functions have to allow for that.
    """

    def __init__(
        self, address: str | None = None, preload: tuple[str, ...] = (), say: Callable[[str], None] = lambda _: None
    ) -> None:
        self._preload = preload
        self._say = say
        self._cluster = Cluster(address)
        self._hands: list[_ActorHandle] = []
        self._means = _Means()
        self._gone = _StartFailures()
        self._unfit: set[str] = set()
        self._names = itertools.count(1)
        self._numbers = itertools.count(1)
        self._shifts = 0
        self._nodes_seen = -math.inf
        self._without = time.monotonic()

    @property
    def room(self) -> Capacity:
        """The nodes that there are now."""
        nodes = self._cluster.nodes()
        if not nodes:
            return Capacity(1, 1, 0)
        share = min(machine.DEFAULT_MEMORY_FRACTION * node.memory_bytes / node.processors for node in nodes)
        of_machine = max(node.processors for node in nodes)
        return Capacity(sum(node.processors for node in nodes), of_machine, int(share), machines=len(nodes))

    @property
    def workers(self) -> int:
        """How many there are on the nodes that answer."""
        return sum(hand.workers for hand in self._hands if hand.has_answered and not hand.is_silent)

    @property
    def nodes(self) -> list[str]:
        """The nodes that they are on."""
        return sorted({hand.node.name for hand in self._hands if hand.has_answered and not hand.is_silent})

    def start(
        self,
        workers: int,
        worker_bytes: int | None = None,
        memory_bytes: int | None = None,
        most_workers: int | None = None,
    ) -> Self:
        """Have this many workers in all, as far as there are nodes for them; the memory is shared out among them.

        On nodes that join later there may be more, up to `most_workers`, each with the same share.
        """
        means = _Means(workers, worker_bytes, memory_bytes, most_workers or workers)
        if means != self._means:
            for hand in list(self._hands):
                self._remove(hand)
            self._means = means
        self._recruit()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for hand in list(self._hands):
            self._remove(hand)
        self._cluster.leave()

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], terms: RetryPolicy = DEFAULT_POLICY
    ) -> Iterator[Outcome[Item, Value]]:
        """Yield outcomes as they come; an item whose worker dies, or whose node is lost, is tried again."""
        self._shifts += 1
        dispatch = Dispatch(items, terms, self._numbers)
        order = (function, replace(terms, enough=never), environment.exported())
        while not dispatch.is_done() and not terms.enough():
            self._recruit()
            for hand in self._hands:
                self._call(hand, dispatch, order, terms)
            for hand in self._answered():
                yield from self._heard(hand, dispatch)
            for hand in self._fallen_silent():
                detail = f"nothing was heard of its node for {SILENT_SECONDS:.0f} s"
                yield from self._told(dispatch.lose(hand.name, ExitReport(0, Cause.LOST, detail=detail), _worker(hand)))

    def _recruit(self) -> None:
        """Put crews on nodes that have room for more of them."""
        if time.monotonic() - self._nodes_seen < NODES_SECONDS:
            return
        self._nodes_seen = time.monotonic()
        alive = [node for node in self._cluster.nodes() if node.id not in self._unfit]
        nodes = [node for node in alive if self._gone.attempts[node.id] < ATTEMPTS]
        for hand in [hand for hand in self._hands if hand.is_late]:
            self._remove(hand)
            self._put(hand.node, hand.processors // 2)
        for node in nodes:
            for workers in self._missing(node):
                self._put(node, workers)
        if any(hand.has_answered for hand in self._hands):
            self._without = time.monotonic()
        elif alive and not nodes:
            raise RunFailed(
                "no node of the Ray cluster can work",
                f"node         {self._gone.node}",
                f"reason       {self._gone.reason}",
                "Every node needs this version of tokenmill: pip install 'tokenmill[ray]'",
            )
        elif time.monotonic() - self._without > PATIENCE_SECONDS:
            self._without = time.monotonic()
            needed = f"{count(1, 'processor')} and {size(self._means.share_bytes + OWN_BYTES)} of memory"
            self._say(f"waiting for a node of the cluster that has {needed} to spare")

    def _missing(self, node: Node) -> Iterator[int]:
        """How many workers each crew has that a node could have beside those it has."""
        there = sum(hand.processors for hand in self._hands if hand.node.id == node.id)
        in_all = sum(hand.processors for hand in self._hands if not hand.is_silent)
        fitting = node.processors
        if self._means.share_bytes:
            crews = math.ceil(node.processors / PROCESSORS_OF_CREW)
            fitting = min(fitting, int(node.memory_bytes - crews * OWN_BYTES) // self._means.share_bytes)
        left = min(fitting - there, self._means.most_workers - in_all)
        while left > 0:
            workers = min(left, PROCESSORS_OF_CREW)
            yield workers
            left -= workers

    def _put(self, node: Node, workers: int) -> None:
        all_bytes = workers * self._means.share_bytes
        limit = None if self._means.memory_bytes is None else all_bytes
        held = self._means.worker_bytes
        equipment = NodeConfig(own_version(), self._preload, workers, held, limit, environment.exported())
        actor = self._cluster.put_crew(node, equipment, all_bytes + OWN_BYTES)
        self._hands.append(_ActorHandle(f"{node.id}/{next(self._names)}", node, actor, workers, workers))

    def _call(self, hand: _ActorHandle, dispatch: Dispatch, order: Any, terms: RetryPolicy) -> None:
        """Tell a crew what to do, or give it items, if it has answered for what it was told before."""
        if hand.call is not None:
            return
        if hand.shift != self._shifts:
            hand.shift, hand.call = self._shifts, hand.actor.begin.remote(order)
            return
        workers = min(hand.workers, terms.workers or hand.workers)
        window = workers * (1 + terms.ahead + dispatch.ahead())  # so that none waits while calls are on their way
        items = dispatch.give(hand.name, window - dispatch.held(hand.name))
        if items or dispatch.held(hand.name):
            hand.call = hand.actor.exchange.remote(items)

    def _answered(self) -> list[_ActorHandle]:
        """The crews whose calls are answered, or never will be."""
        started = time.monotonic()
        calls = {hand.call: hand for hand in self._hands if hand.call is not None}
        if calls:
            answered = [calls[call] for call in self._cluster.answered(list(calls), WAIT_SECONDS)]
        else:
            time.sleep(WAIT_SECONDS)
            answered = []
        seconds = min(time.monotonic() - started, MAX_WAIT_SECONDS)
        for hand in self._hands:
            hand.silent_seconds = hand.silent_seconds + seconds if hand.call is not None else 0.0
        return answered

    def _heard(self, hand: _ActorHandle, dispatch: Dispatch) -> Iterator[Outcome[Any, Any]]:
        call, hand.call = hand.call, None
        try:
            told = self._cluster.answer(call)
        except NodeLostError as lost:
            if lost.by_itself and not hand.has_answered:
                self._gone.attempts[hand.node.id] += 1
                self._gone.node, self._gone.reason = hand.node.name, str(lost)
            yield from self._lost(hand, dispatch, str(lost))
            return
        hand.has_answered, hand.is_silent, hand.silent_seconds, hand.workers = True, False, 0.0, told.workers
        yield from self._told(self._counted(hand, told, dispatch))
        for node in [node for node, faults in dispatch.faults.items() if faults >= FAULTS]:
            yield from self._given_up(node, dispatch)

    def _counted(self, hand: _ActorHandle, told: NodeReply, dispatch: Dispatch) -> Iterator[Outcome[Any, Any]]:
        for outcome in told.outcomes:
            worker = replace(outcome.worker, node=hand.node.name)
            counted = dispatch.answer(hand.name, outcome.item, replace(outcome, worker=worker))
            if counted is not None:
                yield counted

    def _told(self, outcomes: Iterable[Outcome[Any, Any]]) -> Iterator[Outcome[Any, Any]]:
        """Outcomes as the caller sees them: a death leaves the workers of all nodes."""
        for outcome in outcomes:
            yield replace(outcome, workers=self.workers) if isinstance(outcome, Died) else outcome

    def _lost(self, hand: _ActorHandle, dispatch: Dispatch, reason: str) -> Iterator[Outcome[Any, Any]]:
        """A crew is no more: what it had is given to others."""
        self._remove(hand)
        yield from self._told(dispatch.lose(hand.name, ExitReport(0, Cause.LOST, detail=reason), _worker(hand)))

    def _given_up(self, node: str, dispatch: Dispatch) -> Iterator[Outcome[Any, Any]]:
        """A node that fails at what others can do is not used any more."""
        del dispatch.faults[node]
        self._unfit.add(node)
        hands = [hand for hand in self._hands if hand.node.id == node]
        for name in {hand.node.name for hand in hands}:
            self._say(f"note: node {name} is not used any more: it fails at what others can do")
        for hand in hands:
            yield from self._lost(hand, dispatch, "its node is not used any more")

    def _fallen_silent(self) -> Iterator[_ActorHandle]:
        """The crews that should have answered by now; those that are only being started may take longer."""
        for hand in self._hands:
            if hand.has_answered and not hand.is_silent and hand.silent_seconds > SILENT_SECONDS:
                hand.is_silent = True
                yield hand

    def _remove(self, hand: _ActorHandle) -> None:
        if hand in self._hands:
            self._hands.remove(hand)
            self._cluster.remove_crew(hand.actor)


def _worker(hand: _ActorHandle) -> Worker:
    """Whoever of a crew it was."""
    return Worker(0, 0, hand.node.name)
