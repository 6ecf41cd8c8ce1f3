"""Waiting for a network without being deaf: native code that waits hears no Ctrl-C."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tokenmill.system import status_page

Words = ParamSpec("Words")
Value = TypeVar("Value")

LISTEN_SECONDS = 0.2


def interruptible(function: Callable[Words, Value], *words: Words.args, **options: Words.kwargs) -> Value:
    """What a function gives that may wait for long. Where people may interrupt it, another thread does the waiting.

    Workers are killed instead, and other threads hear no signals.
    """
    if status_page.is_supervised() or threading.current_thread() is not threading.main_thread():
        return function(*words, **options)
    given: list[Value] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(function(*words, **options))
        except BaseException as error:  # noqa: BLE001 - it is raised below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True, name="network")
    thread.start()
    while thread.is_alive():
        thread.join(LISTEN_SECONDS)
    if raised:
        raise raised[0]
    return given[0]
