"""Commands on stores in object storage, and what is compared of those stores. Shared by the tests of remote runs."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support import command
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.killing import without_sources
from tests.support.servers.seaweed import S3Server

WAIT_SECONDS = 60.0
"""The longest that a command may take."""

TOKENIZER = ("--tokenizer", SMALL_TIKTOKEN, "--eot", "1199")
SMALL_UNITS = (*TOKENIZER, "--workers", "2", "--unit-bytes", "1")
"""A unit for each row group, so that a small corpus has many."""

NOT_COMPARED = re.compile(r"log(-\d+)?\.jsonl|\..*lock|log/.*|drivers/.*|.*\.tokenmill/lock")
"""What tells of a run's course, not of its result."""


@dataclass(frozen=True)
class Ended:
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str

    def result(self) -> Any:
        """What it printed as JSON; it has to have succeeded."""
        assert self.code == 0, self.err
        return json.loads(self.out)


def start(*arguments: object, code: str | None = None, **environment: str | None) -> subprocess.Popen[str]:
    """Start the command, or code that runs it, as the leader of its own process group.

    None removes a variable from its environment.
    """
    program = ("-m", "tokenmill") if code is None else ("-c", code)
    changed = {name: value for name, value in {**os.environ, **environment}.items() if value is not None}
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        env=changed,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str], seconds: float = WAIT_SECONDS) -> Ended:
    """Wait for a command's end; if it takes too long, all of it is killed, and that is an error."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        raise
    return Ended(process.returncode, out, err)


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a command and its workers at once."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


@contextlib.contextmanager
def running(*arguments: object, **environment: str | None) -> Iterator[subprocess.Popen[str]]:
    """A command at work; what is left of it when the block ends is killed."""
    process = start(*arguments, **environment)
    try:
        yield process
    finally:
        if process.poll() is None:
            kill(process)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def tokenmill(*arguments: object, **environment: str | None) -> Ended:
    """Run the command to its end, in this process."""
    done = command.run(*arguments, code=None, **environment)
    return Ended(done.returncode, done.stdout, done.stderr)


def prepared(*arguments: object, **environment: str | None) -> Any:
    """What `prepare --json` prints; it has to succeed."""
    return tokenmill("prepare", *arguments, "--json", **environment).result()


def local_files(directory: Path) -> dict[str, bytes]:
    """Name and content of everything below a directory."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def put_directory(server: S3Server, url: str) -> None:
    """Make an empty object whose key ends with a slash, as consoles do for a directory; obstore makes none."""
    stamp, empty = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"), hashlib.sha256().hexdigest()
    headers = {"host": f"127.0.0.1:{server.port}", "x-amz-content-sha256": empty, "x-amz-date": stamp}
    signed = [*(f"{name}:{value}" for name, value in headers.items()), "", ";".join(headers), empty]
    request = "\n".join(["PUT", url.removeprefix("s3:/"), "", *signed])
    scope = [stamp[:8], "us-east-1", "s3", "aws4_request"]
    text = "\n".join(["AWS4-HMAC-SHA256", stamp, "/".join(scope), hashlib.sha256(request.encode()).hexdigest()])
    key = f"AWS4{server.secret_key}".encode()
    for word in [*scope, text]:
        key = hmac.digest(key, word.encode(), "sha256")
    who = f"Credential={server.access_key}/{'/'.join(scope)}"
    headers["Authorization"] = f"AWS4-HMAC-SHA256 {who}, SignedHeaders={';'.join(headers)}, Signature={key.hex()}"
    address = f"{server.endpoint}{url.removeprefix('s3:/')}"
    urllib.request.urlopen(urllib.request.Request(address, headers=headers, method="PUT"), timeout=10).close()


def results(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """What a run gives: the same, wherever sources and store are. Only the sources' addresses and etags are theirs."""
    named = {re.sub(r"^(plan|sources)-[0-9a-f]{16}\.", r"\1.", name): data for name, data in files.items()}
    found = {name: data for name, data in named.items() if not NOT_COMPARED.fullmatch(name)}
    found.pop("sources.parquet")
    frozen = {**json.loads(found["run.json"]), "sources_blake3": "", "engine": "", "checksum": ""}
    listed = {"manifest.parquet": without_sources(found["manifest.parquet"])} if "manifest.parquet" in found else {}
    return {**found, **listed, "run.json": json.dumps(frozen).encode()}


def differences(files: Mapping[str, bytes], expected: Mapping[str, bytes]) -> list[str]:
    """The names of the files of two stores that are missing, new or different: none, if all is well."""
    one, other = results(files), results(expected)
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def units_done(files: Mapping[str, bytes]) -> list[int]:
    """The units that were done, as the journals of all runs tell, in the order of their numbers."""
    lines = [line for name, data in files.items() if name.startswith("log/") for line in data.splitlines()]
    return sorted(event["unit"] for event in map(json.loads, lines) if event["event"] == "unit")
