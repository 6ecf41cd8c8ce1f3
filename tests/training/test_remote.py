"""Loaders of stores in a bucket: the batches of the local store, by ranges, through faults and a restart."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from benchmarks.loader_remote import upload
from benchmarks.synthetic import Shape, make_store
from tests.support.servers.faults import Fault
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket, start_seaweed
from tokenmill.errors import CorruptStore
from tokenmill.storage import folder_at, io_threads
from tokenmill.storage.digest import hash_of
from tokenmill.storage.folder import THREADS
from tokenmill.store import layout
from tokenmill.store.part import open_part
from tokenmill.store.part_ranges import open_ranged
from tokenmill.training.prefetch import FIRST_BYTES, Prefetcher

SMALL: dict[str, Any] = {"sequence_tokens": 64, "grain": 256, "batch_sequences": 8, "seed": 5}
ALL: Any = ["input_ids", "labels", "position_ids", "cu_seqlens", "document_ids"]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A local store whose tables have the names that they have in a bucket."""
    directory = tmp_path_factory.mktemp("bucket") / "store"
    make_store(str(directory), 100_000, shape=Shape(10_000, 60), processes=False)
    for name in (layout.PLAN, layout.SOURCES):
        blake3 = hash_of((directory / name).read_bytes())
        (directory / name).rename(directory / layout.hashed_name(name, blake3))
    return str(directory)


