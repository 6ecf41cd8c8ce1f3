"""Where a worker is in its unit: marked while it works, told when it dies."""

from __future__ import annotations

import msgspec

from tokenmill.system import status_page

STAGES = {
    "begin": "looking whether it is done",
    "cut": "reading the footer",
    "load": "loading the tokenizer",
    "read": "reading",
    "encode": "encoding",
    "write": "writing the part",
}

DEFAULT_SECONDS = 600.0
"""How long anything may take before the worker counts as stuck: what reads and writes may wait for a slow network."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A stage of the work on a unit, and the rows [first, last] of a source that it is at, if it is at some."""

    stage: str
    source: int | None = None
    first: int | None = None
    last: int | None = None

    def mark(self, seconds: float = DEFAULT_SECONDS) -> None:
        """Mark that this begins now, and after how many seconds the worker counts as stuck."""
        status_page.set_status(msgspec.json.encode(self), seconds)


def position_in(note: bytes) -> Position | None:
    """The place that a worker marked, if it marked one."""
    try:
        return msgspec.json.decode(note, type=Position)
    except msgspec.MsgspecError:
        return None
