"""Write an object only if none exists: which answers are final, and which requests are repeated."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from tokenmill.storage.addresses import split_url
from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.objects.errors import is_rejection, no_conditional_create, reason

if TYPE_CHECKING:
    from obstore.store import ObjectStore

MAX_SECONDS = 400.0  # for which requests to a busy or restarting server are repeated
MAX_REFUSALS = 3  # answers "it exists" for an object that does not: it may have been removed in between
MIN_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0


def create(store: ObjectStore, url: str, data: pa.Buffer, exists: Callable[[], bool]) -> bool:
    """Write an object. Returns False if one exists, or if it appeared while an answer was lost.

    `store` must not retry by itself: it would repeat a 501 for minutes.
    """
    import obstore  # noqa: PLC0415 - not for local runs
    from obstore.exceptions import AlreadyExistsError, GenericError  # noqa: PLC0415

    body, started, refusals, failures = memoryview(data).cast("B"), time.monotonic(), 0, 0
    while True:
        try:
            interruptible(obstore.put, store, split_url(url)[2], body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            refusals += 1
        except NotImplementedError as error:
            raise no_conditional_create(url, f"the client is set not to: {reason(error)}") from None
        except GenericError as error:
            _raise_if_final(url, error, time.monotonic() - started)
        else:
            return True
        if exists():
            return False
        if refusals == MAX_REFUSALS:
            why = "the server answers 412 Precondition Failed for an object that does not exist"
            raise no_conditional_create(url, why)
        failures += 1
        pause = min(MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS * 2**failures)
        time.sleep(pause * random.uniform(0.5, 1))  # noqa: S311 - not a secret


def _raise_if_final(url: str, error: Exception, seconds: float) -> None:
    """Raise unless repeating the request may succeed."""
    if "status code: 501" in str(error):
        raise no_conditional_create(url, f"the server answers {reason(error)}") from None
    if is_rejection(error) or seconds > MAX_SECONDS:
        raise error
