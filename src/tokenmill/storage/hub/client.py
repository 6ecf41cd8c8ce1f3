"""The connection to the Hub: endpoint, token and HTTP client.

Endpoint, token, offline mode and HTTP library (httpx or its successor) are those of huggingface_hub. The client is not:
that of version 2 has no timeout, and other code may close it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tokenmill.errors import FAILED, StorageError
from tokenmill.system import environment, storage_settings

CONNECT_SECONDS = 10.0
STALL_SECONDS = 30.0  # without a byte before a request is given up
SIGNATURES = ("signature", "x-amz-signature", "policy")  # query parameters of a URL that needs no other credentials


def is_hub(target: str) -> bool:
    """Whether a URL is the Hub's own, and not the signed URL of a file."""
    here, there = urlsplit(endpoint()), urlsplit(target)
    is_signed = any(name.lower() in SIGNATURES for name in parse_qs(there.query))
    return (here.scheme, here.netloc) == (there.scheme, there.netloc) and not is_signed


def endpoint() -> str:
    """The base URL of the Hub."""
    from huggingface_hub import constants  # noqa: PLC0415 - not for local runs

    environment.check_server("HF_ENDPOINT", constants.ENDPOINT)
    return constants.ENDPOINT


def hub_token() -> str | None:
    """The user's token for the Hub; None if no token is set, or if it must not be sent implicitly.

    Raises UsageError if it would be sent without encryption.
    """
    from huggingface_hub import constants, get_token  # noqa: PLC0415 - not for local runs

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise StorageError(
            "the token for the Hub holds characters that no token has",
            "Set HF_TOKEN, or run `hf auth login` again.",
            exit_code=FAILED,
        )
    if token:
        storage_settings.current().check_encrypted("HF_ENDPOINT", endpoint())
    return token


def check_online() -> None:
    """Raise StorageError if offline mode is on."""
    from huggingface_hub import constants  # noqa: PLC0415 - not for local runs

    if constants.HF_HUB_OFFLINE:
        advice = "Unset HF_HUB_OFFLINE, or use local files."
        raise StorageError("offline mode is on, so the Hub cannot be read", advice, exit_code=FAILED)


@functools.lru_cache(maxsize=1)
def library() -> Any:
    """The HTTP library of huggingface_hub: its errors are the base of huggingface_hub's own."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - not for local runs

    base = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    return importlib.import_module(base.__module__.partition(".")[0])


@functools.lru_cache(maxsize=1)
def client(_process: int) -> Any:
    """The HTTP client of this process. After a fork, two processes would write to the same connections."""
    http = library()
    http_client = http.Client(
        headers={"user-agent": "tokenmill"},
        timeout=http.Timeout(environment.timeout_seconds(STALL_SECONDS), connect=CONNECT_SECONDS, pool=None),
        limits=http.Limits(max_connections=64, max_keepalive_connections=32),
    )
    atexit.register(http_client.close)
    return http_client
