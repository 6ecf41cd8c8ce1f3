"""A Ray cluster in the tests: a head and nodes by `ray start`, each on a machine of its own in a `Network`.

A node is lost for good when it is killed, and silent while its link is cut. Every process is ended by its own pid; `ray
stop` would end every Ray of the machine.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers import networks
from tests.support.servers.networks import Network

HEAD = 1
PORT = 6379
START_SECONDS = 90.0
STORE_BYTES = 100_000_000
"""Memory for Ray's objects on each node: ours are small."""

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_prestart_worker_first_driver": "0",  # we ask for actors only: idle workers would cost memory and seconds
    "RAY_enable_worker_prestart": "0",
}


def missing() -> str | None:
    """Why there can be no cluster here, or None."""
    return networks.missing() if find_spec("ray") else "ray is not installed"


class Cluster:
    """A head without CPUs, and nodes 2, 3, ... with some; a context manager that leaves nothing behind.

    `environment` is that of the nodes, and so of all that Ray starts there: keys of a storage, for example.
    """

    def __init__(self, nodes: int, cpus: int = 2, environment: Mapping[str, str] | None = None) -> None:
        self.cpus = cpus
        self.environment = {
            **(environment or os.environ),
            **SETTINGS,
            "RAY_AUTH_TOKEN": secrets.token_hex(16),
        }
        self.network = Network()
        self.directory = self.network.directory
        self._starting: dict[int, subprocess.Popen[bytes]] = {}
        try:
            self._start(["--head", f"--port={PORT}", "--num-cpus=0", "--include-dashboard=false"])
            for _ in range(nodes):
                self.start_node()
            self.wait()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        """Where drivers find the cluster, on any of its machines."""
        return f"{self.network.address(HEAD)}:{PORT}"

    def start_node(self) -> int:
        """Begin to start one more node. It waits for the head by itself."""
        return self._start([f"--address={self.address}", f"--num-cpus={self.cpus}"])

    def add_node(self) -> int:
        """Start one more node, and wait until it is there."""
        node = self.start_node()
        self.wait()
        return node

    def wait(self) -> None:
        """Wait until all that was started is there."""
        end = time.monotonic() + START_SECONDS
        for node, process in self._starting.items():
            while "Ray runtime started" not in self.said(node):
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"node {node} did not start; it said:\n{self.said(node)[-4000:]}")
                time.sleep(0.05)

    def said(self, node: int) -> str:
        """What `ray start` has said on a node."""
        return (self.directory / f"{node}.log").read_text()

    def command(self, node: int, *words: object) -> list[str]:
        """The command that runs a program on a node; `environment` belongs to it."""
        return self.network.command(node, *map(str, words))

    def run(self, node: int, *words: object, seconds: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a program on a node to its end."""
        command = self.command(node, *words)
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=seconds, check=False
        )

    def kill_node(self, node: int) -> None:
        """Kill every process of a node at once."""
        self.network.kill(node)
        self._starting.pop(node).wait()

    def cut(self, node: int) -> None:
        """Cut a node's link: its processes go on, and nobody is told."""
        self.network.cut(node)

    def mend(self, node: int) -> None:
        """Mend a node's link."""
        self.network.mend(node)

    def close(self) -> None:
        """Kill all nodes, and remove their machines and files."""
        self.network.close()
        for process in self._starting.values():
            process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self, role: Sequence[str]) -> int:
        node = self.network.add_machine()
        private = self.directory / str(node)
        private.mkdir()
        ray = Path(sys.executable).with_name("ray")
        options = [
            *("--block", "--disable-usage-stats", "--include-log-monitor=false"),
            *(f"--object-store-memory={STORE_BYTES}", f"--temp-dir={private}"),
            f"--node-ip-address={self.network.address(node)}",
        ]
        with open(self.directory / f"{node}.log", "wb") as log:
            self._starting[node] = subprocess.Popen(
                self.command(node, ray, "start", *options, *role),
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return node
