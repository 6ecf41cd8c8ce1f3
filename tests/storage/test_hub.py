"""Datasets of the Hub: how they are found, read and kept, against a hub and a CDN that count what they are asked."""

from __future__ import annotations

import contextlib
import functools
import glob
import hashlib
import os
import random
import re
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from tests.support.killing import wait_until
from tests.support.servers.faults import Fault
from tests.support.servers.hub import Hub
from tests.support.servers.hub_log import API, CDN, RESOLVE, Clock
from tests.support.servers.proxy import Proxy
from tests.support.servers.repositories import File
from tokenmill.errors import SourceError, StorageError, StoreError, TokenmillError, UsageError
from tokenmill.storage import FileInfo
from tokenmill.storage.hub import client as hub_client
from tokenmill.storage.hub import listing as datasets
from tokenmill.storage.hub import requests as hub_requests
from tokenmill.storage.hub.address import parse

NAME = "org/name"
DATASET = f"hf://datasets/{NAME}"
LARGE = "sample/10BT/000_00000.parquet"
SMALL = "notes/words.txt"
PATHS = (
    LARGE,
    "sample/10BT/001_00000.parquet",
    "sample/100BT/000_00000.parquet",
    "sample/.hidden/000_00000.parquet",
    "sample/10BT/.000_00002.parquet",
    "data/CC-MAIN-2024-10/000_00000.parquet",
    "data/CC-MAIN-2024-18/000_00000.parquet",
    "data/CC-MAIN-2024-18/odd [1] name?.parquet",
    "data/all.jsonl",
    SMALL,
    ".gitattributes",
    "README.md",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a repository: noise, some of it large enough for several pieces of an answer."""
    rng, folder = random.Random(6), tmp_path_factory.mktemp("repository")
    for number, path in enumerate(PATHS):
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(rng.randbytes(1_000_000 if path == LARGE else 1000 + number))
    return folder


@pytest.fixture
def served(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """A hub with that repository, which this process takes for the Hub."""
    hub.add(NAME, folder)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.endpoint)
    return hub


@pytest.fixture
def cdn(served: Hub) -> Iterator[Proxy]:
    """A proxy in front of the hub's CDN."""
    with Proxy(served.cdn_port) as proxy:
        served.cdn_endpoint = proxy.endpoint
        yield proxy


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of clients: they make as many attempts as ever, and their pauses take no time."""
    clock = Clock()
    monkeypatch.setattr(hub_requests, "time", clock)
    return clock


def pinned(served: Hub, path: str) -> str:
    return f"{DATASET}@{served.repositories[NAME].sha}/{path}"


def info(served: Hub, path: str) -> FileInfo:
    file = served.repositories[NAME].files[path]
    return FileInfo(pinned(served, path), file.size, file.etag)


def read(file: FileInfo, start: int = 0, stop: int | None = None) -> bytes:
    return bytes(datasets.fetch(file.path, file.fingerprint, start, file.size if stop is None else stop))


@pytest.mark.parametrize(
    "url",
    ["hf://org/name/data", "hf://models/org/name", "hf://spaces/org/name/x", "hf://datasets/name", DATASET + "/../x"],
)
def test_only_datasets(url):
    """An address of anything but a dataset is refused, and the right form is shown."""
    with pytest.raises(SourceError, match=r"hf://datasets/ORG/NAME@REVISION/PATH"):
        datasets.find(url)


def test_an_address_without_datasets():
    """Who forgets what kind of thing it is gets the address that was meant; the scheme may be in capitals."""
    with pytest.raises(SourceError, match=r"Did you mean hf://datasets/lab/notes@v1/a\.parquet\?"):
        datasets.find("hf://lab/notes@v1/a.parquet")
    assert parse("HF://datasets/lab/notes") == parse("hf://datasets/lab/notes")


def test_revisions_may_hold_slashes():
    """A revision with slashes can be written in either way."""
    for written in ("refs%2Fconvert%2Fparquet", "refs/convert/parquet"):
        address = parse(f"{DATASET}@{written}/default/train/0000.parquet")
        assert (address.revision, address.path) == ("refs/convert/parquet", "default/train/0000.parquet")
        assert parse(address.url) == address


@pytest.mark.parametrize("revision", ["", "@main", "@refs%2Fheads%2Fmain", "@COMMIT"])
@pytest.mark.parametrize("path", [LARGE, SMALL])
def test_a_file_is_pinned(served, revision, path):
    """A file is found by one request, and comes back with the commit in its address."""
    url = f"{DATASET}{revision.replace('COMMIT', served.repositories[NAME].sha)}/{path}"
    assert datasets.find(url) == (True, [info(served, path)])
    assert served.log.counts() == {RESOLVE: 1}
    assert datasets.stat(url) == info(served, path)
    assert served.log.counts() == {RESOLVE: 2}


@pytest.mark.parametrize("path", ["", "/", "/sample", "/sample/", "/data/CC-MAIN-2024-18"])
def test_directories(served, folder, path):
    """A directory is everything below it, without what is hidden, by one listing."""
    named, files = datasets.find(DATASET + path)
    start = folder / path.strip("/")
    visible = [name for name in PATHS if (folder / name).is_relative_to(start)]
    visible = [name for name in visible if "/." not in f"/{name}"]
    assert not named
    assert sorted(files, key=str) == sorted((info(served, name) for name in visible), key=str)
    assert len(served.log.of(API, path="/tree/")) == 1


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "*.md",
        "**",
        "**/*.parquet",
        "sample/*",
        "sample/*/*.parquet",
        "sample/10BT/*",
        "sample/10BT/00[1-9]_*.parquet",
        "sample/**/000_0000?.parquet",
        "sample/.*/*.parquet",
        "data/CC-MAIN-*/*.parquet",
        "data/CC-MAIN-2024-1[!0]/**",
        "?ata/*.jsonl",
    ],
)
def test_globs(served, folder, pattern):
    """A glob finds what it finds on a disk, by one listing."""
    expected = [name for name in glob.glob(pattern, root_dir=folder, recursive=True) if (folder / name).is_file()]
    if not expected:
        with pytest.raises(SourceError, match="no file matches"):
            datasets.find(f"{DATASET}/{pattern}")
    else:
        named, files = datasets.find(f"{DATASET}/{pattern}")
        assert named
        assert sorted(file.path for file in files) == sorted(pinned(served, name) for name in expected)
        assert set(files) == {info(served, name) for name in expected}
    assert len(served.log.of(API, path="/tree/")) == 1


@pytest.mark.parametrize(
    ("pattern", "recursive"),
    [("sample/10BT/*.parquet", False), ("*", False), ("sample/*/*.parquet", True), ("sample/**", True)],
)
def test_globs_list_no_deeper_than_needed(served, pattern, recursive):
    """Only a glob that crosses directories makes the Hub list what is below them."""
    datasets.find(f"{DATASET}/{pattern}")
    (listing,) = served.log.of(API, path="/tree/")
    assert f"recursive={recursive}" in listing.path


def test_a_name_with_wildcards(served):
    """A file whose name looks like a glob is that file, and can be read by its pinned address."""
    path = "data/CC-MAIN-2024-18/odd [1] name?.parquet"
    assert datasets.find(f"{DATASET}/{path}") == (True, [info(served, path)])
    assert hashlib.sha256(read(info(served, path))).hexdigest() == info(served, path).fingerprint


def test_pages(served):
    """A listing of three pages takes three requests, and the revision one more, however many files there are."""
    served.page_size = 8
    _, files = datasets.find(DATASET)
    assert len(files) == 9
    assert len(served.log.of(API, path="/tree/")) == 3
    assert len(served.log.requests) == 4


def test_a_commit_is_not_looked_up(served):
    """An address that names a commit is listed without asking what the commit is."""
    datasets.find(pinned(served, "sample/10BT/*"))
    assert len(served.log.requests) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    [
        (f"{DATASET}/nothing.parquet", "no such file or directory"),
        (f"{DATASET}/nothing/*.parquet", "has no nothing at its commit"),
        (f"{DATASET}/sample/{{10BT,100BT}}/*.parquet", "{ } is no pattern here"),
        (f"{DATASET}/sample/{{10BT,100BT}}", "{ } is no pattern here"),
        (f"{DATASET}@other/{LARGE}", "no revision other"),
        (f"{DATASET}@{'0' * 40}", f"no revision {'0' * 40}"),
        ("hf://datasets/org/other", "hf auth login"),
    ],
)
def test_what_is_not_there(served, url, words):
    """A path, revision or dataset that does not exist is named."""
    with pytest.raises(TokenmillError, match=words) as raised:
        datasets.find(url)
    assert url.partition("@")[0] in re.sub("@[0-9a-f]{40}", "", str(raised.value))


def test_ranges_come_from_the_cdn(served, folder):
    """The Hub is asked once for a file; every range after that is one request to the CDN."""
    content, file, rng = (folder / LARGE).read_bytes(), info(served, LARGE), random.Random(1)
    for _ in range(20):
        start, stop = sorted(rng.sample(range(file.size + 1), 2))
        assert read(file, start, stop) == content[start:stop]
    assert served.log.counts() == {RESOLVE: 1, CDN: 20}
    assert served.log.of(RESOLVE)[0].method == "HEAD"


def test_many_threads_ask_once(served, folder):
    """Threads that begin to read a file at the same time ask the Hub for it once."""
    content, file = (folder / LARGE).read_bytes(), info(served, LARGE)
    with ThreadPoolExecutor(8) as pool:
        ranges = [(start, start + 1000) for start in range(0, 50_000, 1000)]
        found = list(pool.map(lambda span: read(file, *span), ranges))
    assert b"".join(found) == content[:50_000]
    assert served.log.counts() == {RESOLVE: 1, CDN: 50}


def test_few_locations_are_remembered(served, folder, monkeypatch):
    """A process that has read many files forgets where they are, and asks again."""
    monkeypatch.setattr("tokenmill.storage.hub.files.MAX_LOCATIONS", 1)
    for path in (LARGE, "sample/10BT/001_00000.parquet", LARGE):
        assert read(info(served, path), 0, 10) == (folder / path).read_bytes()[:10]
    assert served.log.counts() == {RESOLVE: 3, CDN: 3}


def test_small_files_come_from_the_hub(served, folder):
    """A file that is in git has no address on the CDN; its ranges are read from the Hub."""
    content, file = (folder / SMALL).read_bytes(), info(served, SMALL)
    assert [read(file, 10, 20), read(file), read(file, 5, 5)] == [content[10:20], content, b""]
    assert served.log.counts() == {RESOLVE: 3}


def test_beyond_the_end(served):
    """More than there is cannot be read."""
    with pytest.raises(EOFError, match="of a file of 1000000"):
        read(info(served, LARGE), 0, 1_000_001)


def test_an_expired_address(served, folder):
    """When the CDN does not accept an address any more, the Hub is asked for a new one."""
    file = info(served, LARGE)
    read(file, 0, 10)
    served.expire_signatures()
    assert read(file) == (folder / LARGE).read_bytes()
    assert [request.status for request in served.log.of(CDN)] == [206, 403, 206]
    assert len(served.log.of(RESOLVE)) == 2


def test_a_cdn_that_is_gone(served, folder):
    """When the CDN cannot be reached any more, the Hub is asked where the file is now."""
    file, elsewhere = info(served, LARGE), served.cdn_endpoint
    with Proxy(served.cdn_port) as proxy:
        served.cdn_endpoint = proxy.endpoint
        read(file, 0, 10)
    served.cdn_endpoint = elsewhere
    assert read(file) == (folder / LARGE).read_bytes()
    assert len(served.log.of(RESOLVE)) == 2


def test_too_many_requests(served, clock):
    """After 429 a request comes back when the Hub has asked for it, and not before."""
    served.limit_requests(1, 1.0, clock.monotonic)
    _, files = datasets.find(f"{DATASET}/sample/10BT")
    assert len(files) == 2
    assert read(files[0], 0, 10)
    assert served.log.refused
    assert not served.log.too_early


def test_cut_bodies(served, cdn, folder):
    """A body that breaks off is asked for again from where it did."""
    cdn.inject(Fault(cut=200_000), method="GET", times=3)
    file = info(served, LARGE)
    assert read(file) == (folder / LARGE).read_bytes()
    starts = [int(request.range.removeprefix("bytes=").partition("-")[0]) for request in served.log.of(CDN)]
    assert len(starts) == 4
    assert starts == sorted(set(starts))
    assert len(served.log.of(RESOLVE)) == 1


@pytest.mark.parametrize(
    "fault", [Fault(status=503), Fault(lose=True), Fault(cut=0), Fault(status=429, retry_after_seconds=0)]
)
def test_faults_pass(served, cdn, folder, fault):
    """Seven failures in a row cost nothing but time."""
    cdn.inject(fault, times=7)
    assert read(info(served, LARGE)) == (folder / LARGE).read_bytes()
    assert cdn.orders.left == 0


def test_faults_of_the_hub_pass(served, monkeypatch):
    """A hub that fails for a while is asked again, while listing and resolving too."""
    with Proxy(served.port) as proxy:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", proxy.endpoint)
        for path in ("/revision/", "/tree/", "/resolve/"):
            proxy.inject(Fault(status=503), path=path, times=3)
            proxy.inject(Fault(lose=True), path=path, times=3)
        _, files = datasets.find(f"{DATASET}/sample/10BT/*")
        assert len(read(files[0])) == files[0].size
        assert proxy.orders.left == 0


def test_a_stall(served, cdn, folder, monkeypatch):
    """A server that does not answer is asked again."""
    monkeypatch.setattr(hub_client, "STALL_SECONDS", 0.2)
    hub_client.client.cache_clear()
    cdn.inject(Fault(stall_seconds=60), times=2)
    try:
        assert read(info(served, LARGE)) == (folder / LARGE).read_bytes()
    finally:
        hub_client.client.cache_clear()
    assert cdn.orders.left == 0


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(status=403), Fault(status=410), Fault(lose=True)])
def test_failures_are_bounded(served, cdn, fault):
    """After eight failures in a row the file, the reason and the way on are told, and no signature."""
    cdn.inject(fault, times=100)
    with pytest.raises(StorageError, match="Run the same command again") as raised:
        read(info(served, LARGE))
    assert cdn.orders.left == 92
    message = str(raised.value)
    assert pinned(served, LARGE) in message
    assert "Signature" not in message
    assert "Expires" not in message


def test_a_long_wait_is_told(served, cdn):
    """A server that wants to be left alone for hours is left alone, and the run ends."""
    cdn.inject(Fault(status=429, retry_after_seconds=7200), times=100)
    with pytest.raises(StorageError, match="429"):
        read(info(served, LARGE))
    assert cdn.orders.left == 99


def test_a_changed_file(served, folder, tmp_path):
    """A file that is another one than planned is refused, whenever that happens."""
    files = [info(served, LARGE), info(served, SMALL)]
    read(files[0], 0, 10)
    read(files[1], 0, 10)
    for path in (LARGE, SMALL):
        other = tmp_path / "other"
        other.write_bytes(random.Random(7).randbytes(os.path.getsize(folder / path)))
        served.repositories[NAME].replace(path, other.rename(tmp_path / path.replace("/", "-")))
    asked = len(served.log.of(RESOLVE))
    for file in files:
        with pytest.raises(SourceError, match="a source changed since the run was planned") as raised:
            read(file, 10, 20)
        assert file.fingerprint in str(raised.value)
    assert len(served.log.of(RESOLVE)) > asked


def test_a_changed_file_at_first_sight(served):
    """The fingerprint is compared before anything is read."""
    file = info(served, LARGE)
    with pytest.raises(SourceError, match="a source changed since the run was planned"):
        read(FileInfo(file.path, file.size, "0" * 64))
    assert not served.log.of(CDN)


def test_the_token_stays_with_the_hub(served, monkeypatch):
    """A private dataset can be read with a token, which the CDN never sees."""
    token = "hf_" + "s3cret" * 6
    served.repositories[NAME].token = token
    monkeypatch.setenv("HF_TOKEN", token)
    _, files = datasets.find(f"{DATASET}/sample")
    for file in files:
        read(file)
    read(info(served, SMALL))
    assert served.log.of(CDN)
    assert served.log.leaked_tokens == 0
    assert all(request.has_token for request in served.log.requests if request.kind != CDN)


@pytest.mark.parametrize("token", ["", "hf_wrong", "hf_two words", "hf_ümlaut", "hf_new\nline", "hf_\x7f"])
def test_no_token_in_messages(served, monkeypatch, token):
    """A token that is missing, wrong or not even one leads to a message that says what to do, without the token."""
    served.repositories[NAME].token = "hf_right"
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(StorageError, match="hf auth login") as raised:
        datasets.find(f"{DATASET}/sample")
    assert "HF_TOKEN" in str(raised.value)
    if token in ("", "hf_wrong"):
        assert ("one was sent, and it was not accepted" if token else "none was sent") in str(raised.value)
    chain: BaseException | None = raised.value
    while chain is not None:
        assert "hf_" not in repr(chain).replace("hf_hub", "")
        chain = chain.__cause__


def test_offline(served, monkeypatch):
    """In offline mode nothing is asked, and the message says why."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(StorageError, match="Unset HF_HUB_OFFLINE"):
        datasets.find(DATASET)
    assert not served.log.requests


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid"])
def test_no_connection(monkeypatch, host):
    """A hub that cannot be reached is told, with the reason."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://{host}:{port}")
    with pytest.raises(StorageError, match="Check the network") as raised:
        datasets.find(f"{DATASET}/{LARGE}")
    assert "tried        4 times" in str(raised.value)


def test_not_a_hub(served, monkeypatch):
    """A server that is something else is not believed."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", served.cdn_endpoint)
    with pytest.raises(TokenmillError):
        datasets.find(DATASET)


