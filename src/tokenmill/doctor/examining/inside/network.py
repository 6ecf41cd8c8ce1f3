"""Blocks the network for this process, except to this machine, and records the hosts that it tried to reach."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import sys
from typing import Any

PROXIES = {"http_proxy", "https_proxy", "all_proxy"}


class NetworkBlock:
    """Blocks the network from its creation on. `hosts` were requested; `proxy` was set in the environment."""

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.proxy: str | None = None
        sys.addaudithook(self._audit)

    def remove_proxies(self) -> None:
        """Removes proxies from the environment, so that hosts behind them are requested by name."""
        for name in [name for name in os.environ if name.lower() in PROXIES]:
            self.proxy = os.environ.pop(name) or self.proxy

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo" and not is_local(arguments[0]):
            self._record(arguments[0], arguments[1])
            raise socket.gaierror(socket.EAI_AGAIN, "tokenmill doctor blocks the network during the examination")
        if event == "socket.connect":
            address = arguments[1]
            if isinstance(address, tuple) and not is_local(address[0]):
                self._record(address[0], address[1])
                raise OSError(errno.ENETUNREACH, "tokenmill doctor blocks the network during the examination")

    def _record(self, host: Any, port: Any) -> None:
        name = host.decode(errors="replace") if isinstance(host, bytes) else str(host)
        address = f"{name}:{port}" if port else name
        if address not in self.hosts:
            self.hosts.append(address)


def is_local(host: Any) -> bool:
    """Returns whether a host is this machine."""
    name = host.decode(errors="replace") if isinstance(host, bytes) else host
    if name in {None, "", "localhost"}:
        return True
    try:
        address = ipaddress.ip_address(str(name).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
