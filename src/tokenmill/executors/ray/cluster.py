"""The interface to Ray: join a cluster, list its nodes, start actors, receive answers. No other module uses Ray.

Ray neither restarts the actors nor repeats their calls: the executor assigns lost items again, at once. An actor and
all processes that it started end with this process.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import signal
import socket
import stat
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from tokenmill.errors import TRY_AGAIN, RunFailed, UsageError
from tokenmill.executors.ray.node_actor import NodeActor, NodeConfig, NodeReply

# Characters of Ray's error text that a message shows.
SHOWN_REASON = 300

# Seconds that the head node may take to accept a connection.
CONNECT_SECONDS = 10.0

ADVICE = (
    "Start one with `ray start --head`, run this on one of its nodes, and give the address it prints: ray://HOST:6379.",
    "A cluster that asks for a token wants RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or the file that it made.",
    "One machine needs no Ray: --on local, the default, uses all of its processors.",
)

# Variables that Ray reads when it is imported and started, where they are not set. Ray sends reports of its usage, and
# with `uv run` it sends the whole project to every node.
RAY_VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}

# Ray's text for an actor whose constructor raised.
CREATION = "raised in its creation task"

# Ray's text for a lost actor, and our phrase for it.
LOSSES = {
    "node has died": "its node has died",
    "is unavailable": "its node cannot be reached",
    "worker process has died": "its actor was killed",
    "`ray.kill`": "its actor was ended",
    "memory": "Ray has ended its actor, for lack of memory on the node",
}


# A call that has no answer yet.
Call = Future[NodeReply]


@dataclass(frozen=True, slots=True)
class Node:
    """A node that is alive: its id, its address, and its processors and memory in total."""

    id: str
    name: str
    processors: int
    memory_bytes: int


class NodeLostError(Exception):
    """An actor is lost, with the reason; `by_itself` if that would happen again on the same node."""

    def __init__(self, reason: str, *, by_itself: bool) -> None:
        super().__init__(reason)
        self.by_itself = by_itself


class Cluster:
    """A Ray cluster that this process is a member of until `leave`."""

    def __init__(self, address: str | None) -> None:
        self._muted = ExitStack()
        with _ray_variables():
            try:
                import ray  # noqa: PLC0415 - an extra, and heavy
            except ImportError as error:
                raise UsageError("Ray is not installed", "Install it: pip install 'tokenmill[ray]'") from error
            self._ray = ray
            self._is_ours = not ray.is_initialized()
            if self._is_ours:
                with _own_signals():
                    self._join(address)
        if self._is_ours:
            # A thread of Ray prints the events of nodes on stdout, where our results go.
            null = self._muted.enter_context(open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - the stack closes it
            self._muted.enter_context(contextlib.redirect_stdout(null))
        self._actor_class = ray.remote(NodeActor)
        self._answers: queue.SimpleQueue[Call] = queue.SimpleQueue()

    def _join(self, address: str | None) -> None:
        target = _host_and_port(address)
        if target is not None:
            _check_reachable(target)
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "include_dashboard": False}
        try:
            self._ray.init(address=target or address_to_join(self._ray), **quiet)
        except (ConnectionError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            raise RunFailed(
                "the Ray cluster cannot be joined",
                f"address      {address or os.environ.get('RAY_ADDRESS') or 'none was given'}",
                f"reason       {_short(error)}",
                *ADVICE,
            ) from error

    def leave(self) -> None:
        """Leave the cluster, unless this process was a member before."""
        if self._is_ours:
            self._ray.shutdown()
        self._muted.close()

    def nodes(self) -> list[Node]:
        """The nodes that are alive and have a processor."""
        try:
            members = self._ray.nodes()
        except (OSError, RuntimeError, self._ray.exceptions.RayError) as error:
            raise RunFailed(
                "the connection to the Ray cluster is lost",
                f"reason       {_short(error)}",
                "Committed work is kept. When the cluster is back, run the same command again.",
                exit_code=TRY_AGAIN,
            ) from error
        nodes = []
        for node in members:
            resources = node["Resources"]
            if node["Alive"] and resources.get("CPU", 0) >= 1:
                memory = int(resources.get("memory", 0))
                nodes.append(Node(node["NodeID"], node["NodeManagerAddress"], int(resources["CPU"]), memory))
        return nodes

    def start_actor(self, node: Node, config: NodeConfig, memory_bytes: int) -> Any:
        """Start an actor on a node, in the background; it waits while others use the node's processors."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        return self._actor_class.options(
            num_cpus=config.workers,
            memory=memory_bytes,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        ).remote(config)

    def kill_actor(self, actor: Any) -> None:
        """Kill an actor."""
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(actor)

    def call(self, actor: Any, method: str, *args: Any) -> Call:
        """Call a method of an actor."""
        call: Call = getattr(actor, method).remote(*args).future()
        call.add_done_callback(self._answers.put)
        return call

    def answered(self, seconds: float) -> Iterator[Call]:
        """Take the calls that have an answer or an error now; wait at most `seconds` for the first."""
        with contextlib.suppress(queue.Empty):
            yield self._answers.get(timeout=seconds)
            for _ in range(self._answers.qsize()):
                yield self._answers.get_nowait()

    def answer(self, call: Call) -> NodeReply:
        """The answer to a call; raises NodeLostError if the node does not answer."""
        try:
            reply = call.result()
        except self._ray.exceptions.RayTaskError as error:
            raise NodeLostError(_short(error), by_itself=True) from error
        except self._ray.exceptions.RayError as error:
            raise NodeLostError(_loss(error), by_itself=CREATION in str(error)) from error
        return reply


