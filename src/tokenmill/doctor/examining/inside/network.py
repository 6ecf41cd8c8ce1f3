"""Refuses this process the network, and keeps the names of the hosts it asked for. It may ask this machine itself."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from typing import Any

PROXIES = {"http_proxy", "https_proxy", "all_proxy"}


class Refusal:
    """Refuses from the moment it is made. `hosts` are those that were asked for, `proxy` one that was set."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.proxy: str | None = None
        sys.addaudithook(self._audit)

    def forget_proxies(self) -> None:
        """Take proxies out of the environment, so that the hosts behind them are asked for by name."""
        for name in [name for name in os.environ if name.lower() in PROXIES]:
            self.proxy = os.environ.pop(name) or self.proxy

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo" and not is_here(arguments[0]):
            self._note(arguments[0], arguments[1])
            raise socket.gaierror(socket.EAI_AGAIN, "the network is refused while tokenmill doctor looks")
        if event == "socket.connect":
            address = arguments[1]
            if isinstance(address, tuple) and not is_here(address[0]):
                self._note(address[0], address[1])
                raise OSError(errno.ENETUNREACH, "the network is refused while tokenmill doctor looks")

    def _note(self, host: Any, port: Any) -> None:
        name = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
        told = f"{name}:{port}" if port else name
        if told not in self.hosts:
            self.hosts.append(told)


def is_here(host: Any) -> bool:
    """Whether a host is this machine."""
    name = host.decode(errors="replace") if isinstance(host, bytes) else host
    if name in {None, "", "localhost"}:
        return True
    try:
        address = ipaddress.ip_address(str(name).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