class EndlessHub(BaseHTTPRequestHandler):
    """A server whose listing never ends: one page without an end, or pages that always name a next one."""

    def do_GET(self) -> None:
        """Answer with a commit, or with a listing until the client leaves."""
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if "/revision/" in self.path:
            self.end_headers()
            self.wfile.write(b'{"sha": "%s"}' % (b"a" * 40))
            return
        host, entry = self.headers["Host"], b'{"type": "file", "path": "x.parquet", "oid": "a", "size": 1}'
        if "pages" in self.path:
            self.send_header("Link", f'<http://{host}{self.path}1>; rel="next"')
            self.end_headers()
            self.wfile.write(b"[" + entry + b"]")
            return
        self.end_headers()
        self.wfile.write(b"[" + entry)
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write((b"," + entry) * 1000)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        (
            "pages",
            "20 pages, 20 entries, 1,240 bytes, and more follow\n  maximum      20 pages, 1,000 entries, 10,000 bytes",
        ),
        (
            "page",
            r"read         1,\d{3},\d{3} bytes of one page, and more follow\n  maximum      1,000,000 bytes of a page",
        ),
    ],
)
def test_a_listing_without_an_end_is_refused(monkeypatch, folder, found):
    """The bytes of a page, the pages and the entries have limits, and the message has the numbers."""
    for name, limit in (
        ("MAX_PAGE_BYTES", 1_000_000),
        ("MAX_PAGES", 20),
        ("MAX_ENTRIES", 1000),
        ("MAX_LISTING_BYTES", 10_000),
    ):
        monkeypatch.setattr(datasets, name, limit)
    with ThreadingHTTPServer(("127.0.0.1", 0), EndlessHub) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(SourceError, match="a listing of the Hub is too long") as raised:
            datasets.find(f"{DATASET}/{folder}/")
        server.shutdown()
    assert re.search(found, str(raised.value))


