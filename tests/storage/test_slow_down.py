"""A bucket that answers 503 SlowDown is used up to its limit, for as long as it takes, and no object is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import tokenmill
from tests.support.killing import wait_until, write_corpus
from tests.support.remote_runs import SMALL_UNITS, end, local_files, prepared, running
from tests.support.servers.faults import RateLimit
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket
from tokenmill.storage import folder_at

pytestmark = pytest.mark.timeout(60)

OBJECTS = 80
THREADS = 16


@pytest.fixture
def limited(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy whose prefixes take 40 writes and 60 reads a second."""
    with Proxy(s3.server.port, limit=RateLimit(40, 60)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


def test_the_limit_is_used_and_every_object_is_written_once(s3: Bucket, limited: Proxy) -> None:
    """Many threads write and read: the bucket refuses some requests, and serves nearly as many as it can."""
    folder = folder_at(f"{s3.url}/folder")
    contents = {f"parts/{number:08d}": b"%d" % number * 100 for number in range(OBJECTS)}
    with ThreadPoolExecutor(THREADS) as threads:
        written = threads.map(lambda name: folder.publish_if_absent(name, pa.py_buffer(contents[name])), contents)
        assert list(written) == [True] * OBJECTS
        assert list(threads.map(folder.read, contents)) == list(contents.values())
    assert s3.server.objects(f"{s3.url}/folder") == contents
    puts = [each for each in limited.exchanges if each.method == "PUT" and each.status == 200]
    assert len(puts) == OBJECTS
    assert {each.method for each in limited.exchanges if each.status == 503} == {"PUT", "GET"}
    assert limited.limit is not None
    for is_read, limit in ((False, 40), (True, 60)):
        times = limited.limit.passed[f"{s3.url.removeprefix('s3:/')}/folder/parts", is_read]
        count = OBJECTS - THREADS  # while all threads are at work: the last ones may be in a long pause
        assert count / (times[count] - times[0]) > 0.7 * limit


def test_a_bucket_is_waited_for_longer_than_a_server_that_fails(
    s3: Bucket, limited: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of every kind are refused for three times as long as errors are, from the first one on."""
    s3.server.store(f"{s3.url}/folder").put("there", b"content")
    monkeypatch.setenv("TOKENMILL_RETRY_SECONDS", "1")
    limit = limited.limit = RateLimit(0, 0)

    def admit() -> None:
        limit.writes_per_second = limit.reads_per_second = 1000.0

    begun, timer = time.monotonic(), threading.Timer(3, admit)
    timer.start()
    folder = folder_at(f"{s3.url}/folder")
    requests = [
        lambda: folder.publish_if_absent("parts/new", pa.py_buffer(b"new")),
        lambda: folder.read("there"),
        lambda: folder.exists("there"),
        lambda: folder.names("."),
        lambda: folder.discard("gone"),
    ]
    with ThreadPoolExecutor(len(requests)) as threads:
        answers = list(threads.map(lambda request: request(), requests))
    assert answers[:3] == [True, b"content", True]
    assert "there" in answers[3]
    assert time.monotonic() - begun > 3
    assert {each.method for each in limited.exchanges if each.status == 503} == {"PUT", "GET", "HEAD", "POST"}


def test_a_run_shows_that_it_waits(s3: Bucket, limited: Proxy, tmp_path: Path) -> None:
    """While sources are read slowly, the progress and `status` say why. The store is that of a run without a limit."""
    corpus = write_corpus(tmp_path / "corpus", documents=200, rows_per_group=5)
    prepared(corpus, *SMALL_UNITS, "--out", tmp_path / "expected")
    s3.server.upload(corpus, f"{s3.url}/corpus")
    limit = limited.limit = RateLimit(4, 4)
    with running("prepare", f"{s3.url}/corpus", *SMALL_UNITS, "--out", tmp_path / "run") as run:
        assert wait_until((tmp_path / "run/run.json").exists, 20)
        assert wait_until(lambda: tokenmill.status(tmp_path / "run").waiting > 0, 20, pause=0.1)
        limit.writes_per_second = limit.reads_per_second = 1000.0
        ended = end(run)
    assert ended.code == 0, ended.err
    assert "note: the object store answers that there are too many requests: " in ended.err
    parts = {name: data for name, data in local_files(tmp_path / "expected").items() if name.startswith("parts/")}
    assert local_files(tmp_path / "run").items() >= parts.items()
