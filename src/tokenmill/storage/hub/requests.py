"""Requests to the Hub and its CDN: bounded retries, and error messages without secrets."""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Iterator
from typing import Any

from tokenmill import humanize
from tokenmill.errors import FAILED, USAGE, SourceError, StorageError, TokenmillError
from tokenmill.storage.hub.address import HubAddress
from tokenmill.storage.hub.client import check_online, client, endpoint, hub_token, is_hub, library
from tokenmill.storage.objects.errors import RESUME
from tokenmill.system import environment

MAX_ATTEMPTS = 8  # failures in a row
FIRST_ATTEMPTS = 4  # the same without any connection, before a command has started its work
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 20.0
MAX_RETRY_AFTER_SECONDS = 300.0  # a server that asks for a longer pause is not tried again
MAX_WAIT_SECONDS = 480.0  # in all without progress: less than the time after which a worker counts as stuck

NO_ENTRY = "EntryNotFound"
CHECK_ENDPOINT = "Check HF_ENDPOINT, if you set it."
TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)


class TransientError(Exception):
    """A request failed, and may succeed later.

    Attributes:
        reason: Why it failed.
        wait_seconds: The pause that the server asks for, if it does.
        is_connected: Whether there was a connection.
        is_misplaced: Whether the Hub may know another location of the file.
    """

    def __init__(
        self, reason: str, wait_seconds: float | None = None, is_connected: bool = True, is_misplaced: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_seconds = wait_seconds
        self.is_connected = is_connected
        self.is_misplaced = is_misplaced or not is_connected


class Backoff:
    """Limits the attempts of a request. Pauses between them are random and grow, or are as the server asks."""

    def __init__(self, address: HubAddress, unconnected_attempts: int = MAX_ATTEMPTS) -> None:
        self._address = address
        self._unconnected_attempts = unconnected_attempts
        self._failures = 0
        self._waited_seconds = 0.0

    def reset(self) -> None:
        """Start counting anew after progress."""
        self._failures, self._waited_seconds = 0, 0.0

    def wait(self, error: TransientError) -> None:
        """Pause before the next attempt, or raise StorageError if there have been too many."""
        self._failures += 1
        max_attempts = MAX_ATTEMPTS if error.is_connected else self._unconnected_attempts
        asked = error.wait_seconds
        if asked is not None:  # random, so that clients with the same answer do not return together
            pause = asked + random.uniform(0.1, 1 + asked / 10)  # noqa: S311 - no secret
        else:
            pause = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1))
            pause *= random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._waited_seconds += pause
        longest = environment.retry_seconds(MAX_WAIT_SECONDS)
        too_long = (asked or 0.0) > MAX_RETRY_AFTER_SECONDS or self._waited_seconds > longest
        if self._failures >= max_attempts or too_long:
            raise self._final_error(error)
        time.sleep(pause)

    def _final_error(self, error: TransientError) -> StorageError:
        advice = RESUME
        if not error.is_connected:
            advice = f"Check the network, and HF_ENDPOINT and HTTPS_PROXY if you set them. {RESUME}"
        elif error.wait_seconds is not None:
            advice = f"With HF_TOKEN set, or with fewer workers, the Hub allows more. {RESUME}"
        return StorageError(
            "the Hub does not answer as it should",
            f"file         {self._address.url}",
            f"reason       {error.reason}",
            f"tried        {humanize.count(self._failures, 'time')}",
            advice,
        )


@contextlib.contextmanager
def answer(method: str, target: str, headers: dict[str, str] | None = None) -> Iterator[Any]:
    """The response to a request, its body unread. Raises TransientError, also while the block reads the body.

    Redirects are not followed. The token is sent to the Hub only.
    """
    check_online()
    http = library()
    token = hub_token() if is_hub(target) else None
    # Compression would change byte ranges and hashes.
    all_headers = {"accept-encoding": "identity", **(headers or {})}
    all_headers |= {"authorization": f"Bearer {token}"} if token else {}
    try:
        with client(os.getpid()).stream(method, target, headers=all_headers) as response:
            if response.status_code in TRANSIENT_STATUS:
                raise TransientError(_status(response), _retry_after(response))
            if method == "HEAD":
                response.read()  # it is empty, but otherwise the connection is not reused
            yield response
    except (http.HTTPError, http.InvalidURL) as error:  # its text may contain a signature or the token
        raise TransientError(_reason(error, token), is_connected=not isinstance(error, http.ConnectError)) from None


