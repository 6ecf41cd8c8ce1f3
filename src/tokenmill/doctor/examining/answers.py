"""What the processes of an examination are asked, and what they answer: data in JSON, one answer a line."""

from __future__ import annotations

from typing import Literal

import msgspec

Form = Literal["row", "batch", "text"]
Role = Literal["parent", "spawned", "hash", "parts"]
ObstacleKind = Literal["native", "resource", "nameless"]
Place = Literal["fork", "fork again", "fork after call", "odd texts", "parent", "spawned"]
Outcome = Literal["done", "hung", "slow", "outgrew", "died"]


class ProbeRequest(msgspec.Struct, frozen=True):
    """What a process is to do. It leaves its answers in `folder`, and the pickled function in `pickles`."""

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
    """An exception, with the last line of the script that it went through."""

    type: str
    message: str
    line: int | None = None


class Misnamed(msgspec.Struct, frozen=True):
    """What was named is not a function by itself; `instead` is a name that would do."""

    kind: Literal["class", "method"]
    instead: str


class Obstacle(msgspec.Struct, frozen=True):
    """What cannot be pickled: where it is, as an expression and in the script's own names, and what it is."""

    path: str
    spoken: str
    type: str
    kind: ObstacleKind
    sort: str
    vocabulary: str | None = None


class Part(msgspec.Struct, frozen=True):
    """A large part of what is pickled."""

    path: str
    size_bytes: int
    type: str


class Loaded(msgspec.Struct, frozen=True, tag=True):
    """The script has been run up to what starts processes, raises or takes too long: see `process_line`, ...

    "Own" is what statements other than imports took.
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
    """The function pickled in one way, or why it could not be."""

    pickler: str
    size_bytes: int | None = None
    raised: Raised | None = None
    obstacle: Obstacle | None = None
    largest: Part | None = None


class Unpickled(msgspec.Struct, frozen=True, tag=True):
    """What a process that was started anew found in place of the function."""

    raised: Raised | None = None


class Called(msgspec.Struct, frozen=True, tag=True):
    """The function was called: the form that it took, or what it raised on each."""

    place: Place
    form: Form | None
    seconds: float = 0.0
    raised: tuple[Raised, ...] = ()
    hosts: tuple[str, ...] = ()
    proxy: str | None = None
    unready: Raised | None = None


class Trying(msgspec.Struct, frozen=True, tag=True):
    """An odd text that the function is about to be called on."""

    text: str


class MeasuredCall(msgspec.Struct, frozen=True, tag=True):
    """The memory of a worker on the sample: its own at the peak, and how it still grew (see `memory.Growth`)."""

    place: Place
    text_bytes: int
    seconds: float
    own_bytes: int
    growth_rate: float
    growth_power: float
    raised: Raised | None = None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """How a forked process ended. `threads` are those of its parent at the fork.

    It hung if it waited for a lock that nobody could release; it was slow if it was not done in time.
    """

    place: Place
    outcome: Outcome
    threads: int
    status: int = 0
    stack: tuple[str, ...] = ()
    grown_bytes: int = 0
    seconds: float = 0.0
    idle_seconds: float = 0.0


class Hashed(msgspec.Struct, frozen=True, tag=True):
    """The fingerprint that datasets gives the function, or what keeps it from one."""

    after_call: bool
    digest: str | None = None
    raised: Raised | None = None
    obstacle: Obstacle | None = None


class Parts(msgspec.Struct, frozen=True, tag=True):
    """The fingerprints of what the function holds, by path."""

    digests: dict[str, str]


Answer = Loaded | Pickled | Unpickled | Called | Trying | MeasuredCall | Ended | Hashed | Parts
