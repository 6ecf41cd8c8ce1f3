"""The door to Ray: join a cluster, see its nodes, put crews on them, talk to them. Nothing else here knows Ray.

Crews are actors that are never restarted and whose calls are never repeated by Ray: what is lost is given out again by
us, at once. An actor and all that it started end with this process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tokenmill.errors import TRY_AGAIN, RunFailed, UsageError
from tokenmill.executors.ray.node_actor import NodeActor, NodeConfig, NodeReply
from tokenmill.executors.ray.own_cluster import OwnCluster, is_needed

SHOWN_REASON = 300
KNOCK_SECONDS = 10.0
ADVICE = (
    "Start one with `ray start --head`, run this on one of its nodes, and give the address it prints: ray://HOST:6379.",
    "A cluster that asks for a token wants RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or the file that it made.",
    "RAY_ADDRESS=local starts a private cluster on this machine.",
)
CREATION = "raised in its creation task"
LOSSES = {
    "node has died": "its node has died",
    "is unavailable": "its node cannot be reached",
    "worker process has died": "its crew was killed",
    "`ray.kill`": "its crew was ended",
    "memory": "Ray has ended its crew, for lack of memory on the node",
}
"""What Ray says of an actor that it has lost, and what that means."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive: its id, its address, and what it has of processors and memory for all that run on it."""

    id: str
    name: str
    processors: int
    memory_bytes: int


class NodeLostError(Exception):
    """A crew that is no more, and why; `by_itself` if that would happen again on the same node."""

    def __init__(self, reason: str, *, by_itself: bool) -> None:
        super().__init__(reason)
        self.by_itself = by_itself


class Cluster:
    """A Ray cluster that this process takes part in until `leave`."""

    def __init__(self, address: str | None) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported: nothing is told to its makers
        os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")  # else the whole project is sent to every node
        try:
            import ray  # noqa: PLC0415 - an extra, and heavy
        except ImportError as error:
            raise UsageError("Ray is not installed", "Install it: pip install 'tokenmill[ray]'") from error
        self._ray = ray
        self._is_ours = not ray.is_initialized()
        self._own: OwnCluster | None = None
        self._muted = ExitStack()
        if self._is_ours:
            with _own_signals():
                self._join(address)
            # Ray prints what happens to nodes, from a thread, where our results go; what matters of it, we tell.
            nowhere = self._muted.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - the stack closes it
            self._muted.enter_context(contextlib.redirect_stdout(nowhere))
        self._crew = ray.remote(NodeActor)

    def _join(self, address: str | None) -> None:
        place = _for_ray(address)
        if place is not None:
            _knock(place)
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
        try:
            if place is None and is_needed(self._ray):
                self._own = OwnCluster(self._ray, quiet)
            else:
                self._ray.init(address=place, **quiet)
        except (ConnectionError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            raise RunFailed(
                "the Ray cluster cannot be joined",
                f"address      {address or os.environ.get('RAY_ADDRESS') or 'none was given'}",
                f"reason       {_short(error)}",
                *ADVICE,
            ) from error

    def leave(self) -> None:
        """End what is ours."""
        if self._own is not None:
            self._own.close()
        elif self._is_ours:
            self._ray.shutdown()
        self._muted.close()

    def nodes(self) -> list[Node]:
        """The nodes that are alive and have a processor."""
        found = []
        for each in self._all_nodes():
            has = each["Resources"]
            if each["Alive"] and has.get("CPU", 0) >= 1:
                memory = int(has.get("memory", 0))
                found.append(Node(each["NodeID"], each["NodeManagerAddress"], int(has["CPU"]), memory))
        return found

    def _all_nodes(self) -> list[dict[str, Any]]:
        self._check_own_processes()
        try:
            found: list[dict[str, Any]] = self._ray.nodes()
        except (OSError, RuntimeError, self._ray.exceptions.RayError) as error:
            raise RunFailed(
                "the Ray cluster has gone",
                f"reason       {_short(error)}",
                "What is committed stays. When it is back, run the same command again.",
                exit_code=TRY_AGAIN,
            ) from error
        if self._own is not None and not any(each["Alive"] for each in found):
            raise _own_cluster_died("its node does not answer")
        return found

    def _check_own_processes(self) -> None:
        """Raise RunFailed if a cluster of our own has died: no other node can join it, so waiting is in vain.

        Ask this before Ray is asked anything: without its GCS, a call blocks for a minute, and then Ray ends this
        process.
        """
        dead = [] if self._own is None else self._own.dead_processes()
        if dead:
            raise _own_cluster_died(f"{' and '.join(dead)} ended")

    def put_crew(self, node: Node, equipment: NodeConfig, memory_bytes: int) -> Any:
        """A crew on a node; it takes a while to come, and longer if others use the node's processors."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        return self._crew.options(
            num_cpus=equipment.workers,
            memory=memory_bytes,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        ).remote(equipment)

    def remove_crew(self, crew: Any) -> None:
        """End a crew, wherever it is."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(crew)

    def answered(self, calls: Sequence[Any], seconds: float) -> list[Any]:
        """Those calls that are answered, or that will never be; waits so long for the first."""
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=seconds)
        if ready and len(calls) > 1:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return list(ready)

    def answer(self, call: Any) -> NodeReply:
        """The answer to a call; raises Lost if there is none."""
        try:
            told: NodeReply = self._ray.get(call)
        except self._ray.exceptions.RayTaskError as error:
            raise NodeLostError(_short(error), by_itself=True) from error
        except self._ray.exceptions.RayError as error:
            raise NodeLostError(_loss(error), by_itself=CREATION in str(error)) from error
        return told


def _own_cluster_died(reason: str) -> RunFailed:
    error = RunFailed(
        "the Ray cluster that was started for this run has died",
        f"reason       {reason}",
        "What is committed stays. Run the same command again; --on local needs no Ray.",
    )
    error.__cause__ = ConnectionError(reason)  # the same command may succeed: it will start another cluster
    return error


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Keep Ray from deciding what a signal to this process means."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(ValueError):  # not in the main thread, where Ray sets none either
                signal.signal(number, handler)


def _for_ray(address: str | None) -> str | None:
    """An address as Ray has it: with ray:// it would be that of a client; members give host and port alone."""
    if address is None:
        return None
    match = re.fullmatch(r"ray://([^/\s]+):([0-9]+)/?", address)
    if match is None:
        raise UsageError(f"--on {address} is no address of a cluster", "Write it such as ray://HOST:6379.")
    return f"{match[1]}:{match[2]}"


def _knock(place: str) -> None:
    """Refuse an address where nobody is: Ray would try for minutes."""
    host, _, port = place.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()
    except OSError as error:
        raise RunFailed(
            "the Ray cluster cannot be reached", f"address      {place}", f"reason       {error}", *ADVICE
        ) from error


def _loss(error: Exception) -> str:
    """How a crew was lost, of which Ray tells at length."""
    text = str(error)
    if CREATION in text:  # its traceback follows, and what was raised is told last
        return text.strip().splitlines()[-1].strip().removeprefix("tokenmill.errors.RunFailed: ")[:SHOWN_REASON]
    for words, meaning in LOSSES.items():
        if words in text:
            return meaning
    return _short(error)


def _short(error: Exception) -> str:
    """The first line of what an error says."""
    text = str(getattr(error, "cause", None) or error).strip() or type(error).__name__
    return text.splitlines()[0].strip()[:SHOWN_REASON]
