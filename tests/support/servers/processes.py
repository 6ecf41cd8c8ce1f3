"""Server processes that a test starts: on free ports, stopped by their own pid, and never outliving the test."""

from __future__ import annotations

import random
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60.0
"""The longest that a server may take to become healthy."""

FIRST_PORT, LAST_PORT = 11_000, 21_999
"""Below what kernels hand out to clients (from 32,768 on, with 10,000 added too), so that a port stays free while its
server is down."""


def free_ports(count: int, also_above: int = 0) -> list[int]:
    """Ports of loopback that nobody listens on; with `also_above`, the ports that much higher are free as well."""
    found: list[int] = []
    for port in random.sample(range(FIRST_PORT, LAST_PORT), LAST_PORT - FIRST_PORT):
        if len(found) == count:
            break
        if _is_free(port) and (not also_above or _is_free(port + also_above)):
            found.append(port)
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@dataclass
class ServerProcess:
    """One running server. A watcher kills it if the process that started it ends without having stopped it."""

    process: subprocess.Popen[bytes]
    watcher: subprocess.Popen[bytes]
    log: Path

    @classmethod
    def start(cls, command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> ServerProcess:
        """Start a server in a directory; what it says is added to `log` there."""
        log = directory / "log"
        with open(log, "ab") as output:
            process = subprocess.Popen(command, cwd=directory, env=environment, stdout=output, stderr=output)
        # The pipe of the watcher closes when this process ends, however it ends. Asking the kernel (PR_SET_PDEATHSIG)
        # would end the server with the thread that started it, and tests restart servers in threads.
        script = f"read _; kill -9 {process.pid}"
        watcher = subprocess.Popen(["sh", "-c", script], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
        return cls(process, watcher, log)

    @property
    def pid(self) -> int:
        """The pid of the server itself."""
        return self.process.pid

    def wait_until(self, healthy: Callable[[], bool]) -> None:
        """Wait until the server is healthy; if it ends or takes too long, stop it and say what it has said."""
        end = time.monotonic() + START_SECONDS
        while not healthy():
            if self.process.poll() is not None or time.monotonic() > end:
                self.stop()
                raise RuntimeError(f"the server did not start; it said:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill the server and wait for its end. The watcher goes first: the pid might soon be another's."""
        self.watcher.kill()
        self.watcher.wait()
        if self.watcher.stdin:
            self.watcher.stdin.close()
        self.process.kill()
        self.process.wait()
