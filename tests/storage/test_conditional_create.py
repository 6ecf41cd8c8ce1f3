"""Object stores that do not create conditionally: a run is refused there before it writes anything."""

from __future__ import annotations

import secrets
import time
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from tests.support.killing import write_corpus
from tests.support.remote_runs import SMALL_UNITS, tokenmill
from tests.support.servers.faults import Fault
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import UNSIGNED, Bucket
from tokenmill.errors import StorageError
from tokenmill.storage import folder_at
from tokenmill.storage.objects.locks import BucketLocks

ALWAYS = 10**9
MAX_SECONDS = 30.0
"""How long a refusal may take, of which starting the command takes most."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One Parquet file of a few row groups."""
    return write_corpus(tmp_path_factory.mktemp("conditional") / "corpus", documents=40, rows_per_group=10)


@pytest.fixture
def ignoring(s3: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a bucket on a server that ignores If-None-Match."""
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    proxy.inject(Fault(unconditional=True), method="PUT", times=ALWAYS)
    return s3.server.bucket(f"{UNSIGNED}{secrets.token_hex(6)}")


def test_a_server_that_ignores_the_condition_gets_no_run(corpus: Path, s3: Bucket, ignoring: str) -> None:
    """A run is refused, with what is needed, on a server that ignores If-None-Match; nothing is left in the bucket."""
    ended = tokenmill("prepare", corpus, *SMALL_UNITS, "--out", f"{ignoring}/run")
    assert ended.code not in (0, 2)
    assert "If-None-Match" in ended.err
    assert "Traceback" not in ended.err
    assert s3.server.objects(ignoring) == {}


def test_an_export_is_refused_there_too(corpus: Path, s3: Bucket, ignoring: str, tmp_path: Path) -> None:
    """An export of a local store to such a server is refused, and leaves nothing in the bucket."""
    out = tmp_path / "run"
    assert tokenmill("prepare", corpus, *SMALL_UNITS, "--out", out).code == 0
    ended = tokenmill("export", out, "--to", "nanogpt", "--out", f"{ignoring}/export")
    assert ended.code not in (0, 2)
    assert "If-None-Match" in ended.err
    assert s3.server.objects(ignoring) == {}


def test_a_condition_that_is_not_implemented_is_reported_at_once(corpus: Path, s3: Bucket, proxy: Proxy) -> None:
    """A server that answers 501 to a conditional PUT is reported within seconds, with its answer."""
    proxy.inject(Fault(status=501), method="PUT", times=ALWAYS)
    begun = time.monotonic()
    ended = tokenmill("prepare", corpus, *SMALL_UNITS, "--out", f"{s3.url}/run")
    assert time.monotonic() - begun < MAX_SECONDS
    assert ended.code not in (0, 2)
    assert "501 Not Implemented" in ended.err
    assert "If-None-Match" in ended.err


def test_a_part_answered_with_501_is_reported_at_once(s3: Bucket, proxy: Proxy) -> None:
    """Also in the middle of a run, 501 is not asked again for minutes."""
    folder = folder_at(f"{s3.url}/run")
    proxy.inject(Fault(status=501), method="PUT", times=ALWAYS)
    begun = time.monotonic()
    with pytest.raises(StorageError, match="501 Not Implemented"):
        folder.publish_if_absent("parts/00000000.arrow", pa.py_buffer(b"part"))
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("path", ["", "/run/plan-", "/run/run.json", "/run/parts/"])
def test_a_refusal_of_what_is_not_there_is_reported_as_that(corpus: Path, s3: Bucket, proxy: Proxy, path: str) -> None:
    """A server that answers 412 although there is no such object is reported as one that does so."""
    proxy.inject(Fault(status=412), method="PUT", path=path, times=ALWAYS)
    ended = tokenmill("prepare", corpus, *SMALL_UNITS, "--out", f"{s3.url}/run")
    assert ended.code not in (0, 2)
    assert "412" in ended.err
    assert "no such object" not in ended.err


def test_a_busy_server_is_asked_again_to_create(s3: Bucket, proxy: Proxy) -> None:
    """503, 500, 429 and a lost answer to a conditional PUT delay it, and the object is written once."""
    folder = folder_at(f"{s3.url}/run")
    for fault in (Fault(status=503), Fault(status=500), Fault(status=429), Fault(lose=True)):
        proxy.inject(fault, method="PUT", path="first")
    assert not folder.publish_if_absent(
        "first", pa.py_buffer(b"ours")
    )  # the answer was lost: who has written it is open
    assert folder.read("first") == b"ours"
    assert proxy.orders.left == 0


def test_conditions_that_are_switched_off_are_reported(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is set not to send the condition is reported as that."""
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    with pytest.raises(StorageError, match="conditional put is disabled"):
        folder_at(f"{s3.url}/run").locks.check_conditional_create()


def test_a_server_that_creates_conditionally_is_probed_once(corpus: Path, s3: Bucket, proxy: Proxy) -> None:
    """A run that is resumed is not probed again, and the probe leaves no object."""
    job = ("prepare", corpus, *SMALL_UNITS, "--out", f"{s3.url}/run")
    for expected in (2, 0):
        proxy.reset()
        assert tokenmill(*job).code == 0
        assert sum("probe" in exchange.path and exchange.method == "PUT" for exchange in proxy.exchanges) == expected
    assert not any("probe" in name for name in s3.server.objects(s3.url))


def test_probes_of_killed_drivers_are_removed(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe removes itself and older probes. Younger probes, which may be in use, and other objects stay."""
    folder, store = folder_at(f"{s3.url}/run"), s3.server.store(f"{s3.url}/run")
    ages = {".probe-old": 6, ".probe-young": 4, "mine": 6}
    for name in (*ages, "parts/.probe-other"):
        store.put(name, b"first")
    listed = BucketLocks._list_times

    def list_times(self: BucketLocks) -> dict[str, datetime]:
        return {name: time - timedelta(minutes=ages.get(name, 0)) for name, time in listed(self).items()}

    monkeypatch.setattr(BucketLocks, "_list_times", list_times)
    folder.locks.check_conditional_create()
    assert set(s3.server.objects(f"{s3.url}/run")) == {".probe-young", "parts/.probe-other", "mine"}


def test_a_directory_needs_no_probe(tmp_path: Path) -> None:
    """On a disk the probe does nothing."""
    folder_at(str(tmp_path / "run")).locks.check_conditional_create()
    assert not (tmp_path / "run").exists()
