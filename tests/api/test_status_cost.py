"""What watching a run costs, and what many runs leave in `drivers/`."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokenmill
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.killing import write_corpus
from tests.support.remote_runs import SMALL_UNITS, end, running
from tests.support.remote_runs import tokenmill as run_tokenmill
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket
from tokenmill.api.status import StatusWatch
from tokenmill.storage import folder_at
from tokenmill.store import heartbeats, layout

UNITS = 20
HALTED_SECONDS = 3.0
LOOKS = 5


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Parquet files of many small row groups."""
    return write_corpus(tmp_path_factory.mktemp("watching") / "corpus", documents=UNITS * 10, rows_per_group=10)


@pytest.fixture
def proxy(s3: Bucket) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with Proxy(s3.server.port) as proxy:
        yield proxy


def wait_for_driver(s3: Bucket, run: subprocess.Popen[str]) -> None:
    """Wait until the driver has a file."""
    while run.poll() is None and not any(s3.server.store(f"{s3.url}/run/drivers").list()):
        time.sleep(0.05)


def test_a_look_reads_one_small_object(corpus: Path, s3: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at a run in a bucket, after the first, takes a listing and the object of its driver, never the plan."""
    job = ("prepare", corpus, *SMALL_UNITS, "--out", f"{s3.url}/run")
    slow = Proxy(s3.server.port, latency_seconds=0.2)
    with slow, running(*job, AWS_ENDPOINT_URL=slow.endpoint) as run:
        wait_for_driver(s3, run)
        slow.latency_seconds = HALTED_SECONDS
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        watch = StatusWatch(f"{s3.url}/run")
        first = watch.read()
        whole = [each.path for each in proxy.exchanges if each.method == "GET" and not each.range]
        assert not any("/plan-" in path for path in whole)
        proxy.reset()
        states = [watch.read() for _ in range(LOOKS)]
        assert run.poll() is None
        assert [each.method for each in proxy.exchanges] == ["GET", "GET"] * LOOKS
        assert all("drivers" in each.path for each in proxy.exchanges)
        assert proxy.bytes_down < LOOKS * 4000
        slow.latency_seconds = 0.0
        assert end(run).code == 0
    assert {state.state for state in states} == {"running"}
    assert all(first.units_done <= state.units_done <= UNITS for state in states)
    assert all(0 <= state.planned_bytes_done <= first.planned_bytes for state in states)
    over = watch.read()
    assert (over.state, over.units_done, over.planned_bytes_done) == ("complete", UNITS, over.planned_bytes)


def test_a_watched_run_is_seen_to_end(corpus: Path, s3: Bucket) -> None:
    """`status --watch` on a bucket follows a run until it is complete."""
    with running("prepare", corpus, *SMALL_UNITS, "--out", f"{s3.url}/run") as run:
        wait_for_driver(s3, run)
        watched = run_tokenmill("status", f"{s3.url}/run", "--watch", "--json").result()
        assert end(run).code == 0
    assert (watched["state"], watched["units_done"]) == ("complete", UNITS)


def old_pulses(directory: str, count: int, *, ended: bool, beat: float) -> None:
    """Make the files of drivers that were at work some time ago."""
    folder = folder_at(directory)
    folder.create(layout.DRIVERS)
    for number in range(count):
        one = heartbeats.HeartbeatRecord(f"{number:014d}-host-abc{ended:d}", "host", 1, number, beat, 2.0, ended=ended)
        heartbeats.publish(folder, one)


def test_files_of_old_drivers_are_removed(corpus: Path, tmp_path: Path) -> None:
    """A driver removes the files of drivers that ended or were killed long ago, and keeps the last ones."""
    out = tmp_path / "run"
    old_pulses(str(out), 60, ended=True, beat=1.0)
    old_pulses(str(out), 60, ended=False, beat=1.0)
    tokenmill.prepare(str(corpus), out=str(out), tokenizer=SMALL_TIKTOKEN, eot=1199, workers=1)
    left = sorted(path.name for path in (out / "drivers").iterdir())
    assert len(left) == heartbeats.MAX_ENDED
    assert left[-1] > "00000000001000"  # the one that has just ended


def test_files_of_drivers_at_work_stay(tmp_path: Path) -> None:
    """A driver that is at work keeps its file, however many came after it."""
    folder = folder_at(str(tmp_path))
    old_pulses(str(tmp_path), 2, ended=False, beat=time.time())
    for number in range(10, 60):
        heartbeats.publish(
            folder, heartbeats.HeartbeatRecord(f"{number:014d}-host-abcdef", "host", 1, number, 1.0, 2.0, ended=True)
        )
    assert heartbeats.prune(folder) == 50 - heartbeats.MAX_ENDED
    assert sum(each.is_alive for each in heartbeats.read(folder).values()) == 2


def test_a_driver_that_ended_is_not_read_again(tmp_path: Path) -> None:
    """What is known to be over is taken from memory; what was at work is read again."""
    folder = folder_at(str(tmp_path))
    old_pulses(str(tmp_path), 1, ended=True, beat=1.0)
    old_pulses(str(tmp_path), 1, ended=False, beat=time.time())
    known = heartbeats.read(folder)
    for name in known:
        (tmp_path / "drivers" / name).write_bytes(b"damaged")
    assert [each.ended for each in heartbeats.read(folder, known).values()] == [True]
