"""Stores that several machines may write to at a time, and what a process does while it waits for a network."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.support.corpora import write_parquet
from tests.support.documents import DOCUMENTS
from tests.support.killing import wait_until
from tests.support.remote_runs import (
    SMALL_UNITS,
    differences,
    end,
    local_files,
    prepared,
    running,
    tokenmill,
    units_done,
)
from tests.support.servers.hub import Hub
from tests.support.servers.proxy import Proxy
from tests.support.servers.relay import Exchange
from tests.support.servers.seaweed import Bucket
from tests.support.source_files import source
from tokenmill import sources
from tokenmill.errors import SourceError
from tokenmill.pipeline.driving.driver import PREFETCH_UNITS
from tokenmill.sources.documents import ReadOptions, Slice
from tokenmill.storage import folder_at, range_file
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.local.files import AlreadyPublishedError
from tokenmill.store.part import PartContent, PartSummary, open_part, write_part


def content(tokens: list[int]) -> PartContent:
    """One document."""
    return PartContent(
        np.array(tokens, np.uint16), np.array([0, len(tokens)]), np.zeros(1, np.uint32), np.zeros(1, np.uint64)
    )


def test_the_first_part_counts(s3: Bucket) -> None:
    """A machine that comes late, perhaps with less memory, does not write over what another one has committed."""
    folder = folder_at(f"{s3.url}/run")
    write_part(folder, PartSummary(0, "job", 1, 3, 9), content([1, 2, 3]))
    with pytest.raises(AlreadyPublishedError):
        write_part(folder, PartSummary(0, "job", 1, 2, 9), content([1, 2]))
    assert open_part(folder, 0)[1].tokens.tolist() == [1, 2, 3]


def test_a_run_that_was_interrupted_is_not_running(s3: Bucket, tmp_path: Path) -> None:
    """Whoever stops says so in the log, so that `status` knows it at once."""
    path = write_parquet(tmp_path / "corpus.parquet", DOCUMENTS * 20, row_group_size=4)
    with Proxy(s3.server.port, latency_seconds=0.1) as proxy:
        far = {"AWS_ENDPOINT_URL": proxy.endpoint}
        with running("prepare", path, *SMALL_UNITS, "--out", f"{s3.url}/run", **far) as run:
            assert wait_until(lambda: any("/parts/" in each.path and each.status == 200 for each in [*proxy.exchanges]))
            run.send_signal(signal.SIGINT)
            assert run.wait(60) == 130
    state = tokenmill("status", f"{s3.url}/run", "--json").result()
    assert state["state"] == "stopped"
    assert 0 < state["units_done"] < state["units"]


def is_pulse(exchange: Exchange) -> bool:
    """Whether a driver writes that it is at work."""
    return exchange.method == "PUT" and "/run/drivers/" in exchange.path


def is_part(exchange: Exchange) -> bool:
    """Whether a driver writes a part."""
    return exchange.method == "PUT" and "/run/parts/" in exchange.path


def longest_streak(parts: list[Exchange]) -> int:
    """How many consecutive units a driver has done after the other one, at most."""
    units = {int(each.path.rpartition("/")[2][:8]) for each in parts if each.status == 412}
    return max((next(n for n in itertools.count() if unit + n not in units) for unit in units), default=0)


def test_two_drivers_share_the_work(s3: Bucket, tmp_path: Path) -> None:
    """Whoever comes upon the other one goes somewhere else: little is done twice, and nothing is missing or other.

    A driver looks for a part before it makes it, so both do a unit only if they are at it at the same time. When the
    second learns of it, it has begun as many others as it has in flight; then it goes on elsewhere.
    """
    write_parquet(tmp_path / "corpus" / "one.parquet", DOCUMENTS * 16, row_group_size=4)
    words = (tmp_path / "corpus", *SMALL_UNITS, "--workers", "1")
    units = prepared(*words, "--out", tmp_path / "run")["units"]
    job = ("prepare", *words, "--to", "nanogpt", "--shuffle", "7", "--out", f"{s3.url}/run", "--json")
    proxies = [Proxy(s3.server.port, latency_seconds=0.02) for _ in range(2)]
    with (
        proxies[0] as one,
        proxies[1] as other,
        running(*job, AWS_ENDPOINT_URL=one.endpoint) as first,
        running(*job, AWS_ENDPOINT_URL=other.endpoint) as second,
    ):
        with one.held("/parts/", "PUT"), other.held("/parts/", "PUT"):  # until both have begun
            assert wait_until(lambda: all(any(map(is_pulse, [*each.exchanges])) for each in proxies))
        most = int(0.6 * units)
        with one.held("/parts/", "PUT", after=most), other.held("/parts/", "PUT", after=most):  # however slow one is
            assert wait_until(lambda: all(each.written("/parts/") > units / 5 for each in proxies))
        told = [end(run).result() for run in (first, second)]
    parts = [[each for each in proxy.exchanges if is_part(each)] for proxy in proxies]
    overtaken = sum(each.status == 412 for own in parts for each in own)
    assert units > 100
    assert units - 6 <= sum(each["units_done_now"] for each in told) <= units, told  # who leaves first hears not all
    assert sum(map(len, parts)) - overtaken == units
    in_flight = 2 + PREFETCH_UNITS  # one is encoded and one written
    assert max(map(longest_streak, parts)) <= 2 * in_flight  # two meetings may be side by side
    found = s3.server.objects(f"{s3.url}/run")
    own = {name: data for name, data in found.items() if not name.startswith("nanogpt/")}
    assert differences(own, local_files(tmp_path / "run")) == []
    # A driver whose PUT is answered late tries again, finds its own part, and takes it for the other's.
    assert len(set(range(units)) - set(units_done(found))) < 4
    for store in (f"{s3.url}/run", f"{s3.url}/run/nanogpt"):
        assert tokenmill("verify", store, "--all").code == 0


def test_a_cache_holds_only_what_was_needed(hub: Hub, tmp_path: Path) -> None:
    """Planning reads footers; a whole file is fetched with the first unit that needs it."""
    for number in range(4):
        write_parquet(tmp_path / "corpus" / f"{number}.parquet", DOCUMENTS, row_group_size=8)
    hub.add("org/corpus", tmp_path / "corpus")
    options = (*SMALL_UNITS, "--limit-units", "1", "--cache", tmp_path / "cache")
    prepared("hf://datasets/org/corpus", *options, "--out", tmp_path / "store")
    assert len([path for path in (tmp_path / "cache").iterdir() if not path.name.startswith(".")]) == 1


def test_waiting_is_not_deaf() -> None:
    """Ctrl-C is heard at once while native code waits on another thread."""
    never = threading.Event()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    started = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            interruptible(never.wait, 30)
    finally:
        signal.signal(signal.SIGALRM, before)
        never.set()
    assert time.monotonic() - started < 2
    assert interruptible(sum, [1, 2]) == 3
    with pytest.raises(ZeroDivisionError):
        interruptible(divmod, 1, 0)


def test_nothing_that_was_foreseen_is_fetched_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units that are larger than what may wait are fetched once all the same, and no more of them than may be."""
    monkeypatch.setattr(range_file, "_prefetched", range_file._Prefetched())
    monkeypatch.setattr(range_file, "CHUNK_BYTES", 1000)
    monkeypatch.setattr(range_file, "WINDOW_BYTES", 4000)
    monkeypatch.setattr(range_file, "PREFETCH_BYTES", 6000)
    asked: list[tuple[int, int]] = []

    def fetch(start: int, stop: int) -> pa.Buffer:
        asked.append((start, stop))
        return pa.py_buffer(bytes(stop - start))

    file = FileInfo("s3://bucket/file", 50_000, "etag")
    units = [[(start, start + 10_000)] for start in range(0, 50_000, 10_000)]
    for number, spans in enumerate(units):
        for later in units[number + 1 : number + 3]:
            range_file.prefetch_spans(fetch, later)
        with range_file.RangeFile(file, fetch, spans) as stream:
            stream.seek(spans[0][0])
            assert len(stream.read(10_000)) == 10_000
    assert sorted(asked) == [(start, start + 1000) for start in range(0, 50_000, 1000)]


def test_pages_outside_their_file_are_refused(tmp_path: Path) -> None:
    """What a footer says of a column is compared with the size of the file, before there is memory for it."""
    path = Path(write_parquet(tmp_path / "corpus.parquet", DOCUMENTS, row_group_size=8))
    data = path.read_bytes()
    footer_bytes = 8 + int.from_bytes(data[-8:-4], "little")
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(data[:4] + data[-footer_bytes:])
    with pytest.raises(SourceError, match="are listed at bytes"):
        list(sources.read_documents(source(str(cut)), Slice(3, 4), ReadOptions()))
