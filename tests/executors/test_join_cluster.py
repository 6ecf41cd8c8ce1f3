"""Which cluster `--on ray` joins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tokenmill[ray]'")

import ray

from tests.support.command import run
from tests.support.corpora import SMALL_JSON
from tokenmill import errors
from tokenmill.executors.ray import cluster

pytestmark = pytest.mark.timeout(400)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_only_a_cluster_of_this_user_or_root_is_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file with the address of the current cluster is in a directory that every user can write to."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()

    def refuse() -> None:
        with pytest.raises(ConnectionError, match="started no cluster on this machine"):
            cluster.address_to_join(ray)

    file = tmp_path / "ray/ray_current_cluster"
    refuse()
    file.write_text("127.0.0.2:6379")
    assert cluster.address_to_join(ray) == "127.0.0.2:6379"
    file.chmod(0o666)
    refuse()
    file.chmod(0o644)
    os.chown(file, 12345, 12345)
    refuse()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cluster.address_to_join(ray) == "127.0.0.2:6379"
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    refuse()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.3:6379")
    assert cluster.address_to_join(ray) == "127.0.0.3:6379"


@pytest.mark.parametrize("address", [None, "local"])
def test_without_a_cluster_the_run_ends_with_advice(
    address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No cluster is started: the message says how to start one, and that one machine needs none."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "ray"))
    if address is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", address)
    (tmp_path / "text.txt").write_text("a")
    out = tmp_path / "store"
    arguments = ("prepare", tmp_path / "text.txt", "--tokenizer", SMALL_JSON, "--out", out, "--on", "ray")
    ended = run(*arguments, code=errors.TRY_AGAIN)
    assert "error: the Ray cluster cannot be joined" in ended.stderr
    assert "started no cluster on this machine" in ended.stderr
    assert "`ray start --head`" in ended.stderr
    assert "--on local" in ended.stderr
    assert not ray.is_initialized()
    assert not out.exists()
