"""Azure Blob Storage in the tests: azurite (from npm) where it is installed, with an account the caller chooses."""

from __future__ import annotations

import base64
import hmac
import os
import shutil
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

from tests.support.servers.processes import ServerProcess, free_ports

REQUEST_SECONDS = 60.0
API_VERSION = "2021-12-02"


def find_azurite() -> str | None:
    """The program azurite-blob: what the environment variable AZURITE names, or what is on PATH."""
    return os.environ.get("AZURITE") or shutil.which("azurite-blob")


@dataclass
class AzureServer:
    """One azurite in a directory. Its index is written every few seconds only, so its data do not survive a kill."""

    directory: Path
    account: str
    key: str
    port: int
    process: ServerProcess | None = None

    @property
    def endpoint(self) -> str:
        """The address of the account: azurite has the account in the path, Azure in the name of the host."""
        return f"http://127.0.0.1:{self.port}/{self.account}"

    def environment(self, endpoint: str | None = None) -> dict[str, str]:
        """What a client of this server needs in os.environ. Give the endpoint of a proxy to go through that."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": self.account,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_STORAGE_ENDPOINT": f"{endpoint}/{self.account}" if endpoint else self.endpoint,
            "AZURE_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Start the server and wait until it answers."""
        program = find_azurite() or "azurite-blob"
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", "data"]
        command += ["--silent", "--disableTelemetry", "--skipApiVersionCheck"]
        environment = {**os.environ, "AZURITE_ACCOUNTS": f"{self.account}:{self.key}"}
        self.process = ServerProcess.start(command, self.directory, environment)
        self.process.wait_until(self.healthy)

    def stop(self) -> None:
        """Kill the server: there is no farewell."""
        if self.process:
            self.process.stop()
            self.process = None

    def healthy(self) -> bool:
        """Whether it answers, if only that one may not ask."""
        try:
            urllib.request.urlopen(self.endpoint, timeout=REQUEST_SECONDS).close()
        except urllib.error.HTTPError as refusal:
            refusal.close()
        except OSError:
            return False
        return True

    def container(self, name: str) -> str:
        """Make a container, and give its URL. The request is signed here, because obstore can make none."""
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": API_VERSION}
        canonical = "".join(f"{key}:{value}\n" for key, value in headers.items())
        # Eleven standard headers, all empty; then the account twice, since azurite has it in the path as well.
        text = "PUT" + "\n" * 12 + canonical + f"/{self.account}/{self.account}/{name}\nrestype:container"
        signature = base64.b64encode(hmac.digest(base64.b64decode(self.key), text.encode(), "sha256")).decode()
        headers |= {"Authorization": f"SharedKey {self.account}:{signature}", "Content-Length": "0"}
        url = f"{self.endpoint}/{name}?restype=container"
        request = urllib.request.Request(url, headers=headers, method="PUT")
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS):
            return f"az://{name}"

    def store(self, url: str) -> Any:
        """The place that a URL names, as an obstore store."""
        from obstore.store import AzureStore

        return AzureStore.from_url(
            url,
            account_name=self.account,
            account_key=self.key,
            endpoint=self.endpoint,
            client_options={"allow_http": True},
        )


def start_azurite(directory: Path, account: str, key: str) -> AzureServer:
    """Start a new azurite in a directory, on a free port. The key is in Base64."""
    directory.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    server = AzureServer(directory, account, key, port)
    server.start()
    return server
