"""Clients of object stores (obstore), one for each bucket and process, and what is said when they fail.

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

from tokenmill import marks
from tokenmill.errors import SourceError, StorageError, TokenmillError, UsageError
from tokenmill.storage.addresses import split_url

if TYPE_CHECKING:
    from obstore.store import ObjectStore

RETRIES = {
    "max_retries": 1000,  # so that the time decides: pauses are random, and ten of them may be over in three seconds
    "retry_timeout": timedelta(seconds=180),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=5), "base": 3},
}
"""A server that is restarted, or says that it is busy, has three minutes to come back."""

# Only an endpoint that somebody has set can be without TLS.
OPTIONS = {"allow_http": True, "connect_timeout": "10s", "timeout": "30s", "user_agent": "tokenmill"}

FIRST_RETRIES = {
    "max_retries": 1000,
    "retry_timeout": timedelta(seconds=9),
    "backoff": {"init_backoff": timedelta(milliseconds=200), "max_backoff": timedelta(seconds=1), "base": 2},
}
FIRST_OPTIONS = {**OPTIONS, "connect_timeout": "8s", "timeout": "8s"}
"""One who has never answered is more likely to have another address than to be restarted: he is asked for seconds."""

EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired", "InvalidToken")
REFUSED = (
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AuthenticationFailed",
    "AuthorizationFailure",
)
INSTANCE = ("/latest/api/token", "/latest/meta-data", "metadata/identity", "computeMetadata")
"""Where an instance in a cloud gets its credentials: what is asked when there are no others."""

CREDENTIALS = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE; AWS_SKIP_SIGNATURE=true if it is public.",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS, or run `gcloud auth application-default login`.",
    "az": "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY, or AZURE_STORAGE_SAS_TOKEN.",
}
ENDPOINTS = r"AWS_ENDPOINT(_URL(_S3)?)?|AZURE_(STORAGE_)?ENDPOINT|endpoint_url of the profile"
RESUME = "Run the same command again: what is committed stays."


def client(url: str) -> tuple[ObjectStore, str]:
    """The client for a URL's bucket, and the key in it."""
    scheme, bucket, key = split_url(url)
    if not bucket:
        raise UsageError(f"{url} names no bucket", f"Write {scheme}://BUCKET/FOLDER.")
    with _one_at_a_time:
        return _client(os.getpid(), scheme, bucket), key


_one_at_a_time = threading.Lock()


@functools.lru_cache(maxsize=64)
def _client(_process: int, scheme: str, bucket: str) -> ObjectStore:
    """A client belongs to the process that made it: its threads do not survive a fork."""
    if not marks.is_supervised():  # the one it works for has done it, and a server may be restarted now
        _greet(scheme, bucket)
    return _new_client(scheme, bucket, OPTIONS, RETRIES)


def _greet(scheme: str, bucket: str) -> None:
    """Raise if there is nobody, or nothing to show him; whatever he answers will be heard with the first request."""
    import obstore  # noqa: PLC0415 - not for local runs

    try:
        obstore.head(_new_client(scheme, bucket, FIRST_OPTIONS, FIRST_RETRIES), "greeting")
    except obstore.exceptions.GenericError as error:
        raise failed(f"{scheme}://{bucket}", "reach", error) from None
    except (obstore.exceptions.BaseError, FileNotFoundError):
        pass


def _new_client(scheme: str, bucket: str, options: Any, retries: Any) -> ObjectStore:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - not for local runs
    from obstore.store import AzureStore, GCSStore, S3Store  # noqa: PLC0415

    common: Any = {"client_options": options, "retry_config": retries}
    profile = _profile() if scheme == "s3" else {}
    for name, address in {**os.environ, "endpoint_url of the profile": profile.get("endpoint")}.items():
        if re.fullmatch(ENDPOINTS, name) and address:
            _check_address(name, address)
    try:
        if scheme == "s3":
            return S3Store(bucket, **profile, **common)
        return (GCSStore if scheme == "gs" else AzureStore)(bucket, **common)
    except (BaseError, ValueError) as error:
        raise StorageError(f"{scheme}://{bucket} cannot be used", f"reason       {reason(error)}") from None


def _check_address(name: str, address: str) -> None:
    """Refuse what is no address of a server, which would end the client; it is not shown, as it may hold a password."""
    if not re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", address):
        raise UsageError(
            f"{name} is not the address of a server",
            "expected     such as https://host:9000, without a user name or password",
        )


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
        raise StorageError(f"there is no AWS profile {name!r}", "See AWS_PROFILE and the files in ~/.aws.")
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
        raise StorageError(f"{path} cannot be read", f"reason       line {getattr(error, 'lineno', '?')}") from None
    return dict(parser[name]) if parser.has_section(name) else {}


def reason(error: BaseException) -> str:
    """What a client says went wrong, in one line, without what it adds for its developers, nor any signature."""
    text = str(error).partition("\n\nDebug source")[0]
    before, _, answer = text.partition("<?xml")
    told = [match[1] for tag in ("Code", "Message") if (match := re.search(f"<{tag}>([^<]*)</{tag}>", answer))]
    return re.sub(r"\?\S*", "", " ".join([before.strip(), *told]).replace("\n", " "))[:600]


def failed(url: str, doing: str, error: BaseException) -> TokenmillError:
    """The error for an object that could not be read, written or listed: what happened, and what to do.

    Raise it from None: what the client says in full has the server's answer in it, in which S3 repeats session tokens.
    """
    said = reason(error)
    if isinstance(error, FileNotFoundError) or "NoSuchKey" in said:
        return SourceError(f"there is no {url}")
    if "NoSuchBucket" in said or "ContainerNotFound" in said:
        return StorageError(f"there is no bucket for {url}", "Make it first, or check its name.")
    details = [f"reason       {said}"]
    if any(path in said for path in INSTANCE):
        return StorageError(f"there are no credentials for {url}", *details, CREDENTIALS[split_url(url)[0]])
    if any(code in said for code in EXPIRED):
        return StorageError("the credentials have expired", f"at           {url}", *details, f"Renew them. {RESUME}")
    if type(error).__name__ in ("PermissionDeniedError", "UnauthenticatedError") or any(
        code in said for code in REFUSED
    ):
        advice = "Check the credentials, and what they allow."
        return StorageError(f"the object store does not let us {doing} {url}", *details, f"{advice} {RESUME}")
    address = "Check the network, and the address of the endpoint if you have set one."
    return StorageError(f"cannot {doing} {url}", *details, address if doing == "reach" else RESUME)
