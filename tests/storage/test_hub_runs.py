"""Whole runs over datasets of the Hub: the same bytes as from a disk, few requests, and nothing read twice."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.corpora import write_parquet
from tests.support.documents import DOCUMENTS
from tests.support.killing import part_files, wait_until
from tests.support.remote_runs import SMALL_UNITS, differences, local_files, prepared, running, tokenmill
from tests.support.servers.hub import Hub
from tests.support.servers.hub_log import Clock
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket
from tokenmill.storage.hub import requests as hub_requests

ADDRESS = "hf://datasets/org/corpus"
FILES = 5
EXPORT = ("--to", "llmc", "--shard-tokens", "500")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five Parquet files of several row groups, and one that is no source."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(FILES):
        texts = [f"{number}: {text}" for text in DOCUMENTS]
        write_parquet(folder / "data" / f"{number:03d}_00000.parquet", texts, row_group_size=8)
    (folder / "README.md").write_text("# about it")
    return folder


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> dict[str, bytes]:
    """The store of a run from disk to disk."""
    out = tmp_path_factory.mktemp("local") / "store"
    prepared(corpus / "data", *SMALL_UNITS, "--out", out, *EXPORT)
    return local_files(out)


def test_from_the_hub_to_a_disk(hub: Hub, corpus: Path, local: dict[str, bytes], tmp_path: Path) -> None:
    """The bytes are those of a local run; the repository is listed once, and each file is resolved once."""
    repository = hub.add("org/corpus", corpus)
    hub.page_size = 2
    options = (f"{ADDRESS}/data", *SMALL_UNITS, "--out", tmp_path / "store", *EXPORT)
    prepared(*options)
    assert not differences(local_files(tmp_path / "store"), local)
    listed = hub.log.of("api", path="/tree/")
    assert len(listed) == -(-FILES // 2), "a page is asked for once"
    assert len(hub.log.of("resolve")) == 1 + FILES, "the first tells that it is no file"
    paths = pq.read_table(tmp_path / "store" / "sources.parquet")["path"].to_pylist()
    assert all(path.startswith(f"{ADDRESS}@{repository.sha}/data/") for path in paths)

    hub.log.clear()
    assert prepared(*options)["units_done_now"] == 0
    assert len(hub.log.of("api", path="/tree/")) == len(listed), "the second run lists it once, too"
    assert not hub.log.of("cdn"), "and reads nothing"


def test_from_the_hub_to_s3(hub: Hub, s3: Bucket, corpus: Path, local: dict[str, bytes]) -> None:
    """Neither the sources nor the store are on a disk, and the bytes are the same."""
    hub.add("org/corpus", corpus)
    glob = f"{ADDRESS}/data/*.parquet"
    prepared(glob, *SMALL_UNITS, "--out", f"{s3.url}/run", *EXPORT)
    assert not differences(s3.server.objects(f"{s3.url}/run"), local)


def test_a_busy_hub_is_waited_for(
    hub: Hub, corpus: Path, local: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of 429 in mid-run cost time, no more, and nobody comes back before he was asked to."""
    hub.add("org/corpus", corpus)
    clock = Clock()
    monkeypatch.setattr(hub_requests, "time", clock)
    hub.limit_requests(4, 1.0, clock.monotonic)
    prepared(f"{ADDRESS}/data", *SMALL_UNITS, "--out", tmp_path / "store", *EXPORT)
    assert hub.log.refused
    assert not hub.log.too_early
    assert not differences(local_files(tmp_path / "store"), local)


def test_a_cache_serves_the_next_run(hub: Hub, corpus: Path, tmp_path: Path) -> None:
    """With --cache, whole files are kept; another run reads none of them again, and finds damage by its hash."""
    hub.add("org/corpus", corpus)
    cache = tmp_path / "cache"
    prepared(f"{ADDRESS}/data", *SMALL_UNITS, "--out", tmp_path / "one", "--cache", cache)
    kept = [path for path in cache.rglob("*") if path.is_file() and not path.name.startswith(".")]
    assert sum(path.stat().st_size for path in kept) == sum(path.stat().st_size for path in (corpus / "data").iterdir())
    hub.log.clear()
    prepared(f"{ADDRESS}/data", *SMALL_UNITS, "--out", tmp_path / "two", "--cache", cache)
    assert not hub.log.of("cdn")
    assert not differences(local_files(tmp_path / "two"), local_files(tmp_path / "one"))


def test_a_file_that_is_replaced_in_mid_run_is_refused(hub: Hub, corpus: Path, tmp_path: Path) -> None:
    """The commit claims to be the same, and a file behind it is not: the run ends with its name, not with its text."""
    repository = hub.add("org/corpus", corpus)
    options = (f"{ADDRESS}/data", *SMALL_UNITS, "--out", tmp_path / "store")
    prepared(*options, "--limit-units", "1")
    other = write_parquet(tmp_path / "other.parquet", ["another text"] * 40, row_group_size=8)
    repository.replace("data/000_00000.parquet", Path(other))
    ended = tokenmill("prepare", *options, "--limit-units", "1")
    assert ended.code == 1
    assert "changed" in ended.err
    assert "000_00000.parquet" in ended.err


def test_killed_and_resumed_from_the_hub(hub: Hub, corpus: Path, local: dict[str, bytes], tmp_path: Path) -> None:
    """A run that is killed while it plans, and while it works, ends with the bytes of one that was not."""
    hub.add("org/corpus", corpus)
    options = (f"{ADDRESS}/data", *SMALL_UNITS, "--out", tmp_path / "store", *EXPORT)
    with Proxy(hub.cdn_port, latency_seconds=0.1) as cdn:
        hub.cdn_endpoint = cdn.endpoint
        for is_reached in (lambda: bool(cdn.exchanges), lambda: bool(part_files(tmp_path / "store"))):
            with running("prepare", *options) as run:
                assert wait_until(lambda: is_reached() or run.poll() is not None)  # noqa: B023 - within this round
        cdn.latency_seconds = 0
        prepared(*options)
    assert not differences(local_files(tmp_path / "store"), local)


def test_a_private_dataset_needs_its_token(hub: Hub, corpus: Path, tmp_path: Path) -> None:
    """Without the token the message says what to do; with it the run works, and the CDN never gets to see it."""
    hub.add("org/corpus", corpus, token="hf_secret_of_the_test")
    options = ("prepare", f"{ADDRESS}/data", *SMALL_UNITS, "--out", tmp_path / "store")
    refused = tokenmill(*options)
    assert refused.code == 1
    assert "HF_TOKEN" in refused.err
    allowed = tokenmill(*options, HF_TOKEN="hf_secret_of_the_test")
    assert allowed.code == 0, allowed.err
    assert not hub.log.leaked_tokens
    assert b"hf_secret" not in b"".join(local_files(tmp_path / "store").values()) + os.fsencode(
        allowed.err + refused.err
    )
