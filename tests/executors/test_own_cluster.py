"""The cluster that `--on ray` starts for itself: who can reach it, and what happens when its node dies."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tokenmill[ray]'")

import ray

from tests.support.corpora import SMALL_JSON
from tests.support.killing import wait_until, write_corpus
from tests.support.listening import descendants, is_loopback, listening, named
from tests.support.remote_runs import end, start
from tokenmill import errors
from tokenmill.executors.ray import own_cluster

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


def variable_of(pid: int, name: str) -> str:
    """A variable of the environment that a process was started with."""
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return next((each.partition("=")[2] for each in variables if each.startswith(f"{name}=")), "")


def test_a_cluster_of_our_own_is_private_and_its_death_ends_the_run(corpus: Path, tmp_path: Path) -> None:
    """All its processes listen on loopback only, refuse a client without the token, and its raylet can be killed.

    Its files are in a directory that only this user can enter, which is removed at the end.
    """
    with at_work(corpus, tmp_path) as process:
        temporary = Path(variable_of(process.pid, "RAY_TMPDIR"))
        (private,) = temporary.iterdir()
        assert stat.S_IMODE(private.stat().st_mode) == 0o700
        assert list(private.glob("ray/session_2*/sockets/raylet*"))
        reachable = listening(descendants(process.pid))
        assert reachable
        assert [each for each in reachable if not is_loopback(each[0])] == []
        (gcs,), (raylet,) = named(process.pid, "gcs_server"), named(process.pid, "raylet")
        address = f"127.0.0.1:{listening([gcs])[0][1]}"
        assert (
            "let in"
            in let_in(address, RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=variable_of(raylet, "RAY_AUTH_TOKEN")).stdout
        )
        for environment in ({"RAY_AUTH_MODE": "disabled"}, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a" * 64}):
            refused = let_in(address, **environment)
            assert "let in" not in refused.stdout
            assert "AuthenticationError" in refused.stderr
        _dies_with(process, raylet)
        assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    ("variables", "parent"),
    [
        ({}, "/tmp"),
        ({"TMPDIR": "/dev/shm"}, "/dev/shm"),
        ({"RAY_TMPDIR": "/dev/shm", "TMPDIR": "/tmp"}, "/dev/shm"),
        ({"RAY_TMPDIR": "/tmp/" + "long" * 20, "TMPDIR": "/dev/shm"}, "/dev/shm"),
        ({"TMPDIR": "/tmp/" + "long" * 20}, "/tmp"),
    ],
)
def test_the_directory_of_a_cluster_is_private_and_short(variables: dict[str, str], parent: str) -> None:
    """A path of a socket in it fits, wherever temporary files go."""
    directory = Path(own_cluster.make_directory(variables))
    directory.rmdir()
    assert directory.parent == Path(parent)
    assert len(f"{directory}/ray/session_2026-11-18_12-48-00_123456_4194304/sockets/plasma_store") <= 107


def test_a_directory_that_all_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user could put a directory of theirs in the place of the one that was made there."""
    monkeypatch.setattr(own_cluster, "MAX_DIRECTORY_BYTES", 1000)
    tmp_path.chmod(0o777)
    directory = Path(own_cluster.make_directory({"TMPDIR": str(tmp_path)}))
    assert directory.parent == Path("/tmp")
    directory.rmdir()
    tmp_path.chmod(0o1777)
    assert Path(own_cluster.make_directory({"TMPDIR": str(tmp_path)})).parent == tmp_path
    with pytest.raises(errors.UsageError, match="Ray has no directory for its files"):
        own_cluster.make_directory({"TMPDIR": str(tmp_path / "missing")})


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_only_a_cluster_of_this_user_or_root_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file with the address of the current cluster is in a directory that every user can write to."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    file = tmp_path / "ray/ray_current_cluster"
    assert own_cluster.address_to_join(ray) is None
    file.write_text("127.0.0.2:6379")
    assert own_cluster.address_to_join(ray) == "127.0.0.2:6379"
    file.chmod(0o666)
    assert own_cluster.address_to_join(ray) is None
    file.chmod(0o644)
    os.chown(file, 12345, 12345)
    assert own_cluster.address_to_join(ray) is None
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert own_cluster.address_to_join(ray) == "127.0.0.2:6379"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert own_cluster.address_to_join(ray) is None
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.3:6379")
    assert own_cluster.address_to_join(ray) == "127.0.0.3:6379"


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
