"""A private Ray cluster of one node: on loopback only, and with a token of its own.

A process that can connect to a Ray cluster can run code on it. By default Ray listens on all interfaces, and keeps its
token in a file that every user can read. Ray has no option for a cluster on loopback: this module uses Ray's switch
for platforms without clusters, and checks the result, in case another release of Ray ignores the switch.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
from importlib.util import find_spec
from typing import Any

from tokenmill.errors import RunFailed, UsageError

LOOPBACK = "127.0.0.1"

# Length of the cluster's secret token.
TOKEN_BYTES = 32

# The first release of Ray with token authentication.
MIN_RAY = "2.52"

# The processes of Ray without which its node is dead.
VITAL = ("gcs_server", "raylet")

# Ray's environment variables for the way of authentication and the token.
AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


def is_needed(ray: Any) -> bool:
    """Whether there is no cluster to join: RAY_ADDRESS names none, and none was started on this machine."""
    return ray._private.services.canonicalize_bootstrap_address(None) is None  # noqa: SLF001 - ray.init decides by it


class OwnCluster:
    """The cluster, whose processes are children of this one, until `close`."""

    def __init__(self, ray: Any, options: dict[str, Any]) -> None:
        _check_release(ray)
        self._ray = ray
        self._constants = ray._private.ray_constants  # noqa: SLF001 - there is no option for what is set there
        self._environment_before = {name: os.environ.get(name) for name in AUTHENTICATION}
        self._reachable_before = self._constants.ENABLE_RAY_CLUSTER
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            _authenticate(ray, "token", secrets.token_hex(TOKEN_BYTES))
            self._constants.ENABLE_RAY_CLUSTER = False
            _start(ray, options)
            self._check_is_private()
            undo.pop_all()

    def dead_processes(self) -> list[str]:
        """The names of the vital processes that have ended."""
        node = self._ray._private.worker._global_node  # noqa: SLF001 - Ray itself reports a dead node late
        return [] if node is None else [name for name, _ in node.dead_processes() if name in VITAL]

    def close(self) -> None:
        """End the cluster, and restore Ray's settings in this process."""
        self._ray.shutdown()
        self._constants.ENABLE_RAY_CLUSTER = self._reachable_before
        _authenticate(self._ray, *self._environment_before.values())

    def _check_is_private(self) -> None:
        native = self._ray._raylet  # noqa: SLF001 - Ray has no other way to ask
        has_token = native.get_authentication_mode() == native.AuthenticationMode.TOKEN
        addresses = [node["NodeManagerAddress"] for node in self._ray.nodes()]
        is_local = all(ipaddress.ip_address(address).is_loopback for address in addresses)
        if not (is_local and has_token):
            raise RunFailed(
                "Ray started a cluster that other machines can reach, so it was ended",
                f"listens on   {', '.join(addresses)}",
                f"ray          {self._ray.__version__}",
                "Start a cluster with `ray start --head` and give its address, or install another release of Ray.",
            )


def _check_release(ray: Any) -> None:
    """Refuse a Ray without token authentication."""
    if find_spec("ray._private.authentication") is None:
        raise UsageError(
            f"Ray {ray.__version__} has no token authentication, so tokenmill starts no cluster with it",
            f"Install a newer one: pip install 'ray>={MIN_RAY}'",
        )


def _start(ray: Any, options: dict[str, Any]) -> None:
    try:
        ray.init(address="local", _node_ip_address=LOOPBACK, **options)
    except Exception as error:  # noqa: BLE001 - Ray raises Exception if its node does not start in 30 s
        cause = TimeoutError(str(error)) if "timed out" in str(error) else error
        raise RunFailed(
            "Ray did not start on this machine",
            f"reason       {str(error).strip().partition(chr(10))[0]}",
            "A busy machine can be the cause: run the same command again. --on local needs no Ray.",
        ) from cause


def _authenticate(ray: Any, mode: str | None, token: str | None) -> None:
    """Set how this process and its children authenticate; Ray reads the environment only once, at its import."""
    for name, value in zip(AUTHENTICATION, (mode, token), strict=True):
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    native = ray._raylet  # noqa: SLF001 - Ray has no other way to read it again
    native.Config.initialize("")
    native.AuthenticationTokenLoader.instance().reset_cache()
