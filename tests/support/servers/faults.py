"""The faults that a proxy can be told to inject, each for the next requests of a kind."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from urllib.parse import parse_qs, urlsplit

S3_CODES = {
    403: "ExpiredToken",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "SlowDown",
}
"""What S3 calls these answers in their bodies."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong with a request. Exactly one of the first six says what."""

    status: int | None = None
    """Answer with this status, without asking the server."""
    cut: int | None = None
    """Let so many bytes of the answer's body pass, then reset the connection."""
    stall_seconds: float | None = None
    """Hold the request back for so long. It goes on to the server then, even if its sender has given up."""
    lose: bool = False
    """Let the server do what it is asked, then close the connection instead of answering."""
    unconditional: bool = False
    """Pass the request on without its If-None-Match, as servers do that ignore it. Only for unsigned requests."""
    meanwhile: Callable[[], object] | None = None
    """Hold the request back until this is done."""
    retry_after_seconds: int | None = None
    """With `status`: when the client may come back."""

    def answer(self, method: str) -> bytes:
        """The whole answer of a fault with a status, as S3 words it."""
        status = HTTPStatus(self.status or 500)
        code = S3_CODES.get(status, status.phrase.replace(" ", ""))
        body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", "Content-Type: application/xml"]
        lines += [f"Content-Length: {len(body)}"]
        lines += [f"Retry-After: {self.retry_after_seconds}"] if self.retry_after_seconds is not None else []
        return "\r\n".join([*lines, "", "" if method == "HEAD" else body]).encode()


@dataclass
class Order:
    """A fault for the next requests that match."""

    fault: Fault
    matches: Callable[[str, str], bool]
    left: int


@dataclass
class Orders:
    """All faults ordered and not yet injected. The oldest order that matches a request is taken."""

    orders: list[Order] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, order: Order) -> None:
        """Take one more order."""
        with self.lock:
            self.orders.append(order)

    def take(self, method: str, path: str) -> Fault | None:
        """The fault for this request, if one is ordered."""
        with self.lock:
            for order in self.orders:
                if order.left > 0 and order.matches(method, path):
                    order.left -= 1
                    return order.fault
        return None

    @property
    def left(self) -> int:
        """How many faults have not been injected yet."""
        with self.lock:
            return sum(order.left for order in self.orders)

    def clear(self) -> None:
        """Forget what was ordered."""
        with self.lock:
            self.orders.clear()


BURST_SECONDS = 0.25
"""After so long without requests, a prefix takes all that it would have taken meanwhile at once, and no more."""


@dataclass
class RateLimit:
    """Answers 503 SlowDown above a rate, as S3 does: each prefix has a rate of writes, and one of reads.

    A prefix is here what stands before the last slash. A request that is refused does not count.
    """

    writes_per_second: float
    reads_per_second: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    left: dict[tuple[str, bool], tuple[float, float]] = field(default_factory=dict)
    """For each prefix and kind of request, which is True for a read: what was left after the last one, and when."""
    passed: defaultdict[tuple[str, bool], list[float]] = field(default_factory=lambda: defaultdict(list))
    """For each prefix and kind: when requests were let through."""

    def rate(self, *, is_read: bool) -> float:
        """The limit of reads or writes."""
        return self.reads_per_second if is_read else self.writes_per_second

    def take(self, method: str, path: str) -> Fault | None:
        """The fault for this request, if it is one too many."""
        address = urlsplit(path)
        key = parse_qs(address.query).get("prefix")
        prefix = f"{address.path}/{key[0]}" if key else address.path
        kind = prefix.rpartition("/")[0], method in {"GET", "HEAD"}
        rate = self.rate(is_read=kind[1])
        most = max(1.0, rate * BURST_SECONDS)
        with self.lock:
            now = time.monotonic()
            left, since = self.left.get(kind, (rate * BURST_SECONDS, now))
            left = min(most, left + (now - since) * rate)
            self.left[kind] = (left - (left >= 1), now)
            if left < 1:
                return Fault(status=503)
            self.passed[kind].append(now)
            return None
