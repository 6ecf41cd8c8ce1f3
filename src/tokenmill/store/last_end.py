"""How the last driver of a run ended, and what finishes the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import INTERRUPTED, TRY_AGAIN
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import event_log
from tokenmill.store.heartbeats import EndRecord, HeartbeatRecord

if TYPE_CHECKING:
    from tokenmill.storage import Folder

KILLED = EndRecord("killed", headline="no end is recorded: it was killed, or its machine was lost", exit_code=None)

RUN_AGAIN = "Run the same `tokenmill prepare` again to finish it."
REMOVE_CAUSE = "Remove the cause, then run the same `tokenmill prepare` again to finish it."


class _LastEvent(msgspec.Struct):
    """The fields of the last line of a log."""

    event: str
    outcome: str = ""
    kind: str = ""
    headline: str = ""
    exit_code: int | None = None
    advice: tuple[str, ...] = ()


def last_end(folder: Folder, beats: Sequence[HeartbeatRecord]) -> EndRecord | None:
    """How the last driver ended. A full disk may have room for its last log line, but not for its last heartbeat."""
    if not beats:
        return None
    last = max(beats, key=lambda beat: beat.time)
    if last.end is not None:
        return last.end
    try:
        line = decode(event_log.last_line(folder, last.rank), _LastEvent)
    except MalformedDataError:
        return KILLED
    if line.event != "end":
        return KILLED
    return EndRecord(line.outcome, line.kind, line.headline, line.exit_code, line.advice)


def is_failure(end: EndRecord | None) -> bool:
    """Whether the same command would fail again."""
    return end is not None and bool(end.exit_code) and end.exit_code not in (TRY_AGAIN, INTERRUPTED)


def next_step(end: EndRecord | None) -> tuple[str, ...]:
    """What finishes a run that is stopped."""
    if end is None or not is_failure(end):
        return (RUN_AGAIN,)
    return end.advice or (REMOVE_CAUSE,)
