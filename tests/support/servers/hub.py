"""The Hub in the tests: dataset repositories over HTTP, spoken to as huggingface_hub speaks to the real one.

Run it for people with `python -m tests.support.servers.hub ORG/NAME=FOLDER ...`.
"""

from __future__ import annotations

import argparse
import hashlib
import hmac
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.servers.hub_answers import HubHandler
from tests.support.servers.hub_log import RequestLimit, RequestLog
from tests.support.servers.repositories import Repository


class Hub:
    """A hub and its CDN, in threads of this process, on a port each, so that clients take them for different hosts.

    with Hub() as hub:
        hub.add("org/name", folder, sha="9bb2...")
        environment = hub.environment(home)

    huggingface_hub reads HF_ENDPOINT once, when it is imported. So start what uses the hub as a process with that
    environment, or give the endpoint: `HfApi(endpoint=hub.endpoint)`, `HfFileSystem(endpoint=hub.endpoint)`.
    To go through proxies, give clients the endpoint of one in front of `hub.port`, and set `cdn_endpoint` to that of
    another in front of `hub.cdn_port`.
    """

    def __init__(self) -> None:
        handler = type("Handler", (HubHandler,), {"hub": self})
        self._servers = [_Server(("127.0.0.1", 0), handler) for _ in range(2)]
        self.port, self.cdn_port = (server.server_address[1] for server in self._servers)
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.reset()
        self._threads = [threading.Thread(target=server.serve_forever, args=(0.02,)) for server in self._servers]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def reset(self) -> None:
        """Forget all repositories, requests and settings."""
        self.page_size = 1000
        self.signature_seconds = 3600.0
        self.log = RequestLog()
        self.limit: RequestLimit | None = None
        self.repositories: dict[str, Repository] = {}
        self.cdn_endpoint = f"http://127.0.0.1:{self.cdn_port}"
        self.expire_signatures()

    def add(
        self, name: str, content: Path | Mapping[str, Path], sha: str | None = None, token: str | None = None
    ) -> Repository:
        """Serve the files of a folder, or a mapping from names to files, as a dataset; private if there is a token."""
        self.repositories[name] = Repository.create(name, content, sha, token)
        return self.repositories[name]

    def environment(self, home: Path, endpoint: str | None = None) -> dict[str, str]:
        """What a client of this hub needs in os.environ. Give the endpoint of a proxy to go through that."""
        return {"HF_ENDPOINT": endpoint or self.endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1"}

    def limit_requests(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """From now on, answer 429 with Retry-After to more requests than this in so many seconds of a clock."""
        self.limit = RequestLimit(most, seconds, clock=clock)

    def expire_signatures(self) -> None:
        """Make every CDN address that was given out so far invalid, as time would."""
        self._signing_key = secrets.token_bytes(16)

    def sign(self, path: str) -> str:
        """The address of a file on the CDN, good for a while."""
        expires = str(int(time.time() + self.signature_seconds))
        return f"{self.cdn_endpoint}{path}?Expires={expires}&Signature={self._signature(path, expires)}"

    def is_signed(self, path: str, expires: str, signature: str) -> bool:
        """Whether an address of the CDN was given out by this hub and is still good."""
        good = hmac.compare_digest(self._signature(path, expires), signature)
        return good and expires.isdigit() and time.time() <= int(expires)

    def _signature(self, path: str, expires: str) -> str:
        return hmac.new(self._signing_key, f"{path}\n{expires}".encode(), hashlib.sha256).hexdigest()

    def stop(self) -> None:
        """Close every connection and wait for the threads."""
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.close_connections()
            server.server_close()


class _Server(ThreadingHTTPServer):
    """Knows its connections, so that it can end those that clients keep alive."""

    request_queue_size = 512
    daemon_threads = False  # so that server_close waits for them

    def __init__(self, address: tuple[str, int], handler: type[HubHandler]) -> None:
        super().__init__(address, handler)
        self.connections: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept a connection."""
        connection, address = super().get_request()
        self.connections.add(connection)
        return connection, address

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection."""
        assert isinstance(request, socket.socket), "a datagram server has no connections"
        self.connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """A client that goes away in the middle of an answer is no error of the hub's."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def close_connections(self) -> None:
        """Wake the threads that wait for more requests, so that they end."""
        for connection in list(self.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Serve folders until interrupted."""
    parser = argparse.ArgumentParser(description="Serve folders as dataset repositories of a hub on loopback.")
    parser.add_argument(
        "repositories", nargs="+", metavar="ORG/NAME=FOLDER", help="a repository, or ORG/NAME@SHA=FOLDER"
    )
    with Hub() as hub:
        for given in parser.parse_args().repositories:
            name, _, folder = given.partition("=")
            name, _, sha = name.partition("@")
            hub.add(name, Path(folder), sha or None)
        sys.stdout.write(f"export HF_ENDPOINT={hub.endpoint}\n")
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
