"""Clients of object stores (obstore), one for each bucket, set of settings and process.

A client is made again when an endpoint, a region or credentials change, in the environment or in a profile.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tokenmill.storage.addresses import check, split_url
from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.objects import credentials
from tokenmill.storage.objects.errors import EXPIRED, MISSING_BUCKET, REFUSED, code, failed, is_final, reason
from tokenmill.system import status_page

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["BucketClients", "client", "creator", "failed", "reason", "writer"]

RETRIES = {
    "max_retries": 1000,  # so that the time decides: pauses are random, and ten of them may be over in three seconds
    "retry_timeout": timedelta(seconds=180),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 3},
}
"""A server that is restarted, or says that it is busy, has three minutes to come back."""

# Only an endpoint that was set can be without TLS, and `credentials.check_endpoints` refuses those that must not be.
OPTIONS = {"allow_http": True, "connect_timeout": "10s", "timeout": "30s", "user_agent": "tokenmill"}

WRITING_OPTIONS = {**OPTIONS, "timeout": "300s"}
WRITING_RETRIES = {**RETRIES, "retry_timeout": timedelta(seconds=400)}
"""The time that a request may take includes that of its body: several of some megabytes may share a slow line."""

FIRST_RETRIES = {
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=9),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=1), "base": 2},
}
FIRST_OPTIONS = {**OPTIONS, "connect_timeout": "5s", "timeout": "5s"}
"""One who has never answered is more likely to have another address than to be restarted: he is asked for seconds."""


def client(url: str) -> tuple[ObjectStore, str]:
    """The client for a URL's bucket, and the key in it."""
    scheme, bucket, key = split_url(url)
    if not re.fullmatch("[^:@]+", bucket):
        check(url)
    identity = credentials.identity(scheme)
    with _one_at_a_time:
        if not status_page.is_supervised():  # the driver of a worker has done it, and a server may be restarted now
            _check_reachable(os.getpid(), scheme, bucket, credentials.location(scheme))
        return _client(os.getpid(), scheme, bucket, identity), key


_one_at_a_time = threading.Lock()


@functools.lru_cache(maxsize=64)
def _client(_process: int, scheme: str, bucket: str, _identity: str) -> ObjectStore:
    """A client belongs to the process that made it: its threads do not survive a fork."""
    return _new_client(scheme, bucket, OPTIONS, RETRIES)


def writer(url: str) -> ObjectStore:
    """A client for a URL's bucket that has the patience to send something over a slow line."""
    scheme, bucket, _ = split_url(url)
    with _one_at_a_time:
        return _writer(os.getpid(), scheme, bucket, credentials.identity(scheme))


@functools.lru_cache(maxsize=64)
def _writer(_process: int, scheme: str, bucket: str, _identity: str) -> ObjectStore:
    return _new_client(scheme, bucket, WRITING_OPTIONS, WRITING_RETRIES)


def creator(url: str) -> ObjectStore:
    """The same without retries, for conditional writes: the caller decides which answers are final."""
    scheme, bucket, _ = split_url(url)
    with _one_at_a_time:
        return _creator(os.getpid(), scheme, bucket, credentials.identity(scheme))


@functools.lru_cache(maxsize=64)
def _creator(_process: int, scheme: str, bucket: str, _identity: str) -> ObjectStore:
    return _new_client(scheme, bucket, WRITING_OPTIONS, {**WRITING_RETRIES, "max_retries": 0})


class BucketClients:
    """The clients of a folder. They stay with the server they were made for, and take credentials that are renewed."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._location = credentials.location(split_url(root)[0])
        self._made: dict[str, ObjectStore] = {}
        self._get("reader", lambda url: client(url)[0])

    @property
    def reader(self) -> ObjectStore:
        """The client for everything but writing."""
        return self._get("reader", lambda url: client(url)[0])

    @property
    def writer(self) -> ObjectStore:
        """The client for writing."""
        return self._get("writer", writer)

    @property
    def creator(self) -> ObjectStore:
        """The client for conditional writing."""
        return self._get("creator", creator)

    def _get(self, kind: str, make: Callable[[str], ObjectStore]) -> ObjectStore:
        if kind not in self._made or credentials.location(split_url(self._root)[0]) == self._location:
            self._made[kind] = make(self._root)
        return self._made[kind]


@functools.lru_cache(maxsize=64)
def _check_reachable(_process: int, scheme: str, bucket: str, _location: tuple[str, ...]) -> None:
    """Raise if the endpoint is unreachable, credentials are missing, or the bucket does not exist; once per server.

    Other answers are left to the first real request: other objects may be readable.
    """
    import obstore  # noqa: PLC0415 - not for local runs

    error = _asked(_new_client(scheme, bucket, FIRST_OPTIONS, {**FIRST_RETRIES, "max_retries": 0}))
    if isinstance(error, obstore.exceptions.GenericError) and not is_final(error):
        error = _asked(_new_client(scheme, bucket, FIRST_OPTIONS, FIRST_RETRIES))
    if error is None or code(error) == "InvalidRange":  # it is there, and empty
        return
    if isinstance(error, obstore.exceptions.GenericError):
        raise failed(f"{scheme}://{bucket}", "reach", error)
    if code(error) in (*EXPIRED, *REFUSED, *MISSING_BUCKET):
        raise failed(f"{scheme}://{bucket}", "read", error)


def _asked(store: ObjectStore) -> Exception | None:
    """What comes of asking for an object that nobody has."""
    import obstore  # noqa: PLC0415 - not for local runs

    try:
        interruptible(
            obstore.get, store, "greeting", options={"range": (0, 1)}
        )  # not HEAD, whose answers have no words
    except (obstore.exceptions.BaseError, FileNotFoundError) as error:
        return error
    return None


def _new_client(scheme: str, bucket: str, options: Any, retries: Any) -> ObjectStore:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - not for local runs
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415

    common: Any = {"client_options": options, "retry_config": retries}
    profile = credentials.profile() if scheme == "s3" else {}
    credentials.check_endpoints(scheme, profile)
    try:
        if scheme == "s3":
            return S3Store(bucket, **profile, **common)
        return (GCSStore if scheme == "gs" else AzureStore)(bucket, **common)
    except (BaseError, ValueError) as error:
        raise failed(f"{scheme}://{bucket}", "use", error) from None
