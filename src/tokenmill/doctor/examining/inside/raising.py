"""Exceptions as answers."""

from __future__ import annotations

import traceback

from tokenmill.doctor.examining.answers import Raised

MAX_CHARACTERS = 300


def raised(error: BaseException, script: str) -> Raised:
    """What was raised, in one line, and the last line of the script that it went through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - an exception of the user's that cannot be printed still has a type
        message = ""
    short = message if len(message) <= MAX_CHARACTERS else f"{message[: MAX_CHARACTERS - 3]}..."
    return Raised(type(error).__name__, short, lines[-1] if lines else None)
