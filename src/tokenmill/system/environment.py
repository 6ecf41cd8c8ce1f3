"""What is said about storage beside addresses: where an S3-compatible store is, and where files of the Hub are kept.

They are environment variables, so that workers, wherever they are started, know them, too.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

from tokenmill.errors import UsageError

ENDPOINT = "AWS_ENDPOINT_URL"
REGION = "AWS_REGION"
CACHE = "TOKENMILL_CACHE"
ALLOW_HTTP = "TOKENMILL_ALLOW_HTTP"
OTHER_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3")
"""Other names of the endpoint: one of them would count instead of the one that was given."""

ENDPOINTS = (ENDPOINT, *OTHER_ENDPOINTS)
SHARED = (
    *ENDPOINTS,
    REGION,
    CACHE,
    ALLOW_HTTP,
    "AWS_DEFAULT_REGION",
    "AWS_ALLOW_HTTP",
    "AWS_SKIP_SIGNATURE",
    "AZURE_ALLOW_HTTP",
    "HF_ENDPOINT",
)
FAMILIES = ("AWS_", "AZURE_", "GOOGLE_", "HF_")
"""How the names of all variables begin that clients of object stores and of the Hub look at."""


def apply(
    *,
    endpoint: str | None = None,
    region: str | None = None,
    cache: str | None = None,
    allow_http: bool | None = None,
) -> None:
    """Set what was said, for this process and those it starts."""
    if endpoint is not None:
        check_server("--endpoint", endpoint)
        for name in OTHER_ENDPOINTS:
            os.environ.pop(name, None)
    said = {ENDPOINT: endpoint, REGION: region, CACHE: None if cache is None else _directory("--cache", cache)}
    said[ALLOW_HTTP] = None if allow_http is None else str(int(allow_http))
    os.environ.update({name: value for name, value in said.items() if value is not None})


def shared() -> dict[str, str]:
    """What other machines that work for this one have to know. Keys and tokens are not in it: they have their own."""
    return {name: os.environ[name] for name in SHARED if os.environ.get(name)}


def adopt(own: dict[str, str], given: dict[str, str]) -> None:
    """Use the settings of another machine, and this machine's own ones where it has none."""
    named = {name for name in ENDPOINTS if name in given}
    own = {name: value for name, value in own.items() if name not in ENDPOINTS or not named}
    for name in SHARED:
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in {**own, **given}.items() if name in SHARED})


def for_workers() -> dict[str, str]:
    """All settings of storage, credentials included, for workers of this machine that were started before."""
    return {name: value for name, value in os.environ.items() if name.startswith(FAMILIES) or name in SHARED}


def replace(environment: dict[str, str]) -> None:
    """Use exactly these settings of storage, which `for_workers` gave."""
    for name in for_workers().keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)


@contextlib.contextmanager
def using(
    *,
    endpoint: str | None = None,
    region: str | None = None,
    cache: str | None = None,
    allow_http: bool | None = None,
) -> Iterator[None]:
    """Use an S3-compatible store at `endpoint`, in a `region`, and keep whole files of the Hub in `cache`, in a block.

    An `endpoint` that begins with http:// and is not on this machine gets no credentials unless `allow_http`.

    with tokenmill.using(endpoint="http://localhost:9000"):
        tokenmill.prepare("s3://bucket/data", ...)
    """
    before = dict(os.environ)
    apply(endpoint=endpoint, region=region, cache=cache, allow_http=allow_http)
    try:
        yield
    finally:
        for name in (*ENDPOINTS, REGION, CACHE, ALLOW_HTTP):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def cache() -> str | None:
    """The directory in which whole files of the Hub are kept, if there is one."""
    named = os.environ.get(CACHE)
    return _directory(CACHE, named) if named else None


def check_server(name: str, address: str) -> None:
    """Refuse what is no address of a server, under the name it was given by; it is shown without any password."""
    if re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", address):
        return
    shown, advice = _without_secrets(address), "Write it such as https://host:9000, without a user name or password."
    if re.match(r"[^\s/@?#]+(/|$)", address) and not re.match("[A-Za-z0-9+.-]*:/", address):
        advice = f"{name} needs http:// or https:// before it: http://{shown}"
    raise UsageError(f"{name} is not the address of a server", f"given        {shown}", advice)


def allows_http() -> bool:
    """Whether credentials may be sent without encryption."""
    return os.environ.get(ALLOW_HTTP, "").lower() in ("1", "true", "yes")


def check_encrypted(name: str, address: str) -> None:
    """Refuse an address that would receive credentials without encryption; this machine itself may."""
    if not address.lower().startswith("http://") or allows_http() or _is_loopback(urlsplit(address).hostname or ""):
        return
    raise UsageError(
        f"{name} is not encrypted, and credentials would be sent to it",
        f"given        {address}",
        f"Use https://, or allow it with --allow-http, allow_http=True or {ALLOW_HTTP}=1.",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _directory(name: str, path: str) -> str:
    """The absolute path of a directory of this machine."""
    if path and not re.match("[A-Za-z][A-Za-z0-9+.-]*://|(s3|gs|az|hf):", path, re.IGNORECASE):
        return os.path.abspath(os.path.expanduser(path))
    raise UsageError(
        f"{name} is not a directory of this machine",
        f"given        {_without_secrets(path)}",
        "Whole files of the Hub are kept on a disk: name a directory such as ~/hub-files.",
    )


def _without_secrets(address: str) -> str:
    """An address without the user name and password, or the signature, that may be in it."""
    before, at, after = address.rpartition("@")
    if at:
        return "..." if re.search("[?#]", before + after) else f"...@{after}"
    return re.sub(r"(?<=[?#]).*", "...", address, count=1, flags=re.DOTALL) or "nothing"
