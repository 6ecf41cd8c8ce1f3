"""Settings of storage that a caller gives: an endpoint, its region, the cache of Hub files, and unencrypted requests.

They are a value of the current context (a ContextVar): two threads may have two endpoints. Folders and files keep the
settings that they were opened with. Workers receive them with their function. The environment is read, and written
only by a process that works for another one, with the variables of that process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from tokenmill.system import environment
from tokenmill.system.arguments import checked

Args = ParamSpec("Args")
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Settings of storage. For those that are None, the environment decides."""

    endpoint: str | None = None
    region: str | None = None
    cache: str | None = None
    allow_http: bool | None = None

    def variables(self, prefix: str) -> dict[str, str]:
        """The environment variables with a prefix, as these settings change them."""
        values = {name: os.environ.get(name, "") for name in list(os.environ) if name.startswith(prefix)}
        given: dict[str, str] = {}
        if self.endpoint is not None:
            values = {name: value for name, value in values.items() if name not in environment.ENDPOINTS}
            given[environment.ENDPOINT] = self.endpoint
        if self.region is not None:
            given[environment.REGION] = self.region
        return values | {name: value for name, value in given.items() if name.startswith(prefix)}

    def over(self, others: StorageSettings) -> StorageSettings:
        """These settings, and of the others those that are None here."""
        given = {name: value for name, value in dataclasses.asdict(self).items() if value is not None}
        return dataclasses.replace(others, **given)

    @property
    def cache_directory(self) -> str | None:
        """The directory that caches whole files of the Hub; None if it is not set."""
        return environment.cache() if self.cache is None else self.cache

    @property
    def allows_http(self) -> bool:
        """Whether credentials may be sent without encryption."""
        return environment.allows_http() if self.allow_http is None else self.allow_http

    def check_encrypted(self, name: str, address: str) -> None:
        """Raise UsageError if an address would receive credentials without encryption, and that is not allowed."""
        if not self.allows_http:
            environment.check_encrypted(name, address)


# What another process needs to read and write as this one does: variables, and the settings of a caller.
Shared = tuple[dict[str, str], StorageSettings]

DEFAULT = StorageSettings()

_current: ContextVar[StorageSettings] = ContextVar("tokenmill storage settings", default=DEFAULT)


def current() -> StorageSettings:
    """The settings of this context."""
    return _current.get()


@contextlib.contextmanager
def use(settings: StorageSettings) -> Iterator[None]:
    """Use exactly these settings in a block."""
    token = _current.set(settings)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the garbage collector may end a block in another context
            _current.reset(token)


def bind(function: Callable[Args, Value]) -> Callable[Args, Value]:
    """A function that has the settings of this context in any thread: a new thread has none."""
    return functools.partial(run, current(), function)


def run(settings: StorageSettings, function: Callable[Args, Value], *args: Args.args, **kwargs: Args.kwargs) -> Value:
    """Call a function with these settings."""
    with use(settings):
        return function(*args, **kwargs)


@checked
@contextlib.contextmanager
def using(
    *,
    endpoint: str | None = None,
    region: str | None = None,
    cache: str | os.PathLike[str] | None = None,
    allow_http: bool | None = None,
) -> Iterator[None]:
    """Settings of storage for a `with` block: an S3-compatible store, its region, and a cache for files of the Hub.

    They apply to the calls of tokenmill in the block, in this thread, and to their workers. A store or loader that is
    opened in the block keeps them. The environment of the process is not changed. A thread that you start has no
    settings: use another block in it.

    Args:
        endpoint: The URL of an S3-compatible store. Default: `AWS_ENDPOINT_URL`, or Amazon.
        region: The region of the bucket. Default: `AWS_REGION`, or the region of the profile.
        cache: A directory that keeps whole files of the Hub. Default: only the bytes that are needed are fetched.
        allow_http: Send credentials to an http:// endpoint on another machine. Default: this raises.

    with tokenmill.using(endpoint="http://localhost:9000"):
        tokenmill.prepare("s3://bucket/data", ...)
    """
    if endpoint is not None:
        environment.check_server("--endpoint", endpoint)
    if region is not None:
        environment.check_region("--region", region)
    directory = None if cache is None else environment.directory("--cache", os.fspath(cache))
    with use(StorageSettings(endpoint, region, directory, allow_http).over(current())):
        yield


def for_workers() -> Shared:
    """All settings of storage, with credentials, for workers on this machine that are already running."""
    return environment.of_storage(), current()


def adopt(shared: Shared) -> None:
    """Use exactly the settings that `for_workers` returned in the process that this worker works for."""
    variables, settings = shared
    environment.replace(variables)
    _current.set(settings)


def exported() -> Shared:
    """The settings that other machines of this run need. Keys and tokens are excluded: each machine has its own."""
    return environment.exported(), current()
