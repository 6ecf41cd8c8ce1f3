"""The request to a probe process and its answers: JSON, one answer per line."""

from __future__ import annotations

import traceback
from typing import Literal

import msgspec

Form = Literal["row", "batch", "text"]
Role = Literal["parent", "spawned", "hash", "parts"]
ObstacleKind = Literal["native", "resource", "nameless"]
Trial = Literal["fork", "fork again", "fork after call", "odd texts", "parent", "spawned"]
Outcome = Literal["done", "hung", "slow", "outgrew", "died"]

MAX_MESSAGE_CHARACTERS = 300


class ProbeRequest(msgspec.Struct, frozen=True):
    """What a probe process does. It writes answers to `folder` and the pickled function to `pickles`."""

    role: Role
    script: str
    function: str
    column: str
    folder: str
    pickles: str
    forms: tuple[Form, ...]
    picklers: tuple[str, ...] = ()
    initializer: str | None = None
    initargs: str | None = None
    fork: bool = False
    hashes: bool = False
    imports_main: bool = True
    load_seconds: float = 60.0
    sample_seconds: float = 1.5
    most_bytes: int = 1 << 62


class Raised(msgspec.Struct, frozen=True):
    """An exception, with the last line of the script in its traceback."""

    type: str
    message: str
    line: int | None = None


class Misnamed(msgspec.Struct, frozen=True):
    """The given name is a class or an unbound method. `instead` is a name that would work."""

    kind: Literal["class", "method"]
    instead: str


class Obstacle(msgspec.Struct, frozen=True):
    """An object that cannot be pickled.

    `path` is a Python expression for it; `spoken` uses the variable names of the script.
    """

    path: str
    spoken: str
    type: str
    kind: ObstacleKind
    sort: str
    vocabulary: str | None = None


class Part(msgspec.Struct, frozen=True):
    """A large part of a pickled object."""

    path: str
    size_bytes: int
    type: str


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The result of loading the script.

    Loading stops where the script starts a process (`process_line`), raises (`raised`) or takes too long (`late_line`).
    `own_seconds` and `own_bytes` exclude import statements.
    """

    seconds: float
    own_seconds: float
    own_bytes: int
    slowest_line: int | None
    process_line: int | None
    late_line: int | None
    raised: Raised | None
    exists: bool
    is_callable: bool
    names: tuple[str, ...]
    threads: int
    held_bytes: int
    address_space: int | None
    open_files: int | None
    processes: int | None
    folders: tuple[str, ...]
    hosts: tuple[str, ...] = ()
    misnamed: Misnamed | None = None


class Pickled(msgspec.Struct, frozen=True, tag=True):
    """The function pickled by one pickler, or the reason why that failed."""

    pickler: str
    size_bytes: int | None = None
    raised: Raised | None = None
    obstacle: Obstacle | None = None
    largest: Part | None = None


class Unpickled(msgspec.Struct, frozen=True, tag=True):
    """Whether a newly started process could unpickle the function."""

    raised: Raised | None = None


class Called(msgspec.Struct, frozen=True, tag=True):
    """A call of the function: the form of input that it accepted, or the exceptions that it raised.

    `unready` is an exception of the pool's initializer.
    """

    place: Trial
    form: Form | None
    seconds: float = 0.0
    raised: tuple[Raised, ...] = ()
    hosts: tuple[str, ...] = ()
    proxy: str | None = None
    unready: Raised | None = None


class Trying(msgspec.Struct, frozen=True, tag=True):
    """An unusual text that the function is about to be called on."""

    text: str


class MeasuredCall(msgspec.Struct, frozen=True, tag=True):
    """The memory of a worker on the sample: its private peak and its growth (see `memory.Growth`)."""

    place: Trial
    text_bytes: int
    seconds: float
    own_bytes: int
    growth_rate: float
    growth_power: float
    raised: Raised | None = None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """How a forked child ended. `threads` counts the threads of its parent at the fork.

    "hung": it waited for a lock that no thread could release. "slow": it did not finish in time.
    """

    place: Trial
    outcome: Outcome
    threads: int
    status: int = 0
    stack: tuple[str, ...] = ()
    grown_bytes: int = 0
    seconds: float = 0.0
    idle_seconds: float = 0.0


class Hashed(msgspec.Struct, frozen=True, tag=True):
    """The fingerprint that datasets computes for the function, or the reason why it fails."""

    after_call: bool
    digest: str | None = None
    raised: Raised | None = None
    obstacle: Obstacle | None = None


class Parts(msgspec.Struct, frozen=True, tag=True):
    """The fingerprints of the objects that the function holds, by path."""

    digests: dict[str, str]


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


Answer = Loaded | Pickled | Unpickled | Called | Trying | MeasuredCall | Ended | Hashed | Parts
