"""A reverse proxy on loopback that counts what passes, adds latency, and injects the faults that a test orders.

It keeps connections alive on both sides and passes heads and bodies on as they are. The Host header stays that of the
proxy: that is what the client has signed (SigV4), and what a server behind it checks the signature against.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Self

from tests.support.servers.faults import Fault, Order, Orders, RateLimit
from tests.support.servers.http_messages import Head
from tests.support.servers.relay import Exchange, Relay


class Proxy:
    """A proxy in front of a port of this machine, in threads of this process: one for each connection.

    with Proxy(server.port, latency_seconds=0.02) as proxy:
        environment = server.environment(proxy.endpoint)
        proxy.inject(Fault(status=503), method="GET", path="parts/", times=3)

    Blocking threads and one buffer each, not asyncio: a body is received into the buffer and sent from it, outside the
    interpreter's lock, and not copied in between.
    """

    def __init__(self, upstream_port: int, latency_seconds: float = 0.0, limit: RateLimit | None = None) -> None:
        self.upstream_port = upstream_port
        self.latency_seconds = latency_seconds
        self.limit = limit
        self.exchanges: list[Exchange] = []
        self.orders = Orders()
        self._stopped = threading.Event()
        self._hold: Order | None = None
        self._change = threading.Condition()
        self._relays: dict[threading.Thread, Relay] = {}
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = int(self._listener.getsockname()[1])
        self._acceptor = threading.Thread(target=self._accept, daemon=True, name="proxy")
        self._acceptor.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def endpoint(self) -> str:
        """Its address, to be given to clients in place of the server's."""
        return f"http://127.0.0.1:{self.port}"

    def inject(self, fault: Fault, method: str | None = None, path: str = "", times: int = 1) -> None:
        """Inject a fault into the next requests with this method (None: any) whose path and query contain a string."""
        self.orders.add(Order(fault, _matcher(method, path), times))

    @contextmanager
    def held(self, path: str, method: str | None = None, after: int = 0) -> Iterator[None]:
        """Until the block ends, hold such requests back as `inject` takes, after so many that pass."""
        with self._change:
            self._hold = Order(Fault(), _matcher(method, path), after)
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        with self._change:
            self._hold = None
            self._change.notify_all()

    def _passes(self, exchange: Exchange) -> bool:
        """Whether a request is not held back, or is one of the first that pass."""
        if self._hold is None or not self._hold.matches(exchange.method, exchange.path):
            return True
        self._hold.left -= 1
        return self._hold.left >= 0

    def written(self, path: str) -> int:
        """How many objects were written whose path and query contain a string."""
        done = [exchange for exchange in list(self.exchanges) if exchange.method == "PUT" and exchange.status == 200]
        return sum(path in exchange.path for exchange in done)

    @property
    def requests(self) -> Counter[str]:
        """How many requests came, by method."""
        return Counter(exchange.method for exchange in list(self.exchanges))

    @property
    def bytes_up(self) -> int:
        """Bytes of the bodies of requests."""
        return sum(exchange.bytes_up for exchange in list(self.exchanges))

    @property
    def bytes_down(self) -> int:
        """Bytes of the bodies of answers, as far as they were passed on."""
        return sum(exchange.bytes_down for exchange in list(self.exchanges))

    def reset(self) -> None:
        """Begin to count anew, and forget the faults that were ordered."""
        self.exchanges.clear()
        self.orders.clear()

    def wait_until_idle(self, seconds: float = 10.0) -> None:
        """Wait until every connection is closed: what clients that have ended had asked for is done then, or never."""
        deadline = time.monotonic() + seconds
        while self._relays:
            assert time.monotonic() < deadline, "a client is still connected"
            time.sleep(0.02)

    def stop(self) -> None:
        """Close every connection and wait for the threads."""
        self._stopped.set()
        self._release()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        for thread, relay in list(self._relays.items()):
            relay.interrupt()
            thread.join()

    def _accept(self) -> None:
        while not self._stopped.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            relay = Relay(client, self.upstream_port, self._begin, self._pause)
            thread = threading.Thread(target=self._run, args=(relay,), daemon=True, name="proxy connection")
            self._relays[thread] = relay
            thread.start()

    def _run(self, relay: Relay) -> None:
        try:
            relay.run()
        finally:
            self._relays.pop(threading.current_thread(), None)

    def _begin(self, head: Head) -> Exchange:
        method, path = head.words[:2]
        fault = self.orders.take(method, path) or (self.limit and self.limit.take(method, path)) or Fault()
        exchange = Exchange(method, path, head.value("range"), fault)
        self.exchanges.append(exchange)
        return exchange

    def _pause(self, exchange: Exchange) -> bool:
        """Wait as long as a request is to be held back; whether the proxy was stopped meanwhile."""
        with self._change:
            self._change.wait_for(lambda: self._passes(exchange))
        if exchange.fault.meanwhile:
            exchange.fault.meanwhile()
        return self._stopped.wait(self.latency_seconds + (exchange.fault.stall_seconds or 0))


def _matcher(method: str | None, path: str) -> Callable[[str, str], bool]:
    return lambda its, where: method in {None, its} and path in where