def is_missing(response: Any) -> bool:
    """Whether the dataset and its revision exist, but the path does not."""
    return bool(response.status_code == 404 and _is_from_hub(response) and _code(response) == NO_ENTRY)


def check(address: HubAddress, response: Any) -> None:
    """Raise if the Hub refuses to answer."""
    if response.status_code >= 400:
        raise _refused(address, response)


def not_the_hub(address: HubAddress, why: str, *asked: str) -> SourceError:
    """The error for an answer that is not one of the Hub, or of a mirror of it."""
    where = (f"file         {address.url}", f"reason       {why}")
    return SourceError("the server does not answer as the Hub does", *where, *asked, CHECK_ENDPOINT)


def _refused(address: HubAddress, response: Any) -> TokenmillError:
    where = (f"file         {address.url}", f"reason       {_status(response)}")
    page = f"{endpoint()}/datasets/{address.repository}"
    if response.status_code in (401, 403):
        is_sent = "authorization" in response.request.headers
        token = "one was sent, and it was not accepted" if is_sent else "none was sent"
        renew = "check HF_TOKEN or run `hf auth login` again" if is_sent else "set HF_TOKEN or run `hf auth login`"
        return StorageError(
            "the Hub denies access to a dataset",
            *where,
            f"token        {token}",
            f"If it is private or gated, {renew}; if it is gated,",
            f"accept its terms at {page}.",
            "The Hub gives the same answer for a dataset that does not exist: check its name.",
            exit_code=FAILED,
        )
    if response.status_code == 404 and not _is_from_hub(response):
        return not_the_hub(address, _status(response), f"asked        {endpoint()}")
    if response.status_code == 404:
        missing = {"RevisionNotFound": f"the dataset has no revision {address.revision}", NO_ENTRY: "no such file"}
        code = FAILED if _code(response) == NO_ENTRY else USAGE  # a file may disappear during a run
        return SourceError(
            missing.get(_code(response), "no such dataset on the Hub"), *where, f"See {page}.", exit_code=code
        )
    return StorageError("the Hub refuses a request", *where, RESUME, exit_code=FAILED)


def _is_from_hub(response: Any) -> bool:
    """Whether an error answer has the form of the Hub or a mirror of it, and not of some other web server."""
    headers = response.headers
    return "x-error-code" in headers or "x-repo-commit" in headers or "json" in headers.get("content-type", "")


def _code(response: Any) -> str:
    """The error code of the Hub."""
    return str(response.headers.get("x-error-code", NO_ENTRY))


def _status(response: Any) -> str:
    """The status of an answer, with the server's message."""
    message = humanize.escape_control_characters(response.headers.get("x-error-message", ""))[:300]
    return f"{response.status_code} {response.reason_phrase}{': ' * bool(message)}{message}"


def _reason(error: Exception, token: str | None) -> str:
    """The message of the system, or of the library, in one line."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    system = next((cause for cause in causes if isinstance(cause, OSError) and cause.strerror), None)
    text = str(system.strerror if system else error) or type(error).__name__
    text = text.replace(token, "...") if token else text
    return humanize.escape_control_characters(re.sub(r"\?\S*", "", text))[:300]


def _retry_after(response: Any) -> float | None:
    """The pause that the server asks for in seconds; None if it does not."""
    text = response.headers.get("retry-after", "").strip()
    # The Hub sends its own form, `"api";r=0;t=55`, with every answer. It counts if nothing remains (r=0).
    window = re.search(r"\br\s*=\s*0\s*;\s*t\s*=\s*([0-9]+)", response.headers.get("ratelimit", ""))
    if window and response.status_code == 429:
        return float(window[1])
    return float(text) if text.isdigit() else None  # no date: neither the Hub nor its CDN sends one
