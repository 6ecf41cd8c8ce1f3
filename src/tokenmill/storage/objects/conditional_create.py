"""Writing an object only if there is none: which answers are final, and which are asked again."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.objects.errors import is_rejection, no_conditional_create, reason

if TYPE_CHECKING:
    from obstore.store import ObjectStore

MAX_SECONDS = 400.0
"""How long a server that is busy or restarts is asked again."""

MAX_REFUSALS = 3
"""How often a server may say that an object exists which does not: it may have been removed in between."""

MIN_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0


def create(store: ObjectStore, key: str, data: pa.Buffer, exists: Callable[[], bool], url: str) -> bool:
    """Write an object; False if there is one already, or if it appeared while an answer was lost.

    The client makes no retries of its own: it would repeat a 501 for minutes.
    """
    import obstore  # noqa: PLC0415 - not for local runs
    from obstore.exceptions import AlreadyExistsError, GenericError  # noqa: PLC0415

    body, since, refusals, failures = memoryview(data).cast("B"), time.monotonic(), 0, 0
    while True:
        try:
            interruptible(obstore.put, store, key, body, mode="create", use_multipart=False)
        except AlreadyExistsError:
            refusals += 1
        except NotImplementedError as error:
            raise no_conditional_create(url, f"the client is set not to: {reason(error)}") from None
        except GenericError as error:
            _raise_if_final(url, error, time.monotonic() - since)
        else:
            return True
        if exists():
            return False
        if refusals == MAX_REFUSALS:
            why = "the server answers 412 Precondition Failed for an object that does not exist"
            raise no_conditional_create(url, why)
        failures += 1
        _pause(failures)


def _raise_if_final(url: str, error: Exception, seconds: float) -> None:
    """Raise unless the request may succeed when it is made again."""
    if "status code: 501" in str(error):
        raise no_conditional_create(url, f"the server answers {reason(error)}") from None
    if is_rejection(error) or seconds > MAX_SECONDS:
        raise error


def _pause(failures: int) -> None:
    longest = min(MAX_PAUSE_SECONDS, MIN_PAUSE_SECONDS * 2**failures)
    time.sleep(longest * random.uniform(0.5, 1))  # noqa: S311 - not a secret