@pytest.mark.parametrize(("name", "limit"), [("MAX_ENTRIES", 5), ("MAX_LISTING_BYTES", 500)])
def test_all_pages_of_a_listing_are_limited(served, monkeypatch, name, limit):
    """The limits of entries and bytes are on all pages together."""
    served.page_size = 2
    monkeypatch.setattr(datasets, name, limit)
    with pytest.raises(SourceError, match=r"read         \d pages, \d entries, \d{3} bytes, and more follow"):
        datasets.find(DATASET)


@pytest.mark.parametrize("path", ["", LARGE, "sample/*"])
def test_a_web_server_is_not_a_hub(tmp_path, monkeypatch, path):
    """A page that is not found says nothing of a dataset: not the revision is missing, but the Hub."""
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(SourceError, match="the server does not answer as the Hub does") as raised:
            datasets.find(f"{DATASET}/{path}")
        server.shutdown()
    assert "Check HF_ENDPOINT" in str(raised.value)
    assert "revision" not in str(raised.value)


def test_an_endpoint_without_a_scheme(monkeypatch):
    """It is refused at once, and what is missing is said."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "127.0.0.1:43455")
    with pytest.raises(UsageError, match="HF_ENDPOINT needs http:// or https://"):
        datasets.find(DATASET)


@pytest.mark.parametrize("path", [LARGE, SMALL])
def test_a_copy_is_kept(served, folder, tmp_path, path):
    """A whole file is kept under its hash, and not asked for again."""
    file, cache = info(served, path), tmp_path / "a" / "cache"
    copies = [datasets.local_copy(file.path, file.fingerprint, file.size, str(cache)) for _ in range(2)]
    assert copies == [str(cache / file.fingerprint)] * 2
    assert Path(copies[0]).read_bytes() == (folder / path).read_bytes()
    assert sorted(os.listdir(cache)) == [f".{file.fingerprint}.checked", f".{file.fingerprint}.lock", file.fingerprint]
    assert sum(request.method == "GET" for request in served.log.requests) == 1


def test_a_copy_in_pieces(served, folder, tmp_path, monkeypatch):
    """A large file is fetched in several pieces, of which each may break off."""
    monkeypatch.setattr("tokenmill.storage.range_file.CHUNK_BYTES", 64 << 10)
    file = info(served, LARGE)
    with Proxy(served.cdn_port) as proxy:
        served.cdn_endpoint = proxy.endpoint
        proxy.inject(Fault(cut=10_000), times=3)
        copy = datasets.local_copy(file.path, file.fingerprint, file.size, str(tmp_path / "cache"))
    assert Path(copy).read_bytes() == (folder / LARGE).read_bytes()
    assert served.log.counts() == {RESOLVE: 1, CDN: 16 + 3}


def test_a_copy_of_another_size(served, folder, tmp_path):
    """A copy that is too short, whatever made it so, is fetched again; so is one that was never finished."""
    file = info(served, LARGE)
    (tmp_path / file.fingerprint).write_bytes(b"short")
    (tmp_path / f".{file.fingerprint}.tmp").write_bytes(b"unfinished")
    copy = datasets.local_copy(file.path, file.fingerprint, file.size, str(tmp_path))
    assert Path(copy).read_bytes() == (folder / LARGE).read_bytes()
    assert not (tmp_path / f".{file.fingerprint}.tmp").exists()


@pytest.mark.parametrize("path", [LARGE, SMALL])
def test_a_copy_with_another_content(served, folder, tmp_path, path):
    """A copy of the right size and another content is not used: it is fetched again, whenever it was changed."""
    file = info(served, path)
    copy = tmp_path / file.fingerprint
    for _ in range(2):  # before it was ever checked, and after that
        wait_for_another_time(copy)
        copy.write_bytes(b"x" * file.size)
        assert datasets.kept_copy(file.fingerprint, file.size, str(tmp_path)) is None
        assert datasets.local_copy(file.path, file.fingerprint, file.size, str(tmp_path)) == str(copy)
        assert copy.read_bytes() == (folder / path).read_bytes()
        assert datasets.kept_copy(file.fingerprint, file.size, str(tmp_path)) == str(copy)


def wait_for_another_time(path: Path) -> None:
    """File systems count time in steps of some milliseconds: wait for the one after a file was changed."""
    probe = path.with_name("probe")

    def time_of_the_file_system() -> int:
        probe.touch()
        return probe.stat().st_ctime_ns

    changed = path.stat().st_ctime_ns if path.exists() else 0
    assert wait_until(lambda: time_of_the_file_system() > changed)


def test_a_copy_is_checked_once(served, folder, tmp_path, monkeypatch):
    """A copy is hashed by the first process that finds it, and not again as long as it stays as it is."""
    file = info(served, LARGE)
    (tmp_path / file.fingerprint).write_bytes((folder / LARGE).read_bytes())
    assert datasets.kept_copy(file.fingerprint, file.size, str(tmp_path))
    monkeypatch.setattr("tokenmill.storage.hub.cache._has_hash", lambda *_: pytest.fail("it is hashed again"))
    assert datasets.kept_copy(file.fingerprint, file.size, str(tmp_path))
    assert served.log.counts().get(CDN, 0) == 0


@pytest.mark.parametrize("name", ["{}", ".{}.tmp", ".{}.checked"])
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_copy_is_not_written_through_a_link(served, folder, tmp_path, name, link):
    """A link in the cache is replaced, and the file that it leads to stays as it is."""
    file, cache, outside = info(served, LARGE), tmp_path / "cache", tmp_path / "outside"
    cache.mkdir()
    outside.write_bytes(b"precious")
    link(outside, cache / name.format(file.fingerprint))
    copy = datasets.local_copy(file.path, file.fingerprint, file.size, str(cache))
    assert not Path(copy).is_symlink()
    assert Path(copy).read_bytes() == (folder / LARGE).read_bytes()
    assert outside.read_bytes() == b"precious"


def test_a_link_to_a_copy_is_not_used(served, folder, tmp_path):
    """A link is not a copy, whatever it leads to: what it leads to may change after it was checked."""
    file, cache = info(served, LARGE), tmp_path / "cache"
    cache.mkdir()
    (cache / file.fingerprint).symlink_to(folder / LARGE)
    assert datasets.kept_copy(file.fingerprint, file.size, str(cache)) is None


@pytest.mark.parametrize(("path", "length"), [(LARGE, 64), (SMALL, 40)])
def test_a_damaged_download(served, tmp_path, path, length):
    """What does not have the hash that the Hub states is refused and not kept."""

    class Mislabelled(File):
        etag = "0" * length

    served.repositories[NAME].files[path] = Mislabelled(path, served.repositories[NAME].files[path].path)
    file = info(served, path)
    cache = tmp_path / "cache"
    with pytest.raises(SourceError, match="does not have the hash that the Hub states"):
        datasets.local_copy(file.path, file.fingerprint, file.size, str(cache))
    assert os.listdir(cache) == [f".{file.fingerprint}.lock"]


def test_a_fingerprint_that_leads_elsewhere(served, tmp_path):
    """A plan from somebody else cannot make us write outside of the cache."""
    with pytest.raises(SourceError, match="not a hash"):
        datasets.local_copy(pinned(served, LARGE), "../outside", 5, str(tmp_path / "cache"))
    assert not (tmp_path / "outside").exists()


KEEP = """
import sys
from tokenmill.storage.hub import listing as hub
url, fingerprint, size, cache = sys.argv[1:]
print(hub.local_copy(url, fingerprint, int(size), cache))
"""


def test_two_processes_one_download(served, folder, tmp_path):
    """Processes that want the same file at the same time fetch it once."""
    file, cache = info(served, LARGE), tmp_path / "cache"
    arguments = [file.path, file.fingerprint, str(file.size), str(cache)]
    processes = [
        subprocess.Popen([sys.executable, "-c", KEEP, *arguments], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in processes]
    assert answers == [str(cache / file.fingerprint)] * 2
    assert Path(answers[0]).read_bytes() == (folder / LARGE).read_bytes()
    assert served.log.bytes_sent(CDN) == file.size
    assert sorted(os.listdir(cache)) == [f".{file.fingerprint}.checked", f".{file.fingerprint}.lock", file.fingerprint]


def test_a_killed_download(served, cdn, folder, tmp_path):
    """A process that is killed while it fetches leaves nothing that the next one would take for the file."""
    file, cache = info(served, LARGE), tmp_path / "cache"
    arguments = [file.path, file.fingerprint, str(file.size), str(cache)]
    cdn.inject(Fault(stall_seconds=60))
    process = subprocess.Popen([sys.executable, "-c", KEEP, *arguments])
    assert wait_until(lambda: not cdn.orders.left)
    process.kill()
    process.wait()
    assert sorted(os.listdir(cache)) == [f".{file.fingerprint}.lock", f".{file.fingerprint}.tmp"]
    copy = datasets.local_copy(file.path, file.fingerprint, file.size, str(cache))
    assert Path(copy).read_bytes() == (folder / LARGE).read_bytes()
    assert sorted(os.listdir(cache)) == [f".{file.fingerprint}.checked", f".{file.fingerprint}.lock", file.fingerprint]


def test_no_room_for_a_copy(served, tmp_path):
    """A cache that cannot be written to is told, with what to do, and nothing half-written stays."""
    file, limits = info(served, LARGE), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))
    try:
        with pytest.raises(StoreError, match=r"(?s)cannot keep a file of the Hub.*File too large.*cache="):
            datasets.local_copy(file.path, file.fingerprint, file.size, str(tmp_path / "cache"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path / "cache") == [f".{file.fingerprint}.lock"]
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="Name another directory with cache=") as raised:
        datasets.local_copy(file.path, file.fingerprint, file.size, str(tmp_path / "file"))
    assert "space" not in str(raised.value)


FORK = """
import os, sys
from tokenmill.storage.hub import listing as hub
url, fingerprint, path = sys.argv[1:]
content = open(path, "rb").read()
def read(first):
    spans = [(place, place + 200_000) for place in range(first, len(content) - 200_000, 100_000)]
    return all(hub.fetch(url, fingerprint, *span) == content[slice(*span)] for span in spans)
read(0)
children = []
for number in range(4):
    if not (child := os.fork()):
        os._exit(0 if read(number) else 1)
    children.append(child)
print(read(4), [os.waitpid(child, 0)[1] for child in children])
"""


def test_after_a_fork(served, folder):
    """Processes that were forked from one that reads do not share its connections: no request has to be repeated."""
    file = info(served, LARGE)
    command = [sys.executable, "-c", FORK, file.path, file.fingerprint, str(folder / LARGE)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True [0, 0, 0, 0]\n"
    assert served.log.counts() == {RESOLVE: 5, CDN: 6 * 8}


def test_local_runs_do_not_load_the_client():
    """Whoever reads local files loads neither huggingface_hub nor its HTTP library."""
    code = "import sys, tokenmill.storage.hub.listing; print(*{name.partition('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "tokenmill" in loaded
    assert not {"huggingface_hub", "httpx", "httpx2", "obstore"} & {*loaded}
