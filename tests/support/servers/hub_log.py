"""What clients asked the tests' hub for, and the limit on how often they may."""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

API, RESOLVE, CDN = "api", "resolve", "cdn"


@dataclass
class Request:
    """One request and how it was answered."""

    kind: str
    method: str
    path: str
    range: str
    has_token: bool
    too_early: bool = False
    """Whether the very same request was refused before, and came again sooner than its answer had asked for."""
    status: int = 0
    bytes_sent: int = 0
    """Bytes of the body that were to be sent."""


@dataclass
class RequestLog:
    """All requests, in the order they came."""

    requests: list[Request] = field(default_factory=list)

    def of(self, kind: str, method: str | None = None, path: str = "") -> list[Request]:
        """The requests of a kind, with this method (None: any), whose path and query contain a string."""
        chosen = [request for request in list(self.requests) if request.kind == kind and path in request.path]
        return [request for request in chosen if method in {None, request.method}]

    def counts(self) -> Counter[str]:
        """How many requests there were of each kind."""
        return Counter(request.kind for request in list(self.requests))

    def bytes_sent(self, kind: str) -> int:
        """Bytes of bodies sent for requests of a kind."""
        return sum(request.bytes_sent for request in self.of(kind))

    @property
    def refused(self) -> int:
        """How many requests were answered 429."""
        return sum(request.status == 429 for request in list(self.requests))

    @property
    def too_early(self) -> int:
        """How many requests came again before they should have."""
        return sum(request.too_early for request in list(self.requests))

    @property
    def leaked_tokens(self) -> int:
        """How many requests brought a token to the CDN, which is no business of its."""
        return sum(request.has_token for request in self.of(CDN))

    def clear(self) -> None:
        """Begin anew."""
        self.requests.clear()


class Clock:
    """Stands for the module `time` in a client of the hub: monotonic time passes only while the client sleeps."""

    time = staticmethod(time.time)

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.lock = threading.Lock()

    def sleep(self, seconds: float) -> None:
        """Let some time pass."""
        with self.lock:
            self.now += seconds

    def monotonic(self) -> float:
        """The time now."""
        return self.now


@dataclass
class RequestLimit:
    """At most so many requests of these kinds in so many seconds, as the Hub counts them: in fixed windows."""

    most: int
    window_seconds: float
    kinds: tuple[str, ...] = (API, RESOLVE)
    clock: Callable[[], float] = time.monotonic
    window_start: float = 0.0
    used: int = 0
    not_before: dict[tuple[str, str, str], float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def seconds_to_wait(self, request: Request) -> int:
        """0 if a request may pass, otherwise the Retry-After of its refusal. Marks one that came back too early."""
        if request.kind not in self.kinds:
            return 0
        now, key = self.clock(), (request.method, request.path, request.range)
        with self.lock:
            request.too_early = now < self.not_before.pop(key, 0.0)
            if now - self.window_start >= self.window_seconds:
                self.window_start, self.used = now, 0
            self.used += 1
            if self.used <= self.most:
                return 0
            seconds = max(1, math.ceil(self.window_start + self.window_seconds - now))
            self.not_before[key] = now + seconds
            return seconds
