"""Faults between a run and its object store: the run goes on, or says what to do, and ends with the same bytes.

The faults are injected by a proxy in front of a real server; the server that is killed is one of its own.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.killing import wait_until, write_corpus
from tests.support.remote_runs import SMALL_UNITS, differences, end, local_files, prepared, running, tokenmill
from tests.support.servers.faults import Fault
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket, start_seaweed
from tokenmill.storage import folder_at, publish_new
from tokenmill.storage.objects import clients

pytestmark = pytest.mark.timeout(150)

UNITS = 24
EXPORT = ("--to", "nanogpt", "--shuffle", "3")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two Parquet files of many small row groups."""
    return write_corpus(tmp_path_factory.mktemp("faults") / "corpus", documents=UNITS * 5, rows_per_group=5)


@pytest.fixture(scope="module")
def local(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a local run with an export."""
    out = tmp_path_factory.mktemp("local") / "run"
    prepared(corpus, *SMALL_UNITS, "--out", out, *EXPORT)
    return local_files(out)


@pytest.fixture
def job(s3: Bucket, corpus: Path, proxy: Proxy) -> list[str]:
    """The words of a command from this bucket to this bucket, whose sources are there."""
    s3.server.upload(corpus, f"{s3.url}/corpus")
    return ["prepare", f"{s3.url}/corpus", *SMALL_UNITS, "--out", f"{s3.url}/run", *EXPORT]


def part_names(s3: Bucket) -> list[str]:
    """The names of the store's parts."""
    return [meta["path"] for page in s3.server.store(f"{s3.url}/run/parts").list() for meta in page]


def assert_sound(s3: Bucket, local: dict[str, bytes]) -> None:
    """The store has the bytes of a local one, and passes every check."""
    assert differences(s3.server.objects(f"{s3.url}/run"), local) == []
    verified = tokenmill("verify", f"{s3.url}/run", "--all")
    assert verified.code == 0, verified.err


def test_a_busy_server_is_asked_again(job: list[str], s3: Bucket, proxy: Proxy, local: dict[str, bytes]) -> None:
    """Bursts of 503 on reads, writes, listings and questions, from the first request on, delay a run and no more."""
    for method, path in [("HEAD", ""), ("GET", "list-type"), ("GET", "/corpus/"), ("PUT", "/parts/"), ("PUT", "/run/")]:
        proxy.inject(Fault(status=503), method=method, path=path, times=2 if path == "/parts/" else 1)
    ended = tokenmill(*job)
    assert ended.code == 0, ended.err
    assert proxy.orders.left == 0
    assert_sound(s3, local)


def test_broken_answers_are_completed(job: list[str], s3: Bucket, proxy: Proxy, local: dict[str, bytes]) -> None:
    """Bodies that break off after some bytes, of sources, parts, tables and listings, come whole in the end."""
    for path, cut, times in [("/corpus/", 1000, 8), ("/parts/", 100, 3), ("/run/", 10, 3), ("list-type", 50, 2)]:
        proxy.inject(Fault(cut=cut), method="GET", path=path, times=times)
    ended = tokenmill(*job)
    assert ended.code == 0, ended.err
    assert proxy.orders.left == 0
    assert_sound(s3, local)


def test_late_answers_are_waited_for(job: list[str], s3: Bucket, proxy: Proxy, local: dict[str, bytes]) -> None:
    """Requests of every kind that are answered late change nothing."""
    for method in ("HEAD", "GET", "PUT"):
        proxy.inject(Fault(stall_seconds=0.3), method=method, times=2)
    ended = tokenmill(*job)
    assert ended.code == 0, ended.err
    assert proxy.orders.left == 0
    assert_sound(s3, local)


def test_an_answer_that_never_comes_is_asked_for_again(
    s3: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its time a request that hangs is made again: a read, a write, a first contact."""
    monkeypatch.setattr(clients, "OPTIONS", {**clients.OPTIONS, "timeout": "1s"})
    monkeypatch.setattr(clients, "WRITING_OPTIONS", {**clients.OPTIONS, "timeout": "1s"})
    monkeypatch.setattr(clients, "FIRST_OPTIONS", {**clients.FIRST_OPTIONS, "timeout": "1s"})
    for method, path in (("GET", "greeting"), ("PUT", ""), ("GET", "folder")):
        proxy.inject(Fault(stall_seconds=60), method=method, path=path)
    folder = folder_at(f"{s3.url}/folder")
    with folder.publish("name") as file:
        file.write(b"content")
    assert folder.read("name") == b"content"
    assert proxy.orders.left == 0
    assert [exchange.status for exchange in proxy.exchanges if exchange.status] == [404, 200, 200]


def test_lost_answers_do_no_harm(job: list[str], s3: Bucket, proxy: Proxy, local: dict[str, bytes]) -> None:
    """Parts, tables, `run.json` (which is written only if there is none) and shards are there, whoever hears of it."""
    names = ["/parts/", "/run/run.json", "/run/plan-", "/run/tokenizer/", "/run/manifest.parquet", "export.json"]
    for path in [*names, ".bin"]:
        proxy.inject(Fault(lose=True), method="PUT", path=path, times=5 if path == "/parts/" else 1)
    ended = tokenmill(*job)
    assert ended.code == 0, ended.err
    assert proxy.orders.left == 0
    assert_sound(s3, local)


def test_what_was_created_by_somebody_else_is_not_ours(s3: Bucket, proxy: Proxy) -> None:
    """An object that must be new is ours if its answer was lost, and is not if another content was there before."""
    folder = folder_at(f"{s3.url}/folder")
    for times in range(3):
        proxy.inject(Fault(lose=True), method="PUT", path="ours", times=times)
        assert publish_new(folder, "ours", b"ours")
        assert publish_new(folder, "ours", b"ours")
    assert not publish_new(folder, "ours", b"theirs")
    proxy.inject(Fault(lose=True), method="PUT", path="ours")
    assert not publish_new(folder, "ours", b"theirs")
    assert folder.read("ours") == b"ours"


def test_a_request_to_create_that_did_not_arrive_is_made_again(
    s3: Bucket, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If an object that must be new was not written when the client gave up, it is written then."""
    monkeypatch.setattr(clients, "OPTIONS", {**clients.OPTIONS, "timeout": "1s"})
    monkeypatch.setattr(clients, "WRITING_OPTIONS", {**clients.OPTIONS, "timeout": "1s"})
    proxy.inject(Fault(stall_seconds=60), method="PUT")
    assert publish_new(folder_at(f"{s3.url}/folder"), "ours", b"ours")
    assert s3.server.objects(f"{s3.url}/folder") == {"ours": b"ours"}


def test_a_large_object_survives_faults_in_its_upload(s3: Bucket, proxy: Proxy) -> None:
    """What is uploaded in parts is whole, though answers to its parts are lost, and the server is busy."""
    content = bytes(range(256)) * (40 << 12)
    proxy.inject(Fault(status=503), method="POST", times=2)
    proxy.inject(Fault(lose=True), method="PUT", path="partNumber")
    proxy.inject(Fault(lose=True), method="POST", path="uploadId")
    folder = folder_at(f"{s3.url}/folder")
    with folder.publish("large") as file:
        for offset in range(0, len(content), 1 << 20):
            file.write(content[offset : offset + (1 << 20)])
    assert proxy.orders.left == 0
    assert folder.read("large") == content


def test_expired_credentials_end_a_run_that_goes_on_with_new_ones(
    job: list[str], s3: Bucket, proxy: Proxy, local: dict[str, bytes]
) -> None:
    """The run stops at once and says what has happened and what to do; the same command then ends it."""
    with running(*job) as run:
        with proxy.held("/parts/", "PUT", after=7):
            assert wait_until(lambda: proxy.written("/parts/") == 7)
            proxy.inject(Fault(status=403), times=1_000_000)
        ended = end(run)
    assert ended.code == 75
    assert "the credentials have expired" in ended.err
    assert "Renew them. Run the same command again: committed work is kept." in ended.err
    proxy.wait_until_idle()  # a part that was on its way when the run ended has come now
    there = part_names(s3)
    assert 3 < len(there) < UNITS
    assert ended.err.count("the credentials have expired") < 12, ended.err
    proxy.reset()
    told = prepared(*job[1:])
    written = [exchange.path for exchange in proxy.exchanges if exchange.method == "PUT" and "/parts/" in exchange.path]
    assert sorted([*there, *(path.rpartition("/")[2] for path in written)]) == [
        f"{unit:08d}.arrow" for unit in range(UNITS)
    ]
    assert told["units_done_now"] == UNITS - len(there)
    assert_sound(s3, local)


def test_a_server_that_is_killed_and_comes_back_costs_time_only(
    corpus: Path, local: dict[str, bytes], tmp_path: Path
) -> None:
    """While the server is gone the run waits, and it goes on when it is back."""
    server = start_seaweed(tmp_path / "server", "ACCESS", "secret")
    try:
        bucket = Bucket(server, server.bucket("bucket"))
        server.upload(corpus, f"{bucket.url}/corpus")
        job = ["prepare", f"{bucket.url}/corpus", *SMALL_UNITS, "--out", f"{bucket.url}/run", *EXPORT]
        with Proxy(server.port) as proxy, running(*job, **server.environment(proxy.endpoint)) as run:
            with proxy.held("/parts/", "PUT", after=7):
                assert wait_until(lambda: proxy.written("/parts/") == 7)
                server.stop()
            assert wait_until(lambda: any(exchange.status == 502 for exchange in list(proxy.exchanges)))
            server.start()
            ended = end(run, 120)
        assert ended.code == 0, ended.err
        assert differences(server.objects(f"{bucket.url}/run"), local) == []
        assert tokenmill("verify", f"{bucket.url}/run", "--all", **server.environment()).code == 0
    finally:
        server.stop()
