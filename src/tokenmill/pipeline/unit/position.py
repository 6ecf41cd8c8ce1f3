"""The position of a worker in its unit: marked while it works, reported when it dies."""

from __future__ import annotations

import msgspec

from tokenmill.system import status_page

# The stages of a unit, as messages describe them.
STAGES = {
    "begin": "looking whether it is done",
    "cut": "reading the footer",
    "load": "loading the tokenizer",
    "read": "reading",
    "encode": "encoding",
    "write": "writing the part",
}

# How long a stage may take before the worker counts as stuck: reads and writes may wait for a slow network.
DEFAULT_SECONDS = 600.0


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A stage of the work on a unit, and the rows [first, last] of a source that are being processed, if any."""

    stage: str
    source: int | None = None
    first: int | None = None
    last: int | None = None

    def mark(self, seconds: float = DEFAULT_SECONDS) -> None:
        """Mark this as the position of the worker, which counts as stuck after `seconds`."""
        status_page.set_status(msgspec.json.encode(self), seconds)


def position_in(note: bytes) -> Position | None:
    """The position that a worker marked, if it marked one."""
    try:
        return msgspec.json.decode(note, type=Position)
    except msgspec.MsgspecError:
        return None
