"""`doctor`: find out why work in many processes dies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from tokenmill.diagnosis.examining.examination import Examination, examine
from tokenmill.diagnosis.watching.command import Watched, watch
from tokenmill.errors import UsageError
from tokenmill.system.arguments import checked


@overload
def doctor(  # type: ignore[overload-overlap] # a str is a Sequence[str], too
    target: str, *, num_proc: int | None = None, column: str | None = None
) -> Examination: ...
@overload
def doctor(target: Sequence[str], *, hang_seconds: float | None = None, stop_hung: bool = False) -> Watched: ...
@checked
def doctor(
    target: str | Sequence[str],
    *,
    num_proc: int | None = None,
    column: str | None = None,
    hang_seconds: float | None = None,
    stop_hung: bool = False,
) -> Examination | Watched:
    """Find out why work in many processes dies, before or after it happens.

    Args:
        target: A function of a script, such as `"prepare.py:tokenize"`: the doctor runs it in separate processes. Or a
            command as a list, such as `["python", "prepare.py"]`: the doctor runs it and watches its processes, on
            Linux only.
        num_proc: The number of processes that will run the function. Default: as in the script, or one per core.
        column: The column that the function reads. Default: `text`.
        hang_seconds: The seconds without any progress after which a command counts as hung. Default: 60.
        stop_hung: Stop a hung command, and show where each process was.
    """
    if isinstance(target, str):
        _refuse("a command", hang_seconds=hang_seconds, stop_hung=stop_hung or None)
        if ":" not in target:
            raise UsageError(
                f"{target!r} does not name a function",
                'Examine a function:  "FILE.py:FUNCTION"',
                'Watch a command:     ["python", "FILE.py"]',
            )
        return examine(target, num_proc=num_proc, column="text" if column is None else column)
    _refuse("a function", num_proc=num_proc, column=column)
    if not target:
        raise UsageError("the command is empty", 'Give the program and its arguments: ["python", "FILE.py"].')
    return watch(target, hang_seconds=60.0 if hang_seconds is None else hang_seconds, stop_hung=stop_hung)


def _refuse(needed: str, **options: object) -> None:
    """Raise UsageError for an option that the target does not use."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"{name} needs {needed}", "Leave it out.")
