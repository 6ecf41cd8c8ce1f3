"""The servers of the tests do what they claim: SeaweedFS, azurite, the hub, and the proxy with each of its faults."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from huggingface_hub import HfApi, HfFileSystem, close_session
from huggingface_hub.errors import (
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoFile
from obstore.exceptions import AlreadyExistsError, GenericError, PermissionDeniedError
from obstore.store import AzureStore, S3Store

from tests.support import ROOT
from tests.support.servers.azure import AzureServer
from tests.support.servers.faults import Fault
from tests.support.servers.hub import Hub
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket, start_seaweed

CONTENT = bytes(range(256)) * 4096
SHA = "9bb295ddab0e05d785b879661af7260fed5140fc"


@pytest.fixture
def proxy(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy in front of SeaweedFS, as the environment says."""
    with Proxy(s3.server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        yield proxy


@pytest.fixture
def store(s3: Bucket, proxy: Proxy) -> S3Store:
    """The fresh bucket, through the proxy, with one object and nothing counted yet."""
    store = S3Store.from_url(s3.url, client_options={"allow_http": True, "timeout": timedelta(seconds=1)})
    store.put("object", CONTENT)
    proxy.reset()
    return store


def test_objects_pass_through_the_proxy_and_are_counted(s3: Bucket, proxy: Proxy, store: S3Store) -> None:
    """What is put, read by ranges and uploaded in pieces through the proxy is whole, and its bytes are counted."""
    assert bytes(store.get("object").bytes()) == CONTENT
    assert bytes(store.get_range("object", start=1000, length=50)) == CONTENT[1000:1050]
    assert proxy.requests == {"GET": 2}
    assert proxy.bytes_down == len(CONTENT) + 50
    assert [exchange.range for exchange in proxy.exchanges] == ["", "bytes=1000-1049"]
    proxy.reset()
    patient = S3Store.from_url(s3.url, client_options={"allow_http": True, "timeout": timedelta(minutes=1)})
    patient.put("large", CONTENT * 12, use_multipart=True)  # a piece that is sent again would be counted twice
    assert proxy.requests["PUT"] > 1
    assert 12 * len(CONTENT) <= proxy.bytes_up < 12 * len(CONTENT) + 2000
    assert s3.server.objects(s3.url) == {"object": CONTENT, "large": CONTENT * 12}


def test_a_second_create_is_refused(store: S3Store) -> None:
    """An object is created by one client only, and a wrong key is no key."""
    store.put("once", b"1", mode="create")
    with pytest.raises(AlreadyExistsError):
        store.put("once", b"2", mode="create")
    with pytest.raises(PermissionDeniedError):
        S3Store(store.config["bucket"], secret_access_key="wrong").get("once")


def test_a_status_is_answered_as_often_as_ordered(proxy: Proxy, store: S3Store) -> None:
    """503 is retried by the client, 403 is not, and requests that do not match are left alone."""
    proxy.inject(Fault(status=503), method="GET", path="/object", times=2)
    proxy.inject(Fault(status=403), method="PUT")
    assert store.head("object")["size"] == len(CONTENT)
    assert bytes(store.get("object").bytes()) == CONTENT
    assert [exchange.status for exchange in proxy.exchanges] == [200, 503, 503, 200]
    with pytest.raises(PermissionDeniedError, match="ExpiredToken"):
        store.put("new", b"x")
    assert proxy.orders.left == 0


def test_a_cut_body_and_a_stalled_answer_are_overcome_by_the_client(proxy: Proxy, store: S3Store) -> None:
    """The body of an answer ends where the test says, and an answer comes as late as it says."""
    proxy.inject(Fault(cut=1000), method="GET")
    assert bytes(store.get("object").bytes()) == CONTENT
    assert [exchange.bytes_down for exchange in proxy.exchanges] == [1000, len(CONTENT) - 1000]
    proxy.reset()
    proxy.inject(Fault(stall_seconds=60), method="GET")
    assert bytes(store.get("object").bytes()) == CONTENT
    assert [exchange.status for exchange in proxy.exchanges] == [None, 200]


def test_a_lost_answer_leaves_the_object_written(s3: Bucket, proxy: Proxy, store: S3Store) -> None:
    """The server does what it was asked, and the client, which must not ask again, learns nothing of it."""
    proxy.inject(Fault(lose=True), method="PUT")
    with pytest.raises(GenericError):
        store.put("lost", b"written", mode="create")
    assert s3.server.objects(s3.url)["lost"] == b"written"


def test_latency_is_added_to_every_request(proxy: Proxy, store: S3Store) -> None:
    """Ten requests over one connection take ten times the latency."""
    proxy.latency_seconds = 0.02
    start = time.monotonic()
    for _ in range(10):
        store.head("object")
    assert 0.2 <= time.monotonic() - start < 2


def test_a_killed_server_comes_back_with_its_data(tmp_path: Path) -> None:
    """While SeaweedFS is down the proxy answers 502; restarted, it has what it had, at the same address."""
    server = start_seaweed(tmp_path, "ACCESS", "secret")
    try:
        url = server.bucket("bucket")
        (tmp_path / "files").mkdir()
        (tmp_path / "files" / "name").write_bytes(CONTENT)
        server.upload(tmp_path / "files", f"{url}/folder")
        with Proxy(server.port) as proxy:
            store = server.store(url, proxy.endpoint, retry_config={"max_retries": 0})
            server.stop()
            with pytest.raises(GenericError, match="502"):
                store.get("folder/name")
            server.start()
            assert bytes(store.get("folder/name").bytes()) == CONTENT
    finally:
        server.stop()


def test_a_server_does_not_outlive_the_process_that_started_it(tmp_path: Path) -> None:
    """When a test run is killed, its servers go with it."""
    script = (
        "import os, pathlib, sys; from tests.support.servers.processes import ServerProcess\n"
        "server = ServerProcess.start(['sleep', '100'], pathlib.Path(sys.argv[1]), dict(os.environ))\n"
        "print(server.pid, flush=True); os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", script, str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert _ends(int(ended.stdout))


def _ends(pid: int) -> bool:
    """Whether a process is gone, or dead and not yet collected, soon."""
    for _ in range(500):
        stat = Path(f"/proc/{pid}/stat")
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_azure_creates_once_and_passes_through_the_proxy(
    azure: str, azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server takes and gives objects, creates one only once, and works through the proxy with a fault."""
    with Proxy(azure_server.port) as proxy:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure_server.environment(proxy.endpoint)["AZURE_STORAGE_ENDPOINT"])
        store = AzureStore.from_url(azure)
        store.put("folder/name", CONTENT, mode="create")
        with pytest.raises(AlreadyExistsError):
            store.put("folder/name", b"", mode="create")
        proxy.inject(Fault(status=503), method="GET")
        assert bytes(store.get("folder/name").bytes()) == CONTENT
        assert [entry["path"] for page in store.list() for entry in page] == ["folder/name"]


@pytest.fixture
def api(hub: Hub, tmp_path: Path) -> Iterator[HfApi]:
    """A client of the hub, which has one repository with the layout of FineWeb, in pages of three."""
    files = {f"data/CC-MAIN-2024-10/000_0000{i}.parquet": CONTENT[i:] for i in range(5)} | {"README.md": b"# FineWeb\n"}
    for name, content in files.items():
        (tmp_path / "repository" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "repository" / name).write_bytes(content)
    hub.page_size = 3
    hub.add("org/fineweb", tmp_path / "repository", sha=SHA)
    yield HfApi(endpoint=hub.endpoint, token=False)
    close_session()


PARQUET = "data/CC-MAIN-2024-10/000_00000.parquet"


def test_the_hub_lists_a_repository_in_pages(hub: Hub, api: HfApi) -> None:
    """Six files and two folders come in three pages, with the hashes of git and of LFS; main is the given revision."""
    assert api.dataset_info("org/fineweb").sha == SHA
    hub.log.clear()
    entries = list(api.list_repo_tree("org/fineweb", repo_type="dataset", revision=SHA, recursive=True))
    assert len(entries) == 8
    assert len(hub.log.of("api", "GET", "/tree/")) == 3
    parquet, readme = api.get_paths_info("org/fineweb", [PARQUET, "README.md"], repo_type="dataset")
    assert isinstance(parquet, RepoFile)
    assert isinstance(readme, RepoFile)
    assert parquet.lfs is not None
    assert parquet.lfs.sha256 == "fbbab289f7f94b25736c58be46a994c441fd02552cc6022352e3d86d2fab7c83"
    assert (readme.lfs, readme.blob_id) == (None, "e2cfab16c8a0742d0e7beb9bdb8ceb1bbef53a2f")


def test_the_hub_refuses_what_it_does_not_have(api: HfApi, tmp_path: Path) -> None:
    """An unknown repository, revision or file is told apart from the others."""
    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info("org/other")
    with pytest.raises(RevisionNotFoundError):
        api.dataset_info("org/fineweb", revision="0" * 40)
    with pytest.raises(RemoteEntryNotFoundError):
        api.hf_hub_download("org/fineweb", "absent", repo_type="dataset", cache_dir=tmp_path)


def test_a_download_is_redirected_to_the_cdn(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    """A Parquet file comes from the CDN, a small file from the hub itself, and both are whole."""
    path = api.hf_hub_download("org/fineweb", PARQUET, repo_type="dataset", revision=SHA, cache_dir=tmp_path)
    assert Path(path).read_bytes() == CONTENT
    assert hub.log.bytes_sent("cdn") == len(CONTENT)
    hub.log.clear()
    path = api.hf_hub_download("org/fineweb", "README.md", repo_type="dataset", cache_dir=tmp_path)
    assert Path(path).read_bytes() == b"# FineWeb\n"
    assert hub.log.counts() == {"resolve": 2}


def test_ranges_pass_the_redirect_until_the_signature_expires(hub: Hub, api: HfApi) -> None:
    """A range is read from the CDN byte for byte, and an address that is too old gets 403."""
    files = HfFileSystem(endpoint=hub.endpoint, token=False)
    with files.open(f"datasets/org/fineweb@{SHA}/{PARQUET}", block_size=10) as file:
        file.seek(1000)
        assert file.read(50) == CONTENT[1000:1050]
    assert [(request.status, request.range) for request in hub.log.of("cdn")] == [(206, "bytes=1000-1059")]
    hub.signature_seconds = -10
    with pytest.raises(HfHubHTTPError, match="403"):
        files.cat_file(f"datasets/org/fineweb@{SHA}/{PARQUET}", 0, 10)


def test_a_private_repository_wants_its_token_and_the_cdn_does_not(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    """Without the token there is no such repository; with it, the CDN never gets to see it."""
    hub.add("org/private", tmp_path / "repository", token="hf_test")
    with pytest.raises(RepositoryNotFoundError):
        api.dataset_info("org/private")
    allowed = HfApi(endpoint=hub.endpoint, token="hf_test")
    path = allowed.hf_hub_download("org/private", PARQUET, repo_type="dataset", cache_dir=tmp_path)
    assert Path(path).read_bytes() == CONTENT
    assert hub.log.counts()["cdn"] == 1
    assert hub.log.leaked_tokens == 0


def test_too_many_requests_are_refused_for_a_while(hub: Hub, api: HfApi) -> None:
    """The third request within a second gets 429 with Retry-After, and huggingface_hub comes back late enough."""
    hub.limit_requests(2, seconds=1)
    entries = list(api.list_repo_tree("org/fineweb", repo_type="dataset", recursive=True))
    assert len(entries) == 8
    assert (hub.log.refused, hub.log.too_early) == (1, 0)


def test_a_client_that_does_not_wait_is_noticed(hub: Hub) -> None:
    """The same request again, before its Retry-After, is recorded as too early."""
    hub.limit_requests(0, seconds=60)
    for _ in range(2):
        with pytest.raises(HTTPError, match="429") as refusal:
            urlopen(f"{hub.endpoint}/api/datasets/org/fineweb", timeout=10)
        assert 59 <= int(refusal.value.headers["Retry-After"]) <= 60
        refusal.value.close()
    assert (hub.log.refused, hub.log.too_early) == (2, 1)


def test_a_file_can_change_under_the_same_revision(hub: Hub, api: HfApi, tmp_path: Path) -> None:
    """Another content under the same name has another etag and size, and the revision stays."""
    (tmp_path / "other").write_bytes(b"other")
    hub.repositories["org/fineweb"].replace(PARQUET, tmp_path / "other")
    assert api.dataset_info("org/fineweb").sha == SHA
    (entry,) = api.get_paths_info("org/fineweb", [PARQUET], repo_type="dataset")
    assert isinstance(entry, RepoFile)
    assert entry.size == 5