@pytest.fixture
def proxy(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with Proxy(s3.server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy
        # Requests of a loop that was left would be repeated for minutes without the proxy: wait for all threads.
        barrier = threading.Barrier(THREADS)
        list(io_threads().map(lambda _: barrier.wait(), range(THREADS)))


@pytest.fixture
def remote(s3: Bucket, local: str, proxy: Proxy) -> str:
    """The same store in a bucket."""
    s3.server.upload(Path(local), f"{s3.url}/store")
    return f"{s3.url}/store"


def test_ranges_are_those_of_the_whole_part(local: str) -> None:
    """The header of a part says where its columns are; ranges of them are slices of the columns."""
    folder = folder_at(local)
    summary, content = open_part(folder, 3)
    ranged = open_ranged(folder, 3)
    assert ranged.summary == summary
    assert np.array_equal(ranged.offsets, content.offsets)
    assert np.array_equal(ranged.source, content.source)
    assert np.array_equal(ranged.row, content.row)
    for start, stop in ((0, 1), (0, summary.tokens), (17, 4711), (summary.tokens, summary.tokens)):
        assert np.array_equal(ranged.read_tokens(start, stop), content.tokens[start:stop])
    with pytest.raises(IndexError):
        ranged.read_tokens(0, summary.tokens + 1)


def test_damaged_headers_are_refused(local: str, tmp_path: Path) -> None:
    """A header with any byte changed is refused, or gives the columns of a part of the same size."""
    path = Path(local, "parts", "00000003.arrow")
    data = path.read_bytes()
    (tmp_path / "parts").mkdir()
    target = tmp_path / "parts" / path.name
    random = np.random.default_rng(1)
    for position in [0, 8, 12, *random.integers(0, 2000, 200).tolist()]:
        target.write_bytes(data[:position] + bytes([data[position] ^ 0xFF]) + data[position + 1 :])
        try:
            opened = open_ranged(folder_at(str(tmp_path)), 3)
            opened.read_tokens(0, min(opened.summary.tokens, 100))
        except CorruptStore:
            continue
    target.write_bytes(data[:300])
    with pytest.raises(CorruptStore):
        open_ranged(folder_at(str(tmp_path)), 3)


@pytest.mark.parametrize(
    "choices", [{}, {"shuffle": "window", "fields": ALL}, {"val": 0.2, "fields": ALL}, {"packing": "best-fit"}]
)
def test_batches_are_those_of_the_local_store(remote: str, local: str, choices: dict[str, Any]) -> None:
    """Whatever the options are, a loop over the bucket gives the batches of the disk."""
    there, here = (tokenmill.loader(one, **SMALL, **choices) for one in (remote, local))
    assert there.state_dict() == here.state_dict()
    for batch, expected, _ in zip(there, here, range(40), strict=False):
        assert batch.keys() == expected.keys()
        assert all(np.array_equal(batch[name], expected[name]) for name in batch)
    assert np.array_equal(there[77]["labels"], here[77]["labels"])


def test_a_batch_reads_no_whole_parts(remote: str, proxy: Proxy) -> None:
    """The bytes that come over the network are those of the sequences and the headers of their parts."""
    loader = tokenmill.loader(remote, **SMALL)
    proxy.reset()
    loader[0]
    assert proxy.bytes_down < 150_000  # two grains and their parts' headers; a part has 30,000 bytes


def test_faults_of_the_server_are_survived(remote: str, local: str, proxy: Proxy) -> None:
    """Broken connections and bursts of 503 are repeated while the loop goes on; the batches stay those of the disk."""
    there, here = tokenmill.loader(remote, **SMALL, prefetch=16_384), tokenmill.loader(local, **SMALL)
    proxy.inject(Fault(cut=100), method="GET", path="/parts/", times=5)
    for step, (batch, expected) in enumerate(zip(there, here, strict=False)):
        assert np.array_equal(batch["input_ids"], expected["input_ids"])
        if step in {5, 60}:
            proxy.inject(Fault(status=503), method="GET", path="/parts/", times=20)
    assert proxy.orders.left == 0


def test_the_cache_has_its_limit(remote: str, local: str) -> None:
    """What is cached or requested stays within the limit, and the batches are those of the disk."""
    here = tokenmill.loader(local, **SMALL)
    reader = tokenmill.loader(remote, **SMALL).reader
    planned = ((reader.spans(first, first + 8), (8, 32)) for first in range(0, 1400, 8))
    with Prefetcher(planned, prefetch_bytes=20_000, with_documents=False) as prefetcher:
        for step, batch in enumerate(prefetcher):
            tokens = np.concatenate([content.tokens[:-1] for content in batch.contents()])
            assert np.array_equal(tokens, here[step]["input_ids"].reshape(-1))
    assert 5_000 < prefetcher.peak_bytes <= 20_000


def test_neighbors_are_fetched_together(remote: str, proxy: Proxy) -> None:
    """In the order of the store, requests are for whole parts of a group; grains that are far apart are requested."""
    requests = {}
    for shuffle in ("none", "full"):
        loader = tokenmill.loader(remote, **SMALL, shuffle=shuffle)
        proxy.reset()
        assert len(list(loader)) == len(loader)
        requests[shuffle] = len(proxy.exchanges)
    assert requests["none"] < 40  # ten parts: a header and a few ranges of each


def test_a_loop_that_is_left_has_fetched_little(s3: Bucket, proxy: Proxy, tmp_path: Path) -> None:
    """The cache fills as the loop goes on: a batch of a large store does not fetch megabytes beyond the first two."""
    directory = tmp_path / "large"
    make_store(str(directory), 8_000_000, processes=False)
    upload(s3.server, str(directory), f"{s3.url}/large")
    loader = tokenmill.loader(f"{s3.url}/large", batch_sequences=1)
    proxy.reset()
    for _ in loader:
        break
    assert proxy.bytes_down < 2 * FIRST_BYTES + 500_000


GROWTH = """
import sys
from benchmarks.loader_remote import paced
def peak_bytes():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) << 10
paced(sys.argv[1], 8, 0.0, 1e9, "1MB", 500_000)
before = peak_bytes()
paced(sys.argv[1], 8, 0.0, 1e9, "1MB", int(sys.argv[2]))
print(peak_bytes() - before)
"""


def test_memory_does_not_grow_with_the_store(s3: Bucket, tmp_path: Path) -> None:
    """A process that reads a store of 24 MB with a cache of 1 MB grows by a fraction of the store."""
    directory, tokens = str(tmp_path / "large"), 12_000_000
    make_store(directory, tokens, processes=False)
    upload(s3.server, directory, f"{s3.url}/large")
    command = [sys.executable, "-c", GROWTH, f"{s3.url}/large", str(tokens)]
    grown_bytes = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert grown_bytes < 6e6


def test_a_restart_of_the_server_is_survived(local: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server, one of its own, is killed in the middle of a loop, with requests under way, and comes back."""
    server = start_seaweed(tmp_path / "weed", f"ACCESS{secrets.token_hex(8)}", secrets.token_hex(20))
    try:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        remote = f"{server.bucket('bucket-of-its-own')}/store"
        server.upload(Path(local), remote)
        there, here = tokenmill.loader(remote, **SMALL, prefetch=16_384), tokenmill.loader(local, **SMALL)
        restart = threading.Thread(target=server.restart)
        for number, (batch, expected) in enumerate(zip(there, here, strict=False)):
            assert np.array_equal(batch["input_ids"], expected["input_ids"])
            if number == 20:
                restart.start()
        restart.join()
    finally:
        server.stop()


def test_workers_read_from_a_bucket(remote: str, local: str) -> None:
    """Workers of PyTorch are spawned for an object store, and give the batches in order."""
    pytest.importorskip("torch", reason="torch is not installed")
    from tokenmill.training.torch import TokenDataLoader

    here = tokenmill.loader(local, **SMALL)
    batches = iter(TokenDataLoader(tokenmill.loader(remote, **SMALL), num_workers=2))
    for step in range(6):
        assert np.array_equal(np.asarray(next(batches)["input_ids"]), here[step]["input_ids"])
