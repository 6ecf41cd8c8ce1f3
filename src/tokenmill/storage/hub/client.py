"""How to talk to the Hub: where it is, with which token, and by which client.

The HTTP library is the one that huggingface_hub works with, httpx or its successor; endpoint, token and offline mode
are huggingface_hub's own, too. Its client is not: that of version 2 waits for ever, and others may close it.
"""

from __future__ import annotations

import atexit
import functools
import importlib
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tokenmill.errors import FAILED, StorageError
from tokenmill.system import environment

CONNECT_SECONDS = 10.0
STALL_SECONDS = 30.0
"""How long nothing may come before a request is given up."""

SIGNATURES = ("signature", "x-amz-signature", "policy")
"""Parameters by which a URL shows that whoever knows it may read what is there."""


def is_hub(target: str) -> bool:
    """Whether a URL is the Hub's own, and not that of a file elsewhere, for which its signature is enough."""
    here, there = urlsplit(endpoint()), urlsplit(target)
    signed = any(name.lower() in SIGNATURES for name in parse_qs(there.query))
    return (here.scheme, here.netloc) == (there.scheme, there.netloc) and not signed


def endpoint() -> str:
    """Where the Hub is."""
    from huggingface_hub import constants  # noqa: PLC0415 - not for local runs

    environment.check_server("HF_ENDPOINT", constants.ENDPOINT)
    return constants.ENDPOINT


def hub_token() -> str | None:
    """The token that people have set for the Hub, if they have and want it to be used."""
    from huggingface_hub import constants, get_token  # noqa: PLC0415 - not for local runs

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise StorageError(
            "the token for the Hub holds characters that no token has",
            "Set HF_TOKEN, or run `hf auth login` again.",
            exit_code=FAILED,
        )
    return token


def check_online() -> None:
    """Raise if somebody wants to stay away from the network."""
    from huggingface_hub import constants  # noqa: PLC0415 - not for local runs

    if constants.HF_HUB_OFFLINE:
        advice = "Unset HF_HUB_OFFLINE, or use local files."
        raise StorageError("the Hub is not asked: offline mode is on", advice, exit_code=FAILED)


@functools.lru_cache(maxsize=1)
def library() -> Any:
    """The HTTP library that huggingface_hub uses, whose errors its own are made from."""
    from huggingface_hub.errors import HfHubHTTPError  # noqa: PLC0415 - not for local runs

    base = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    return importlib.import_module(base.__module__.partition(".")[0])


@functools.lru_cache(maxsize=1)
def client(_process: int) -> Any:
    """A client belongs to the process that made it: after a fork, two would write to its connections."""
    http = library()
    made = http.Client(
        headers={"user-agent": "tokenmill"},
        timeout=http.Timeout(STALL_SECONDS, connect=CONNECT_SECONDS, pool=None),
        limits=http.Limits(max_connections=64, max_keepalive_connections=32),
    )
    atexit.register(made.close)
    return made
