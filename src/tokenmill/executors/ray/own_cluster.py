"""A private Ray cluster of one node: on loopback only, with a token of its own, and its files in a private directory.

A process that can connect to a Ray cluster can run code on it. By default Ray listens on all interfaces, and keeps its
token in a file that every user can read. Ray has no option for a cluster on loopback: this module uses Ray's switch
for platforms without clusters, and checks the result, in case another release of Ray ignores the switch.

By default Ray's files are in a directory that every user can write to, so links of another user could lead Ray to files
of this one. Ray makes the directory that it is given writable for all, too, so it gets one inside a private directory.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from tokenmill.errors import RunFailed, UsageError

LOOPBACK = "127.0.0.1"

# Length of the cluster's secret token.
TOKEN_BYTES = 32

# The first release of Ray with token authentication.
MIN_RAY = "2.52"

# The path of a Unix socket has at most 107 bytes on Linux and 103 on macOS. Ray puts its sockets into
# session_DATE_TIME_MICROSECONDS_PID/sockets below its directory, under names of up to 12 characters.
MAX_DIRECTORY_BYTES = (103 if sys.platform == "darwin" else 107) - len(
    "/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
)
PREFIX = "tm-"

# The processes of Ray without which its node is dead.
VITAL = ("gcs_server", "raylet")

# Ray's environment variables for the way of authentication and the token.
AUTHENTICATION = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")


def address_to_join(ray: Any) -> str | None:
    """The cluster that RAY_ADDRESS names, or the last one that this user or root started here; None without.

    Ray has the address in a file that every user can replace, and a cluster can run code in each process that joins.
    """
    private = ray._private  # noqa: SLF001 - ray.init decides by these functions
    if not os.environ.get("RAY_ADDRESS") and not _is_trusted(private.utils.get_ray_address_file(None)):
        return None
    address: str | None = private.services.canonicalize_bootstrap_address(None)
    return address


def _is_trusted(path: str) -> bool:
    """Whether a path is a file of this user or root, not a link, that not every user can write to."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_ours = status.st_uid in (os.geteuid(), 0)
    return stat.S_ISREG(status.st_mode) and is_ours and not status.st_mode & stat.S_IWOTH


def _can_be_replaced_in(directory: str) -> bool:
    """Whether another user can rename a directory of this user there: all can write to it, and it is not sticky."""
    with contextlib.suppress(OSError):
        mode = os.stat(directory).st_mode
        return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX
    return False


def make_directory(environment: Mapping[str, str]) -> str:
    """Make a directory for the files of a cluster, that only this user can enter, where Ray would have them.

    Raises UsageError if the paths of sockets in it would be too long.
    """
    parents = [parent for name in ("RAY_TMPDIR", "TMPDIR") if (parent := environment.get(name))]
    longest = MAX_DIRECTORY_BYTES - len(f"/{PREFIX}12345678/ray")
    fitting = (path for path in parents if len(os.fsencode(path)) <= longest and not _can_be_replaced_in(path))
    parent = next(fitting, "/tmp")  # noqa: S108 - the directory in it is private
    try:
        return tempfile.mkdtemp(prefix=PREFIX, dir=os.path.abspath(parent))  # with mode 0700
    except OSError as error:
        raise UsageError(
            "Ray has no directory for its files",
            f"directory    {parent}",
            f"reason       {error.strerror or error}",
            f"Set RAY_TMPDIR to a directory whose path has at most {longest} characters.",
        ) from error


class OwnCluster:
    """The cluster, whose processes are children of this one, until `close`."""

    def __init__(self, ray: Any, options: dict[str, Any]) -> None:
        _check_release(ray)
        self._ray = ray
        self._constants = ray._private.ray_constants  # noqa: SLF001 - there is no option for what is set there
        self._environment_before = {name: os.environ.get(name) for name in AUTHENTICATION}
        self._reachable_before = self._constants.ENABLE_RAY_CLUSTER
        self._directory = make_directory(os.environ)
        with contextlib.ExitStack() as undo:
            undo.callback(self.close)
            _authenticate(ray, "token", secrets.token_hex(TOKEN_BYTES))
            self._constants.ENABLE_RAY_CLUSTER = False
            _start(ray, {**options, "_temp_dir": os.path.join(self._directory, "ray")})
            self._check_is_private()
            undo.pop_all()

    def dead_processes(self) -> list[str]:
        """The names of the vital processes that have ended."""
        node = self._ray._private.worker._global_node  # noqa: SLF001 - Ray itself reports a dead node late
        return [] if node is None else [name for name, _ in node.dead_processes() if name in VITAL]

    def close(self) -> None:
        """End the cluster, remove its files, and restore Ray's settings in this process."""
        self._ray.shutdown()
        shutil.rmtree(self._directory, ignore_errors=True)
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
