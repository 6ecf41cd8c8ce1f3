"""Requests to the Hub and its CDN: tried again in a bounded way, and failures told in words without secrets."""

from __future__ import annotations

import contextlib
import email.utils
import os
import random
import re
import time
from collections.abc import Iterator
from typing import Any

from tokenmill import humanize
from tokenmill.errors import FAILED, SourceError, StorageError, TokenmillError
from tokenmill.storage.hub.address import HubAddress
from tokenmill.storage.hub.client import check_online, client, endpoint, hub_token, is_hub, library
from tokenmill.storage.objects.errors import RESUME
from tokenmill.system import environment

MAX_ATTEMPTS = 8
"""How often in a row a request may fail."""

FIRST_ATTEMPTS = 4
"""The same for somebody who waits for an answer to begin, if there is no connection at all."""

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 20.0
LONGEST_RETRY_AFTER_SECONDS = 300.0
LONGEST_WAIT_SECONDS = 480.0
"""How long is waited in all without progress: less than after which a worker counts as stuck."""


NO_ENTRY = "EntryNotFound"
PASSING = (408, 425, 429, 500, 502, 503, 504)


class TransientError(Exception):
    """A request failed in a way that may pass: why, and in how many seconds to come back, if the server said so.

    Without a connection there was not even an answer; what is misplaced may be found elsewhere, if the Hub is asked.
    """

    def __init__(
        self, reason: str, wait_seconds: float | None = None, connected: bool = True, misplaced: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.wait_seconds = wait_seconds
        self.connected = connected
        self.misplaced = misplaced or not connected


class Backoff:
    """How often a request is tried again, and the pauses between: growing, of random length, or as the server asks."""

    def __init__(self, address: HubAddress, unconnected_attempts: int = MAX_ATTEMPTS) -> None:
        self._address = address
        self._unconnected_attempts = unconnected_attempts
        self._failures = 0
        self._waited_seconds = 0.0

    def renew(self) -> None:
        """Note that there is progress."""
        self._failures, self._waited_seconds = 0, 0.0

    def wait(self, trouble: TransientError) -> None:
        """Wait until it makes sense to try again, or give up."""
        self._failures += 1
        most = MAX_ATTEMPTS if trouble.connected else self._unconnected_attempts
        asked = trouble.wait_seconds
        if asked is not None:  # those who were told the same need not come back all at once
            pause = asked + random.uniform(0.1, 1 + asked / 10)  # noqa: S311 - no secret
        else:
            pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1))
            pause *= random.uniform(0.5, 1.0)  # noqa: S311 - no secret
        self._waited_seconds += pause
        too_long = (asked or 0.0) > LONGEST_RETRY_AFTER_SECONDS or self._waited_seconds > LONGEST_WAIT_SECONDS
        if self._failures >= most or too_long:
            raise self._given_up(trouble)
        time.sleep(pause)

    def _given_up(self, trouble: TransientError) -> StorageError:
        advice = RESUME
        if not trouble.connected:
            advice = f"Check the network, and HF_ENDPOINT and HTTPS_PROXY if you set them. {RESUME}"
        elif trouble.wait_seconds is not None:
            advice = f"With HF_TOKEN set, or with fewer workers, the Hub allows more. {RESUME}"
        return StorageError(
            "the Hub does not answer as it should",
            f"file         {self._address.url}",
            f"reason       {trouble.reason}",
            f"tried        {humanize.count(self._failures, 'time')}",
            advice,
        )


