"""Clients of object stores (obstore), one for each bucket and process.

Credentials come from where the store's other tools find them: the environment, the instance, and for S3 the keys of a
profile. They are handed to the client and nowhere else.
"""

from __future__ import annotations

import configparser
import functools
import os
import re
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from tokenmill import marks, settings
from tokenmill.errors import FAILED, StorageError
from tokenmill.storage.addresses import check, split_url
from tokenmill.storage.failures import EXPIRED, MISSING_BUCKET, REFUSED, code, failed, is_final, reason
from tokenmill.storage.waiting import heard

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["client", "failed", "reason", "writer"]

RETRIES = {
    "max_retries": 1000,  # so that the time decides: pauses are random, and ten of them may be over in three seconds
    "retry_timeout": timedelta(seconds=180),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 3},
}
"""A server that is restarted, or says that it is busy, has three minutes to come back."""

# Only an endpoint that somebody has set can be without TLS.
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

ENDPOINTS = r"AWS_ENDPOINT(_URL(_S3)?)?|AZURE_(STORAGE_)?ENDPOINT|endpoint_url of the profile"


def client(url: str) -> tuple[ObjectStore, str]:
    """The client for a URL's bucket, and the key in it."""
    scheme, bucket, key = split_url(url)
    if not re.fullmatch("[^:@]+", bucket):
        check(url)
    with _one_at_a_time:
        return _client(os.getpid(), scheme, bucket), key


_one_at_a_time = threading.Lock()


@functools.lru_cache(maxsize=64)
def _client(_process: int, scheme: str, bucket: str) -> ObjectStore:
    """A client belongs to the process that made it: its threads do not survive a fork."""
    if not marks.is_supervised():  # the one it works for has done it, and a server may be restarted now
        _greet(scheme, bucket)
    return _new_client(scheme, bucket, OPTIONS, RETRIES)


def writer(url: str) -> ObjectStore:
    """A client for a URL's bucket that has the patience to send something over a slow line."""
    scheme, bucket, _ = split_url(url)
    with _one_at_a_time:
        return _writer(os.getpid(), scheme, bucket)


@functools.lru_cache(maxsize=64)
def _writer(_process: int, scheme: str, bucket: str) -> ObjectStore:
    return _new_client(scheme, bucket, WRITING_OPTIONS, WRITING_RETRIES)


def _greet(scheme: str, bucket: str) -> None:
    """Raise if there is nobody, nothing to show him, or no such bucket.

    Whatever else he answers will be heard with the first request: he may let us read other objects.
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
        heard(obstore.get, store, "greeting", options={"range": (0, 1)})  # not HEAD, whose answers have no words
    except (obstore.exceptions.BaseError, FileNotFoundError) as error:
        return error
    return None


def _new_client(scheme: str, bucket: str, options: Any, retries: Any) -> ObjectStore:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - not for local runs
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415

    common: Any = {"client_options": options, "retry_config": retries}
    profile = _profile() if scheme == "s3" else {}
    for name, address in {**os.environ, "endpoint_url of the profile": profile.get("endpoint")}.items():
        if re.fullmatch(ENDPOINTS, name) and address:
            settings.check_server(name, address)
    try:
        if scheme == "s3":
            return S3Store(bucket, **profile, **common)
        return (GCSStore if scheme == "gs" else AzureStore)(bucket, **common)
    except (BaseError, ValueError) as error:
        raise failed(f"{scheme}://{bucket}", "use", error) from None


def _profile() -> dict[str, Any]:
    """The keys and the region of the AWS profile, where the environment has none."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        return {}
    name = os.environ.get("AWS_PROFILE", "default")
    home = os.path.expanduser("~/.aws")
    keys = _section(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", f"{home}/credentials"), name)
    config = _section(
        os.environ.get("AWS_CONFIG_FILE", f"{home}/config"), name if name == "default" else f"profile {name}"
    )
    if "AWS_PROFILE" in os.environ and not keys and not config:
        raise StorageError(
            f"there is no AWS profile {name!r}", "See AWS_PROFILE and the files in ~/.aws.", exit_code=FAILED
        )
    found = {**config, **keys}
    names = {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    }
    if "AWS_REGION" not in os.environ and "AWS_DEFAULT_REGION" not in os.environ:
        names["region"] = "region"
    if not any(name.startswith("AWS_ENDPOINT") for name in os.environ):
        names["endpoint"] = "endpoint_url"
    return {name: found[key] for name, key in names.items() if key in found}


def _section(path: str, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser()
    try:
        parser.read(path)
    except configparser.Error as error:
        reason = f"reason       line {getattr(error, 'lineno', '?')}"
        raise StorageError(f"{path} cannot be read", reason, exit_code=FAILED) from None
    return dict(parser[name]) if parser.has_section(name) else {}
