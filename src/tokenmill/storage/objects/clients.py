"""Clients of object stores (obstore), one for each bucket, set of settings and process.

A client is made anew when an endpoint, a region or credentials change, in the settings, the environment or a profile.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tokenmill.storage.addresses import check, split_url
from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.objects import credentials
from tokenmill.storage.objects.errors import EXPIRED, MISSING_BUCKET, REFUSED, code, failed, is_final, is_slow_down
from tokenmill.system import environment, status_page
from tokenmill.system.storage_settings import StorageSettings, current

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# The client itself repeats only uploads, because it sends their pieces. `request` repeats everything else.
RETRIES: dict[str, Any] = {
    "max_retries": 1000,  # the time decides: pauses are random, and ten of them may be over in three seconds
    "retry_timeout": timedelta(seconds=400),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 3},
}
NO_RETRIES: dict[str, Any] = {**RETRIES, "max_retries": 0}

# Only a configured endpoint can be without TLS, and `credentials.check_endpoints` refuses those that must not be.
OPTIONS: dict[str, Any] = {
    "allow_http": True,
    "connect_timeout": "10s",
    "timeout": "30s",
    "user_agent": "tokenmill",
}

# The timeout includes the time to send the body, and several bodies of some megabytes may share a slow line.
WRITING_OPTIONS = {**OPTIONS, "timeout": "300s"}

# First contact fails fast: a server that never answered probably has the wrong address.
FIRST_OPTIONS = {**OPTIONS, "connect_timeout": "5s", "timeout": "5s"}
FIRST_RETRIES = {
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=9),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=1), "base": 2},
}

_lock = threading.Lock()  # only one thread makes or looks up a client


def _limits(options: dict[str, Any], retries: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options and retries of a client, with the limits that the environment sets."""
    timeout = environment.timeout_seconds(float(options["timeout"].removesuffix("s")))
    seconds = environment.retry_seconds(retries["retry_timeout"].total_seconds())
    return {**options, "timeout": f"{timeout:g}s"}, {**retries, "retry_timeout": timedelta(seconds=seconds)}


def client(url: str, settings: StorageSettings) -> tuple[ObjectStore, str]:
    """The client for a URL's bucket that reads, lists and deletes, and the key in the bucket."""
    scheme, bucket, key = split_url(url)
    if not re.fullmatch("[^:@]+", bucket):
        check(url)
    # Not in a worker: its driver has checked the server, which may be restarting now.
    if not status_page.is_supervised():
        with _lock:
            _check_reachable(os.getpid(), scheme, bucket, settings, credentials.location(scheme, settings))
    return _get_client("reader", scheme, bucket, settings), key


def _get_client(kind: str, scheme: str, bucket: str, settings: StorageSettings) -> ObjectStore:
    identity = credentials.identity(scheme, settings)
    with _lock:
        return _cached_client(os.getpid(), kind, scheme, bucket, settings, identity)


@functools.lru_cache(maxsize=192)
def _cached_client(
    _process: int, kind: str, scheme: str, bucket: str, settings: StorageSettings, _identity: str
) -> ObjectStore:
    """Cached per process: the threads of a client do not survive a fork."""
    options, retries = _limits(OPTIONS if kind == "reader" else WRITING_OPTIONS, RETRIES)
    return _new_client(scheme, bucket, settings, options, retries if kind == "writer" else NO_RETRIES)


class BucketClients:
    """The clients of a folder, with the settings of when it was opened.

    They use renewed credentials, but keep their server if the environment names another one.
    """

    def __init__(self, root: str) -> None:
        self._root = root
        self._scheme, self._bucket, _ = split_url(root)
        self._settings = current()
        self._location = credentials.location(self._scheme, self._settings)
        self._clients = {"reader": client(root, self._settings)[0]}

    @property
    def reader(self) -> ObjectStore:
        """The client for everything but writing."""
        return self._get("reader")

    @property
    def writer(self) -> ObjectStore:
        """The client for writing. Its timeouts allow large requests over a slow line."""
        return self._get("writer")

    @property
    def creator(self) -> ObjectStore:
        """The client for conditional writes. It does not retry: its caller decides which answers are final."""
        return self._get("creator")

    def _get(self, kind: str) -> ObjectStore:
        if kind not in self._clients or credentials.location(self._scheme, self._settings) == self._location:
            self._clients[kind] = (
                client(self._root, self._settings)[0]
                if kind == "reader"
                else _get_client(kind, self._scheme, self._bucket, self._settings)
            )
        return self._clients[kind]


@functools.lru_cache(maxsize=64)
def _check_reachable(
    _process: int, scheme: str, bucket: str, settings: StorageSettings, _location: tuple[str, ...]
) -> None:
    """Raise if the endpoint is unreachable, credentials are missing, or the bucket does not exist; once per server.

    Other errors are left to the first real request: other objects may be readable.
    """
    import obstore  # noqa: PLC0415 - not for local runs

    error = _probe(_new_client(scheme, bucket, settings, FIRST_OPTIONS, {**FIRST_RETRIES, "max_retries": 0}))
    if error is not None and is_slow_down(error):
        return
    if isinstance(error, obstore.exceptions.GenericError) and not is_final(error):
        error = _probe(_new_client(scheme, bucket, settings, FIRST_OPTIONS, FIRST_RETRIES))
    if error is None or code(error) == "InvalidRange":  # the object exists and is empty
        return
    if isinstance(error, obstore.exceptions.GenericError):
        raise failed(f"{scheme}://{bucket}", "reach", error)
    if code(error) in (*EXPIRED, *REFUSED, *MISSING_BUCKET):
        raise failed(f"{scheme}://{bucket}", "read", error)


def _probe(store: ObjectStore) -> Exception | None:
    """The error of a request for an object that need not exist. Not HEAD: its answers have no body to explain it."""
    import obstore  # noqa: PLC0415 - not for local runs

    try:
        interruptible(obstore.get, store, "greeting", options={"range": (0, 1)})
    except (obstore.exceptions.BaseError, FileNotFoundError) as error:
        return error
    return None


def _new_client(scheme: str, bucket: str, settings: StorageSettings, options: Any, retries: Any) -> ObjectStore:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - not for local runs
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415

    common: Any = {"client_options": options, "retry_config": retries}
    profile = credentials.profile(settings) if scheme == "s3" else {}
    credentials.check_endpoints(scheme, settings, profile)
    try:
        if scheme == "s3":
            return S3Store(bucket, **profile, **credentials.given(settings), **common)
        return (GCSStore if scheme == "gs" else AzureStore)(bucket, **common)
    except (BaseError, ValueError) as error:
        raise failed(f"{scheme}://{bucket}", "use", error) from None
