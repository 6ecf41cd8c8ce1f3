"""Machines in the tests: network namespaces of this machine, joined by a bridge in one more, whose links can be cut.

Nothing of it touches the machine's own network. It needs root and iproute2. If the test is killed, a watcher removes
its network; if that is killed, too, the next test does.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.support import ROOT
from tests.support.servers.door import Door

PREFIX = "millnet"
NAMESPACES = Path("/run/netns")
SWITCH = "switch"
SUBNET = "10.77.0"
"""The same in every network: they know nothing of each other, nor of this machine's."""

GATEWAY = f"{SUBNET}.254"
GONE_SECONDS = 20.0

_numbers = itertools.count()


def missing() -> str | None:
    """Why there can be no network here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = [tool for tool in ("ip", "nsenter") if not shutil.which(tool)]
    if tools:
        return f"{' and '.join(tools)} not found (Debian: iproute2, util-linux)"
    if subprocess.run(["ip", "netns", "add", f"{_owner()}-try"], capture_output=True, check=False).returncode:
        return "this machine allows no network namespaces"
    ip("netns", "delete", f"{_owner()}-try")
    return None


class Network:
    """Machines 1, 2, ... at 10.77.0.1, 10.77.0.2, ...; what is `forward`ed is reached from all of them at GATEWAY.

    What is written into its directory goes when it goes.
    """

    def __init__(self) -> None:
        remove_abandoned()
        self.name = f"{_owner()}-{next(_numbers)}"
        self.machines: list[int] = []
        self.directory = directory_of(self.name)
        self.directory.mkdir()
        self._watcher = _watch(self.name)
        self._doors: list[Door] = []
        self._add(SWITCH)
        switch = self.namespace(SWITCH)
        ip("-n", switch, "link", "add", "br0", "type", "bridge")
        ip("-n", switch, "addr", "add", f"{GATEWAY}/24", "dev", "br0")
        ip("-n", switch, "link", "set", "br0", "up")

    def namespace(self, machine: int | str) -> str:
        """The name of a machine's namespace."""
        return f"{self.name}-{machine}"

    def address(self, machine: int) -> str:
        """The address of a machine."""
        return f"{SUBNET}.{machine}"

    def add_machine(self) -> int:
        """Join one more machine to the bridge."""
        machine = len(self.machines) + 1
        self.machines.append(machine)
        self._add(machine)
        own, switch = self.namespace(machine), self.namespace(SWITCH)
        ip("link", "add", "name", "eth0", "netns", own, "type", "veth", "peer", "name", f"p{machine}", "netns", switch)
        ip("-n", switch, "link", "set", f"p{machine}", "master", "br0", "up")
        ip("-n", own, "addr", "add", f"{self.address(machine)}/24", "dev", "eth0")
        ip("-n", own, "link", "set", "eth0", "up")
        return machine

    def command(self, machine: int, *words: str) -> list[str]:
        """The command that runs a program on a machine; `ip netns exec` would hide the control groups."""
        return ["nsenter", f"--net={NAMESPACES / self.namespace(machine)}", "--", *words]

    def cut(self, machine: int) -> None:
        """Cut the link of a machine: nobody is told, packets just get lost."""
        ip("-n", self.namespace(SWITCH), "link", "set", f"p{machine}", "down")

    def mend(self, machine: int) -> None:
        """Mend the link of a machine."""
        ip("-n", self.namespace(SWITCH), "link", "set", f"p{machine}", "up")

    def kill(self, machine: int) -> None:
        """Kill every process of a machine at once."""
        kill_all(self.namespace(machine))

    def forward(self, port: int) -> Door:
        """Give the machines a server that listens on this machine's loopback: at GATEWAY, on the same port."""
        self._doors.append(Door(NAMESPACES / self.namespace(SWITCH), GATEWAY, port))
        return self._doors[-1]

    def close(self) -> None:
        """Kill all processes of all machines, and remove the namespaces with their links, and the directory."""
        for door in self._doors:
            door.close()
        remove_network(self.name)
        self._watcher.communicate()

    def _add(self, machine: int | str) -> None:
        name = self.namespace(machine)
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")


def ip(*words: str) -> str:
    """What iproute2 says; it has to succeed."""
    ended = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"ip {' '.join(words)} failed: {ended.stderr.strip()}")
    return ended.stdout


def processes(namespace: str) -> list[int]:
    """The processes in a namespace."""
    return [int(pid) for pid in ip("netns", "pids", namespace).split()]


def kill_all(namespace: str) -> None:
    """Kill every process in a namespace, those that they start meanwhile, too: stopped first, so that none sees it."""
    end = time.monotonic() + GONE_SECONDS
    while found := processes(namespace):
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if time.monotonic() > end:
            raise RuntimeError(f"the processes {found} do not end")
        time.sleep(0.01)


def remove_network(name: str) -> None:
    """Remove a network with all that is in it: processes, namespaces, directory."""
    for path in NAMESPACES.glob(f"{name}-*"):
        kill_all(path.name)
    for path in NAMESPACES.glob(f"{name}-*"):
        ip("netns", "delete", path.name)
    shutil.rmtree(directory_of(name), ignore_errors=True)


def remove_abandoned() -> None:
    """Remove the networks of tests that have ended without having done so."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}-*-*-*"):
        pid, born, _ = path.name.removeprefix(f"{PREFIX}-").split("-")
        if _born(int(pid)) != int(born):
            with contextlib.suppress(RuntimeError):  # another test may be at it, too
                remove_network(path.name)


def directory_of(name: str) -> Path:
    """The directory of a network; a short path, because the name of a socket may have only 107 characters."""
    return Path(tempfile.gettempdir(), name)


def _watch(name: str) -> subprocess.Popen[bytes]:
    """A process that removes the network when this one ends, however it ends: then its standard input does."""
    script = f"import sys; sys.stdin.read(); from {__name__} import remove_network; remove_network({name!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, start_new_session=True)


def _owner() -> str:
    return f"{PREFIX}-{os.getpid()}-{_born(os.getpid())}"


def _born(pid: int) -> int | None:
    """When a process started, by the kernel's clock; None if there is none of that number."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (FileNotFoundError, ProcessLookupError):
        return None
