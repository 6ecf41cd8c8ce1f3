"""The retry policy of a run: how often a unit is tried, and when the run is aborted."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokenmill.errors import BadDocument, LimitReached, MemoryShortage, StorageError, StoreError, TokenizerError
from tokenmill.executors.outcomes import Cause, Died, Failed
from tokenmill.executors.retry_policy import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Trouble = Failed[Any] | Died[Any]

# The run is aborted when this many units have failed.
MAX_FAILURES = 100

# The same before the first unit of this call is done: probably nothing works.
MAX_FAILURES_WITHOUT_SUCCESS = 10

# When this many units wait for isolation, no other unit is started until they are isolated.
MAX_TO_ISOLATE = 100

# An isolated unit is given up when it has died this often while no document was being encoded.
MAX_UNEXPLAINED_DEATHS = 2

# An isolated unit is given up after this many cleared documents in a row were suspected of taking too much memory:
# then the unit as a whole takes too much.
MAX_MEMORY_DEATHS = 3

# Units that a worker holds beyond the current one where a network is involved: one is fetched, one is published.
PREFETCH_UNITS = 2

_TOKENIZE = RetryPolicy(max_crashes=2, max_kills=10)
_ISOLATE = RetryPolicy(max_crashes=1, max_kills=10)


# Errors after which no other unit is started: the store, the network, the tokenizer or the system fails, or a bad
# document is not allowed.
_ENDS_RUN = (StoreError, StorageError, TokenizerError, BadDocument, LimitReached, MemoryShortage)


def tokenize_policy(*, is_remote: bool, should_stop: Callable[[], bool]) -> RetryPolicy:
    """The policy for whole units. The executor abandons them when `should_stop` returns True."""
    return replace(_TOKENIZE, prefetch=PREFETCH_UNITS if is_remote else 0, should_stop=should_stop)


def isolate_policy(*, memory_ran_out: bool) -> RetryPolicy:
    """The policy for isolated units: one death is enough, and one worker at a time if memory ran out before."""
    return replace(_ISOLATE, workers=1) if memory_ran_out else _ISOLATE


def ran_out_of_memory(trouble: Trouble) -> bool:
    """Whether memory ran out, be it reported as a death or as an error."""
    if isinstance(trouble, Failed):
        return trouble.kind.endswith("MemoryError")  # pyarrow and numpy have MemoryErrors of their own
    return trouble.end.cause is Cause.MEMORY


def too_many_failures(failures: Sequence[Trouble], units_done: int) -> bool:
    """Whether no other unit should be started: `units_done` were done in this call."""
    if any(isinstance(failure, Failed) and failure.error_class in _ENDS_RUN for failure in failures):
        return True
    return len(failures) >= (MAX_FAILURES if units_done else MAX_FAILURES_WITHOUT_SUCCESS)
