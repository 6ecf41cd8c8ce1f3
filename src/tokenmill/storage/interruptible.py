"""Run a blocking native call in a thread so that Ctrl-C still works."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tokenmill.system import status_page

Args = ParamSpec("Args")
Value = TypeVar("Value")

POLL_SECONDS = 0.2  # between two chances for Python to handle a signal


def interruptible(function: Callable[Args, Value], *args: Args.args, **kwargs: Args.kwargs) -> Value:
    """Call a function, in another thread if this is the main thread of a process that users interrupt.

    Workers need no such thread: their supervisor kills them. Other threads receive no signals.
    """
    if status_page.is_supervised() or threading.current_thread() is not threading.main_thread():
        return function(*args, **kwargs)
    values: list[Value] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            values.append(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - it is raised below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True, name="network")
    thread.start()
    while thread.is_alive():
        thread.join(POLL_SECONDS)
    if errors:
        raise errors[0]
    return values[0]