def address_to_join(ray: Any) -> str:
    """The cluster that RAY_ADDRESS names, or the last one that this user or root started here.

    Ray has the address in a file that every user can replace, and a cluster can run code in each process that joins.
    Raises ConnectionError if there is none.
    """
    private = ray._private  # noqa: SLF001 - ray.init decides by these functions
    address: str | None = None
    if os.environ.get("RAY_ADDRESS") or _is_trusted(private.utils.get_ray_address_file(None)):
        address = private.services.canonicalize_bootstrap_address(None)
    if address is None:
        raise ConnectionError("this user or root has started no cluster on this machine")
    return address


def _is_trusted(path: str) -> bool:
    """Whether a path is a file of this user or root, not a link, that not every user can write to."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_ours = status.st_uid in (os.geteuid(), 0)
    return stat.S_ISREG(status.st_mode) and is_ours and not status.st_mode & stat.S_IWOTH


@contextlib.contextmanager
def _ray_variables() -> Iterator[None]:
    """Set the variables for Ray in the block only: the process may be another program's, with a Ray of its own."""
    missing = RAY_VARIABLES.keys() - os.environ.keys()
    os.environ.update({name: RAY_VARIABLES[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            with contextlib.suppress(ValueError):  # not in the main thread, where Ray replaces none either
                signal.signal(number, handler)


def _host_and_port(address: str | None) -> str | None:
    """The address without ray://, which Ray would take for a client's address; we are a member."""
    if address is None:
        return None
    match = re.fullmatch(r"ray://([^/\s]+):([0-9]+)/?", address)
    if match is None:
        raise UsageError(f"--on {address} is not the address of a cluster", "Write it such as ray://HOST:6379.")
    return f"{match[1]}:{match[2]}"


def _check_reachable(target: str) -> None:
    """Raise RunFailed if the address does not accept connections: Ray would try for minutes."""
    host, _, port = target.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
    except OSError as error:
        raise RunFailed(
            "the Ray cluster cannot be reached", f"address      {target}", f"reason       {error}", *ADVICE
        ) from error


def _loss(error: Exception) -> str:
    """How an actor was lost, from Ray's long text."""
    text = str(error)
    if CREATION in text:  # the last line of the traceback that follows is the error
        return text.strip().splitlines()[-1].strip().removeprefix("tokenmill.errors.RunFailed: ")[:SHOWN_REASON]
    for part, phrase in LOSSES.items():
        if part in text:
            return phrase
    return _short(error)


def _short(error: Exception) -> str:
    """The first line of an error's text."""
    text = str(getattr(error, "cause", None) or error).strip() or type(error).__name__
    return text.splitlines()[0].strip()[:SHOWN_REASON]
