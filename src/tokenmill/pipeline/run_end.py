"""How a run ended, recorded where `status` and people find it: the last event of the log, and the last pulse."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tokenmill.errors import INTERRUPTED, TokenmillError, exit_code_of
from tokenmill.store.heartbeats import EndRecord
from tokenmill.system import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenmill.pipeline.events import RunEvents
    from tokenmill.pipeline.heartbeat import Heartbeat

MAX_HEADLINE = 500
COMPLETE, FAILED, INTERRUPTION = "complete", "failed", "interrupted"


@contextmanager
def recorded(chronicle: RunEvents, heart: Heartbeat) -> Iterator[None]:
    """Record how the block ends, be it with an error. What cannot be recorded changes nothing about the end."""
    end = EndRecord(COMPLETE)
    try:
        yield
    except BaseException as error:
        end = _end_of(error)
        raise
    finally:
        heart.end = end
        with suppress(TokenmillError):
            chronicle.log("end", outcome=end.outcome, kind=end.kind, headline=end.headline, exit_code=end.exit_code)


def _end_of(error: BaseException) -> EndRecord:
    code = exit_code_of(error)
    if code == INTERRUPTED:
        return EndRecord(INTERRUPTION, "Interrupted", "interrupted by a signal", code)
    error = error if isinstance(error, TokenmillError) else limits.explained(error) or error
    code = exit_code_of(error)
    headline = error.headline if isinstance(error, TokenmillError) else str(error)
    text = headline.encode(errors="backslashreplace").decode()  # a file name may be no UTF-8
    return EndRecord(FAILED, type(error).__name__, text[:MAX_HEADLINE], code)
