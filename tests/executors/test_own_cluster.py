"""The cluster that `--on ray` starts for itself: who can reach it, and what happens when its node dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tokenmill[ray]'")

from tests.support.corpora import SMALL_JSON
from tests.support.killing import wait_until, write_corpus
from tests.support.listening import descendants, is_loopback, listening, named
from tests.support.remote_runs import end, start
from tokenmill import errors

pytestmark = pytest.mark.timeout(400)

START_SECONDS = 120.0
"""How long Ray may take to start on a busy machine."""

START_ATTEMPTS = 3
MAX_END_SECONDS = 45.0
"""How long a command may take to end when its cluster has died; Ray itself takes more than a minute, or for ever."""

TRY_AGAIN = getattr(errors, "TRY_AGAIN", 1)

CONNECT = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1]); print('let in')"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of 100 units."""
    return write_corpus(tmp_path_factory.mktemp("run") / "corpus", 2000, 20)


@contextlib.contextmanager
def at_work(corpus: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A quiet `prepare --on ray` on a cluster of its own, with a first part committed; its worker is stopped."""
    slow = ("--tokenizer", SMALL_JSON, "--engine", "tokenizers", "--unit-bytes", "1", "--workers", "1")
    temporary = tempfile.mkdtemp(prefix="tm-ray-", dir="/tmp")  # a path of a socket has to be short
    usual = dict.fromkeys((name for name in os.environ if name.startswith("RAY_")), None)
    alone = {**usual, "RAY_TMPDIR": temporary, "RAY_enable_worker_prestart": "0", "HOME": str(tmp_path)}
    arguments = ("prepare", corpus, "--out", tmp_path / "store", *slow, "--on", "ray", "--quiet")
    process = _started(tmp_path / "store" / "parts", *arguments, **alone)
    try:
        os.kill(descendants(process.pid)[-1], signal.SIGSTOP)  # under Ray's node, its actor and its fork server
        yield process
    finally:
        for pid in reversed(descendants(process.pid) if process.poll() is None else []):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end(process)
        shutil.rmtree(temporary, ignore_errors=True)


def _started(parts: Path, *arguments: object, **environment: str | None) -> subprocess.Popen[str]:
    """A command that has committed a part. Ray gives its node 30 s to start, which a busy machine may exceed."""
    for _ in range(START_ATTEMPTS):
        process = start(*arguments, **environment)
        ready = partial(_is_ready, process, parts)
        assert wait_until(ready, START_SECONDS)
        if process.poll() is None:
            return process
        ended = end(process)
        assert "error: Ray did not start on this machine" in ended.err, ended.err
    raise AssertionError(ended.err)


def _is_ready(process: subprocess.Popen[str], parts: Path) -> bool:
    return process.poll() is not None or any(parts.glob("**/*.*"))


def let_in(address: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Try to talk to the cluster at an address."""
    command = [sys.executable, "-c", CONNECT, address]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        command, env={**kept, **environment}, capture_output=True, text=True, check=False, timeout=120
    )


def token_of(pid: int) -> str:
    """The token that a process of the cluster was started with."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((each.partition(b"=")[2].decode() for each in variables if each.startswith(b"RAY_AUTH_TOKEN=")), "")


def test_a_cluster_of_our_own_is_private_and_its_death_ends_the_run(corpus: Path, tmp_path: Path) -> None:
    """All its processes listen on loopback only, refuse a client without the token, and its raylet can be killed."""
    with at_work(corpus, tmp_path) as process:
        reachable = listening(descendants(process.pid))
        assert reachable
        assert [each for each in reachable if not is_loopback(each[0])] == []
        (gcs,), (raylet,) = named(process.pid, "gcs_server"), named(process.pid, "raylet")
        address = f"127.0.0.1:{listening([gcs])[0][1]}"
        assert "let in" in let_in(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=token_of(raylet)).stdout
        for environment in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}):
            refused = let_in(address, **environment)
            assert "let in" not in refused.stdout
            assert "AuthenticationError" in refused.stderr
        _dies_with(process, raylet)


def test_a_cluster_of_our_own_without_its_gcs_ends_the_run(corpus: Path, tmp_path: Path) -> None:
    """A quiet run whose GCS is killed ends soon, with a message and the exit code of what may work later."""
    with at_work(corpus, tmp_path) as process:
        _dies_with(process, *named(process.pid, "gcs_server"))


def _dies_with(process: subprocess.Popen[str], pid: int) -> None:
    ray = descendants(process.pid)[1:]
    os.kill(pid, signal.SIGKILL)
    started = time.monotonic()
    ended = end(process, MAX_END_SECONDS)
    assert time.monotonic() - started < MAX_END_SECONDS
    assert "error: the Ray cluster that was started for this run has died" in ended.err, ended.err
    assert "Traceback" not in ended.err
    assert ended.code == TRY_AGAIN
    for each in ray:  # without a GCS, Ray's agents take a minute to end
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