@contextlib.contextmanager
def answer(method: str, target: str, headers: dict[str, str] | None = None) -> Iterator[Any]:
    """The answer to a request, its body not yet read; Trouble for whatever may pass, also while the body is read.

    Redirects are not followed. The token goes to the Hub, and to nobody else.
    """
    check_online()
    http = library()
    token = hub_token() if is_hub(target) else None
    if token:
        environment.check_encrypted("HF_ENDPOINT", endpoint())
    # What is read in ranges and compared with hashes must not be compressed on its way.
    sent = {"accept-encoding": "identity", **(headers or {})}
    sent |= {"authorization": f"Bearer {token}"} if token else {}
    try:
        with client(os.getpid()).stream(method, target, headers=sent) as response:
            if response.status_code in PASSING:
                raise TransientError(_status(response), _retry_after(response))
            if method == "HEAD":
                response.read()  # nothing, but only then is the connection used again
            yield response
    except (http.HTTPError, http.InvalidURL) as error:  # whose text may hold a signature or the token
        raise TransientError(_reason(error, token), connected=not isinstance(error, http.ConnectError)) from None


def is_missing(response: Any) -> bool:
    """Whether the dataset and its revision exist, but the path does not."""
    return bool(response.status_code == 404 and _is_of_a_hub(response) and _code(response) == NO_ENTRY)


def check(address: HubAddress, response: Any) -> None:
    """Raise if the Hub refuses to answer."""
    if response.status_code >= 400:
        raise _refused(address, response)


def _refused(address: HubAddress, response: Any) -> TokenmillError:
    where = (f"file         {address.url}", f"reason       {_status(response)}")
    page = f"{endpoint()}/datasets/{address.repository}"
    if response.status_code in (401, 403):
        sent = "authorization" in response.request.headers
        token = "one was sent, and it was not accepted" if sent else "none was sent"
        renew = "check HF_TOKEN or run `hf auth login` again" if sent else "set HF_TOKEN or run `hf auth login`"
        return StorageError(
            "the Hub does not let us read a dataset",
            *where,
            f"token        {token}",
            f"If it is private or gated, {renew}; if it is gated,",
            f"accept its terms at {page}.",
            "The Hub says the same of a dataset that does not exist: check its name, too.",
            exit_code=FAILED,
        )
    if response.status_code == 404 and not _is_of_a_hub(response):
        return SourceError("this is no answer of a Hub", *where, f"asked        {endpoint()}", "Check HF_ENDPOINT.")
    if response.status_code == 404:
        missing = {"RevisionNotFound": f"the dataset has no revision {address.revision}", NO_ENTRY: "no such file"}
        return SourceError(missing.get(_code(response), "no such dataset on the Hub"), *where, f"See {page}.")
    return StorageError("the Hub refuses a request", *where, RESUME, exit_code=FAILED)


def _is_of_a_hub(response: Any) -> bool:
    """Whether an error is told as the Hub tells it, or a mirror of it, and not as any server on the web does."""
    headers = response.headers
    return "x-error-code" in headers or "x-repo-commit" in headers or "json" in headers.get("content-type", "")


def _code(response: Any) -> str:
    """What the Hub calls an error."""
    return str(response.headers.get("x-error-code", NO_ENTRY))


def _status(response: Any) -> str:
    """The status of an answer, with what the server says about it."""
    said = humanize.escape_control_characters(response.headers.get("x-error-message", ""))[:300]
    return f"{response.status_code} {response.reason_phrase}{': ' * bool(said)}{said}"


def _reason(error: Exception, token: str | None) -> str:
    """What went wrong, from the system if it came from there, in one line."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    system = next((cause for cause in causes if isinstance(cause, OSError) and cause.strerror), None)
    text = str(system.strerror if system else error) or type(error).__name__
    text = text.replace(token, "...") if token else text
    return humanize.escape_control_characters(re.sub(r"\?\S*", "", text))[:300]


def _retry_after(response: Any) -> float | None:
    """In how many seconds the server wants to be asked again, if it says so."""
    text = response.headers.get("retry-after", "").strip()
    # The Hub's own form, `"api";r=0;t=55`, comes with every answer; it means something if nothing remains.
    window = re.search(r"\br\s*=\s*0\s*;\s*t\s*=\s*([0-9]+)", response.headers.get("ratelimit", ""))
    if window and response.status_code == 429:
        return float(window[1])
    if text.isdigit():
        return float(text)
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None
