"""The request to a probe process and its answers: JSON, one answer per line."""

from __future__ import annotations

import os
import traceback
from typing import Literal

import msgspec

Form = Literal["row", "batch", "text"]
Role = Literal["main", "spawned"]
ObstacleKind = Literal["native", "resource", "nameless"]

MAX_MESSAGE_CHARACTERS = 300
# The exit code of a probe process that failed itself, not the function.
INTERNAL_ERROR = 70


class Script(msgspec.Struct, frozen=True):
    """What the text of a script shows.

    `picklers` send the function to the workers, empty if the text does not show which. `forms` are the forms of input
    to try, the likeliest first.
    """

    picklers: tuple[str, ...]
    start_method: str
    num_proc: int | None
    forms: tuple[Form, ...]
    initializer: str | None
    initargs: str | None

    @property
    def forks(self) -> bool:
        """Whether its workers are forked."""
        return self.start_method == "fork"


class ProbeRequest(msgspec.Struct, frozen=True):
    """What a probe process does. It writes its answers, its stack at a crash and the pickled function to `folder`."""

    role: Role
    path: str
    function: str
    column: str
    folder: str
    script: Script
    sample_seconds: float

    def file(self, name: str) -> str:
        """Returns the path of a file of this probe."""
        return os.path.join(self.folder, f"{self.role} {name}")


class Raised(msgspec.Struct, frozen=True):
    """An exception, with the last line of the script in its traceback."""

    type: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.type}: {self.message}"


class Obstacle(msgspec.Struct, frozen=True):
    """An object that cannot be pickled. `path` is where it is, in the names of the script."""

    path: str
    type: str
    kind: ObstacleKind
    sort: str


class Part(msgspec.Struct, frozen=True):
    """A large part of a pickled object."""

    path: str
    size_bytes: int
    type: str


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The result of loading the script, which stops where it starts a process (`process_line`) or raises (`raised`).

    `own_seconds` and `own_bytes` exclude import statements.
    """

    seconds: float
    own_seconds: float
    own_bytes: int
    slowest_line: int | None
    process_line: int | None
    raised: Raised | None
    exists: bool
    is_callable: bool
    held_bytes: int
    address_space: int | None
    hosts: tuple[str, ...]


class Pickled(msgspec.Struct, frozen=True, tag=True):
    """The function pickled by one pickler, or the reason why that failed."""

    pickler: str
    size_bytes: int | None = None
    raised: Raised | None = None
    obstacle: Obstacle | None = None
    largest: Part | None = None


class Forked(msgspec.Struct, frozen=True, tag=True):
    """The main process forked a worker, while it had this many threads."""

    pid: int
    threads: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The forked worker ended: its exit code, or minus the signal."""

    status: int


class Called(msgspec.Struct, frozen=True, tag=True):
    """A call of the function: the form of input that it accepted, or the exceptions that it raised.

    With a `stage`, the exception came before the first call, when the worker did what `stage` says.
    """

    form: Form | None
    raised: tuple[Raised, ...] = ()
    hosts: tuple[str, ...] = ()
    proxy: str | None = None
    stage: str = ""


class Measured(msgspec.Struct, frozen=True, tag=True):
    """The memory of a worker on the sample: its private peak, and the bytes that it keeps per byte of text."""

    text_bytes: int
    own_bytes: int
    growth_rate: float
    raised: Raised | None


class Trying(msgspec.Struct, frozen=True, tag=True):
    """An unusual text that the function is about to be called on."""

    text: str


Answer = Loaded | Pickled | Forked | Ended | Called | Measured | Trying


def describe_exception(error: BaseException, script: str) -> Raised:
    """Returns an exception as an answer: its message on one line, and the last line of the script in its traceback."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == script]
    try:
        message = " ".join(str(error).split())
    except Exception:  # noqa: BLE001 - the __str__ of a user's exception may raise
        message = ""
    if len(message) > MAX_MESSAGE_CHARACTERS:
        message = f"{message[: MAX_MESSAGE_CHARACTERS - 3]}..."
    return Raised(type(error).__name__, message, lines[-1] if lines else None)
