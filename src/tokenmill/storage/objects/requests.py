"""Send requests to an object store, and send those again that fail and may succeed.

A store that answers that there are too many requests is asked until it takes them, however long that lasts.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.objects.errors import is_rejection, is_slow_down
from tokenmill.system import environment, status_page

Args = ParamSpec("Args")
Value = TypeVar("Value")

MAX_SECONDS = 180.0  # for which requests to a server that restarts or fails are repeated
MIN_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 5.0
MAX_DOUBLINGS = 7


def request(function: Callable[Args, Value], *args: Args.args, **kwargs: Args.kwargs) -> Value:
    """Call a function that sends a request, and call it again after errors that may pass."""
    from obstore.exceptions import GenericError  # noqa: PLC0415 - not for local runs

    patience = Patience(environment.retry_seconds(MAX_SECONDS))
    while True:
        try:
            return interruptible(function, *args, **kwargs)
        except GenericError as error:
            patience.wait_after(error)


class Patience:
    """How long a request is repeated. The time counts from its begin, or from the last answer that asks to slow down.

    Pauses are random and up to twice as long after each failure, so that many processes do not come back together.
    """

    def __init__(self, max_seconds: float) -> None:
        self._max_seconds = max_seconds
        self._since = time.monotonic()
        self._failures = 0

    def wait_after(self, error: Exception) -> None:
        """Wait before the request is sent again; raise the error if that cannot help, or has lasted too long."""
        if is_slow_down(error):
            status_page.note_refusal()
            self._since = time.monotonic()
        elif is_rejection(error) or time.monotonic() - self._since > self._max_seconds:
            raise error
        self.wait()

    def wait(self) -> None:
        """Wait before the request is sent again."""
        self._failures += 1
        longest = min(MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS * 2 ** min(self._failures, MAX_DOUBLINGS))
        time.sleep(random.uniform(0, longest))  # noqa: S311 - not a secret
