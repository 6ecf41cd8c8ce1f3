"""Commands with `--on ray://...` on a cluster of real nodes, disturbed, and what is compared of their results.

Shared by the tests and scripts/cluster_test.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.corpora import SMALL_JSON
from tests.support.remote_runs import Ended, differences, end, kill
from tests.support.servers.door import Door
from tests.support.servers.networks import GATEWAY
from tests.support.servers.ray_nodes import HEAD, Cluster
from tests.support.servers.seaweed import S3Server

LONG_SECONDS = 240.0
"""The longest that a command may take."""

Run = subprocess.Popen[str]

SLOW = ("--tokenizer", SMALL_JSON, "--engine", "tokenizers", "--unit-bytes", "1")
"""The slowest engine, and a unit for each row group: a small corpus has many units that take a while."""


@dataclass(frozen=True)
class Site:
    """A cluster, the object storage that all of its nodes reach at one address, and the way there."""

    cluster: Cluster
    server: S3Server
    way: Door

    @property
    def on(self) -> tuple[str, str]:
        """The option that runs a command on the cluster."""
        return "--on", f"ray://{self.cluster.address}"

    @contextlib.contextmanager
    def running(self, *arguments: object) -> Iterator[Run]:
        """A command at work on the head; what is left of it when the block ends is killed."""
        process = subprocess.Popen(
            self.cluster.command(HEAD, sys.executable, "-m", "tokenmill", *arguments),
            env=self.cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                kill(process)
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def tokenmill(self, *arguments: object, seconds: float = LONG_SECONDS) -> Ended:
        """Run a command on the head to its end."""
        with self.running(*arguments) as process:
            return end(process, seconds)

    def parts(self, store: str) -> dict[int, str]:
        """The units of a store that are committed, with the version of each part."""
        entries = [entry for page in self.server.store(f"{store}/parts").list() for entry in page]
        return {int(Path(entry["path"]).stem): f"{entry['e_tag']} {entry['last_modified']}" for entry in entries}

    def wait_for_parts(self, store: str, least: int, run: Run, seconds: float = 90.0) -> None:
        """Wait until that many units are committed, while a command runs."""
        self._wait(run, lambda: len(self.parts(store)) >= least, f"there were {least} parts", seconds)

    def wait_for_node(self, store: str, node: int, run: Run, seconds: float = 90.0) -> None:
        """Wait until a node has done a unit, while a command runs."""
        address = self.cluster.network.address(node)
        self._wait(run, lambda: address in nodes_of(self.log(store)), f"node {node} had done a unit", seconds)

    def _wait(self, run: Run, condition: Callable[[], bool], what: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not condition():
            if run.poll() is not None:
                out, err = run.communicate()
                raise AssertionError(f"the command ended before {what}:\n{out}\n{err}")
            if time.monotonic() > until:
                raise AssertionError(f"it took more than {seconds:.0f} s until {what}")
            time.sleep(0.2)

    def log(self, store: str) -> list[dict[str, Any]]:
        """The events of all drivers of a store."""
        written = self.server.objects(f"{store}/log").values()
        return [json.loads(line) for journal in written for line in journal.splitlines()]

    def differences(self, store: str, expected: str) -> list[str]:
        """The names of the files in which two stores differ."""
        return differences(_lasting(self.server.objects(store)), _lasting(self.server.objects(expected)))


@contextlib.contextmanager
def site(server: S3Server, nodes: int, cpus: int, environment: Mapping[str, str] | None = None) -> Iterator[Site]:
    """A cluster whose nodes have the keys of a server that listens on this machine's loopback, and reach it.

    `environment` is added to that of the nodes.
    """
    usual = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RAY_"))}
    reached = server.environment(f"http://{GATEWAY}:{server.port}")
    with Cluster(nodes, cpus, {**usual, **reached, **(environment or {})}) as cluster:
        yield Site(cluster, server, cluster.network.forward(server.port))


def _lasting(files: dict[str, bytes]) -> dict[str, bytes]:
    """A store without what its drivers tell of themselves."""
    return {name: data for name, data in files.items() if not name.startswith("drivers/")}


def units_of(log: Sequence[dict[str, Any]]) -> Counter[int]:
    """How often each unit was done."""
    return Counter(event["unit"] for event in log if event["event"] == "unit")


def nodes_of(log: Sequence[dict[str, Any]]) -> set[str]:
    """The nodes that have done units."""
    return {event["node"] for event in log if event["event"] == "unit"}


def losses(log: Sequence[dict[str, Any]]) -> int:
    """How many times a unit was lost with its worker or its node."""
    return sum(event["event"] == "death" for event in log)
