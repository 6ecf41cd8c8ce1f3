"""Records how a run ended, for `status` and for people: in the last log line and in the last heartbeat."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from tokenmill.errors import INTERRUPTED, RunFailed, TokenmillError, exit_code_of
from tokenmill.store.heartbeats import EndRecord
from tokenmill.system import limits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenmill.pipeline.driving.events import RunEvents
    from tokenmill.pipeline.driving.heartbeat import Heartbeat

# Longer headlines are cut.
MAX_HEADLINE = 500
COMPLETE, FAILED, INTERRUPTION = "complete", "failed", "interrupted"


@contextmanager
def record_end(events: RunEvents, heartbeat: Heartbeat) -> Iterator[None]:
    """Record how the block ends, also if it raises. A failure to record is ignored."""
    end = EndRecord(COMPLETE)
    try:
        yield
    except BaseException as error:
        end = _end_of(error)
        raise
    finally:
        heartbeat.set_end(end)
        with suppress(TokenmillError):
            advice = {"advice": end.advice} if end.advice else {}
            record = {"outcome": end.outcome, "kind": end.kind, "headline": end.headline, "exit_code": end.exit_code}
            events.log("end", **record, **advice)


def _end_of(error: BaseException) -> EndRecord:
    code = exit_code_of(error)
    if code == INTERRUPTED:
        return EndRecord(INTERRUPTION, "Interrupted", "interrupted by a signal", code)
    error = error if isinstance(error, TokenmillError) else limits.explained(error) or error
    code = exit_code_of(error)
    headline = error.headline if isinstance(error, TokenmillError) else str(error)
    advice = error.advice if isinstance(error, RunFailed) else ()
    return EndRecord(FAILED, type(error).__name__, _shown(headline), code, tuple(map(_shown, advice)))


def _shown(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()[:MAX_HEADLINE]  # a file name may not be UTF-8
