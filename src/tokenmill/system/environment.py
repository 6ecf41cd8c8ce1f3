"""The environment variables that set storage, and checks of what they contain.

They are read here. Only a process that works for another one writes them: it receives those of that process.
"""

from __future__ import annotations

import ipaddress
import os
import re
from urllib.parse import urlsplit

from tokenmill.errors import UsageError
from tokenmill.system.arguments import check_text

ENDPOINT = "AWS_ENDPOINT_URL"
REGION = "AWS_REGION"
CACHE = "TOKENMILL_CACHE"
ALLOW_HTTP = "TOKENMILL_ALLOW_HTTP"
RETRY_SECONDS = "TOKENMILL_RETRY_SECONDS"
TIMEOUT_SECONDS = "TOKENMILL_TIMEOUT_SECONDS"
# The largest values of both. A worker that waits longer than ten minutes counts as stuck.
MAX_RETRY_SECONDS, MAX_TIMEOUT_SECONDS = 480.0, 300.0
OTHER_ENDPOINTS = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3")  # they would override ENDPOINT
ENDPOINTS = (ENDPOINT, *OTHER_ENDPOINTS)

# The variables that other machines of a run receive: no keys and no tokens.
EXPORTED = (
    *ENDPOINTS,
    REGION,
    CACHE,
    ALLOW_HTTP,
    RETRY_SECONDS,
    TIMEOUT_SECONDS,
    "AWS_DEFAULT_REGION",
    "AWS_ALLOW_HTTP",
    "AWS_SKIP_SIGNATURE",
    "AZURE_ALLOW_HTTP",
    "HF_ENDPOINT",
)

# Prefixes of all variables that the clients of object stores and of the Hub read.
PREFIXES = ("AWS_", "AZURE_", "GOOGLE_", "HF_")


def exported() -> dict[str, str]:
    """The variables that other machines of this run need. Keys and tokens are excluded: each machine has its own."""
    return {name: os.environ[name] for name in EXPORTED if os.environ.get(name)}


def use_exported(own: dict[str, str], received: dict[str, str]) -> None:
    """Set the variables received from another machine, and this machine's `own` for those that are missing."""
    has_endpoint = any(name in received for name in ENDPOINTS)
    own = {name: value for name, value in own.items() if name not in ENDPOINTS or not has_endpoint}
    for name in EXPORTED:
        os.environ.pop(name, None)
    os.environ.update({name: value for name, value in {**own, **received}.items() if name in EXPORTED})


def of_storage() -> dict[str, str]:
    """All variables of storage, with credentials."""
    return {name: value for name, value in os.environ.items() if name.startswith(PREFIXES) or name in EXPORTED}


def replace(variables: dict[str, str]) -> None:
    """Set exactly the variables of storage that `of_storage` returned in another process."""
    for name in of_storage().keys() - variables.keys():
        del os.environ[name]
    os.environ.update(variables)


def cache() -> str | None:
    """The directory that the environment names for whole files of the Hub; None if it names none."""
    path = os.environ.get(CACHE)
    return directory(CACHE, path) if path else None


def retry_seconds(default: float) -> float:
    """How long requests to a server that fails are repeated."""
    return _seconds(RETRY_SECONDS, default, MAX_RETRY_SECONDS)


def timeout_seconds(default: float) -> float:
    """How long one request may take."""
    return _seconds(TIMEOUT_SECONDS, default, MAX_TIMEOUT_SECONDS)


def _seconds(name: str, default: float, largest: float) -> float:
    text = os.environ.get(name)
    if not text:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 1 <= seconds <= largest:
        raise UsageError(f"{name} is {text!r}", f"Give seconds, from 1 to {largest:g}.")
    return seconds


def check_server(name: str, address: str) -> None:
    """Raise UsageError if an address is not the URL of a server. The message names the setting and hides passwords."""
    if re.fullmatch(r"https?://[^\s/@?#]+(/[^\s@?#]*)?", address):
        return
    shown, advice = _without_secrets(address), "Write it such as https://host:9000, without a user name or password."
    if re.match(r"[^\s/@?#]+(/|$)", address) and not re.match("[A-Za-z0-9+.-]*:/", address):
        advice = f"{name} needs http:// or https:// before it: http://{shown}"
    raise UsageError(f"{name} is not the address of a server", f"given        {shown}", advice)


def check_region(name: str, region: str) -> None:
    """Raise UsageError if a text cannot be the name of a region: the client would crash."""
    if not re.fullmatch("[A-Za-z0-9._-]+", region):
        raise UsageError(
            f"{name} is not the name of a region", f"given        {region!a}", "Write it such as us-east-1."
        )


def allows_http() -> bool:
    """Whether the environment allows to send credentials without encryption."""
    return os.environ.get(ALLOW_HTTP, "").lower() in ("1", "true", "yes")


def check_encrypted(name: str, address: str) -> None:
    """Raise UsageError if an address would receive credentials without encryption. This machine itself may."""
    if not address.lower().startswith("http://") or _is_loopback(urlsplit(address).hostname or ""):
        return
    raise UsageError(
        f"{name} is not encrypted, and credentials would be sent to it",
        f"given        {address}",
        f"Use https://, or allow it with --allow-http or {ALLOW_HTTP}=1.",
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def directory(name: str, path: str) -> str:
    """The absolute path of a local directory. Raises UsageError for a URL, and for bytes that are not UTF-8."""
    if path and not re.match("[A-Za-z][A-Za-z0-9+.-]*://|(s3|gs|az|hf):", path, re.IGNORECASE):
        absolute = os.path.abspath(os.path.expanduser(path))
        check_text(absolute)
        return absolute
    raise UsageError(
        f"{name} is not a directory of this machine",
        f"given        {_without_secrets(path)}",
        "Whole files of the Hub are kept on a disk: name a directory such as ~/hub-files.",
    )


def _without_secrets(address: str) -> str:
    """An address without its user name, password or signature, for messages."""
    before, at, after = address.rpartition("@")
    if at:
        return "..." if re.search("[?#]", before + after) else f"...@{after}"
    return re.sub(r"(?<=[?#]).*", "...", address, count=1, flags=re.DOTALL) or "nothing"
