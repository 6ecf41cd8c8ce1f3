"""What a probe process keeps a script from: starting processes while it is loaded, and using the network."""

from __future__ import annotations

import contextlib
import errno
import importlib
import ipaddress
import multiprocessing.process
import os
import socket
import sys
from collections.abc import Iterator
from typing import Any

from tokenmill.doctor.examining.answers import Called, Raised

PROXIES = {"http_proxy", "https_proxy", "all_proxy"}


class ProcessStartBlocked(BaseException):
    """The script was about to start a process. A BaseException, so that scripts do not catch it."""


@contextlib.contextmanager
def blocked_starts(with_multiprocess: bool) -> Iterator[None]:
    """Blocks the start of processes, except of programs by `subprocess`; by multiprocess too, if it may be used."""
    classes: list[Any] = [multiprocessing.process.BaseProcess]
    if with_multiprocess:
        with contextlib.suppress(ImportError):
            classes.append(importlib.import_module("multiprocess.process").BaseProcess)
    originals = [process_class.start for process_class in classes]

    def block(_: object) -> None:
        raise ProcessStartBlocked

    for process_class in classes:
        process_class.start = block
    try:
        yield
    finally:
        for process_class, original in zip(classes, originals, strict=True):
            process_class.start = original


class NetworkBlock:
    """Blocks the network from its creation on, except to this machine.

    `hosts` were requested; `proxy` was set in the environment.
    """

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.proxy: str | None = None
        self.remove_proxies()
        sys.addaudithook(self._audit)

    def remove_proxies(self) -> None:
        """Removes proxies from the environment, so that hosts behind them are requested by name."""
        for name in [name for name in os.environ if name.lower() in PROXIES]:
            self.proxy = os.environ.pop(name) or self.proxy

    def failure(self, raised: tuple[Raised, ...], stage: str = "") -> Called:
        """Returns the answer for a function that could not be called, or an exception before that, at some stage."""
        return Called(None, raised, tuple(self.hosts), self.proxy, stage)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            host, port = arguments[:2]
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            host, port = arguments[1][:2]
        else:
            return
        name = host.decode(errors="replace") if isinstance(host, bytes) else str(host or "localhost")
        if _is_local(name):
            return
        address = f"{name}:{port}" if port else name
        if address not in self.hosts:
            self.hosts.append(address)
        message = "tokenmill doctor blocks the network during the examination"
        if event == "socket.getaddrinfo":
            raise socket.gaierror(socket.EAI_AGAIN, message)
        raise OSError(errno.ENETUNREACH, message)


def _is_local(name: str) -> bool:
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name == "localhost"
    return address.is_loopback or address.is_unspecified
