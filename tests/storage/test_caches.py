"""What a living process remembers: never the server, the keys or the store that an earlier call was about."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tokenmill
from tests.support.arguments import PrepareArguments
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import TRY_AGAIN, CorruptStore, StorageError
from tokenmill.executors.local import LocalExecutor
from tokenmill.pipeline.unit import documents as units
from tokenmill.storage import folder_at, publish_new
from tokenmill.storage.objects import read
from tokenmill.store.layout import part_name

JOB: PrepareArguments = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1}


@pytest.fixture
def proxies(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Proxy, Proxy]]:
    """Two endpoints; no other one is set."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    with Proxy(s3.server.port) as one, Proxy(s3.server.port) as other:
        yield one, other


def test_another_endpoint_is_used_at_once(s3: Bucket, proxies: tuple[Proxy, Proxy]) -> None:
    """After a first call with one endpoint, `using` another one talks to that and no longer to the first."""
    one, other = proxies
    for proxy, silent in ((one, other), (other, one)):
        with tokenmill.using(endpoint=proxy.endpoint):
            silent.reset()
            publish_new(folder_at(f"{s3.url}/run"), "file", b"content")
            assert folder_at(f"{s3.url}/run").names(".") == ["file"]
        assert proxy.exchanges
        assert silent.exchanges == []


def test_other_names_of_the_endpoint_give_way(
    s3: Bucket, proxies: tuple[Proxy, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `using` names counts, also beside another variable for the endpoint, which is there again afterwards."""
    one, other = proxies
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", one.endpoint)
    monkeypatch.setenv("AWS_ENDPOINT", one.endpoint)
    with tokenmill.using(endpoint=other.endpoint):
        folder_at(f"{s3.url}/run").names(".")
    assert other.exchanges
    assert one.exchanges == []
    assert os.environ["AWS_ENDPOINT_URL_S3"] == os.environ["AWS_ENDPOINT"] == one.endpoint


def test_a_folder_stays_with_its_endpoint(s3: Bucket, proxies: tuple[Proxy, Proxy]) -> None:
    """A store that was opened at one endpoint is read there, also while another one is set."""
    one, other = proxies
    with tokenmill.using(endpoint=one.endpoint):
        folder = folder_at(f"{s3.url}/run")
        publish_new(folder, "file", b"a\nb\n")
    with tokenmill.using(endpoint=other.endpoint):
        assert folder.names(".") == ["file"]
        assert list(folder.ranges.lines("file")) == [b"a\n", b"b\n"]
        assert publish_new(folder, "other", b"content")
    assert other.exchanges == []


@pytest.mark.parametrize("way", ["chunks", "lines", "open_version"])
def test_an_object_is_replaced_while_it_is_read(s3: Bucket, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Whichever way it is read, the error says so, names the version and advises to try again."""
    folder = folder_at(f"{s3.url}/run")
    publish_new(folder, "file", b"one\n" * 100)
    original = read.fetch

    def fetch(url: str, fingerprint: str, *arguments: Any) -> pa.Buffer:
        with folder.publish("file") as file:
            file.write(b"two\n" * 100)
        return original(url, fingerprint, *arguments)

    monkeypatch.setattr(read, "fetch", fetch)
    ways: dict[str, Callable[[], object]] = {
        "chunks": lambda: list(folder.ranges.chunks("file", 0, 400)),
        "lines": lambda: list(folder.ranges.lines("file")),
        "open_version": lambda: folder.ranges.open_version("file", 4)[2](8, 4),
    }
    with pytest.raises(CorruptStore, match="was replaced while it was read") as raised:
        ways[way]()
    assert raised.value.exit_code == TRY_AGAIN
    assert "version" in str(raised.value)


def test_workers_of_an_executor_follow_the_endpoint(s3: Bucket, proxies: tuple[Proxy, Proxy], parquet: str) -> None:
    """Workers that were started with one endpoint use the one that a later call names."""
    one, other = proxies
    with LocalExecutor() as executor:
        for proxy, silent, name in ((one, other, "one"), (other, one, "other")):
            silent.reset()
            with tokenmill.using(endpoint=proxy.endpoint):
                given: PrepareArguments = {**JOB, "executor": executor}
                tokenmill.prepare(parquet, out=f"{s3.url}/{name}", **given)
            assert any("/parts/" in exchange.path and exchange.method == "PUT" for exchange in proxy.exchanges)
            assert silent.exchanges == []


def test_renewed_keys_are_used_by_a_living_process(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that are replaced in the environment are used with the next request, also by a folder that is open."""
    folder = folder_at(f"{s3.url}/run")
    publish_new(folder, "file", b"content")
    good = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "expired")
    with pytest.raises(StorageError):
        folder.read("file")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", good)
    assert folder.read("file") == b"content"


def test_renewed_keys_of_a_profile_are_used(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that another program writes into the file of the profile are used with the next request."""
    keys = {"aws_access_key_id": s3.server.access_key, "aws_secret_access_key": s3.server.secret_key}
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def write(**changed: str) -> None:
        file.write_text("[default]\n" + "".join(f"{name} = {value}\n" for name, value in {**keys, **changed}.items()))

    write()
    folder = folder_at(f"{s3.url}/run")
    publish_new(folder, "file", b"content")
    write(aws_secret_access_key="expired")
    with pytest.raises(StorageError):
        folder.read("file")
    write()
    assert folder.read("file") == b"content"


def test_a_part_of_an_earlier_store_does_not_count(s3: Bucket) -> None:
    """That a unit has a part is looked at again before its unit is left alone: the store may be another one by now."""
    folder = folder_at(f"{s3.url}/run")
    publish_new(folder, part_name(0), b"part")
    units.existence.begin(folder.root, part_name(0))
    units.existence._answers[folder.root, part_name(0)].result()
    folder.discard(part_name(0))
    assert not units.existence.exists(folder, part_name(0))


def test_an_export_takes_the_sources_of_its_own_store(tmp_path: Path, documents: list[str]) -> None:
    """A process that exported a store exports another one at the same path with that one's sources and split."""
    expected, found = {}, {}
    for name, texts in (("one", documents * 20), ("other", list(reversed(documents)) * 20)):
        corpus = write_parquet(tmp_path / name / f"{name}.parquet", texts)
        expected[name], found[name] = (_exported(corpus, tmp_path / out) for out in (f"{name}-run", "run"))
    assert found == expected
    assert expected["one"]["val"] != expected["other"]["val"]


def _exported(corpus: str, out: Path) -> dict[str, bytes]:
    """The files of an export of a new store at a path."""
    shutil.rmtree(out, ignore_errors=True)
    tokenmill.prepare(corpus, out=str(out), **JOB)
    tokenmill.export(str(out), to="nanogpt", val=0.3, shuffle=1, workers=1)
    return {split: (out / "nanogpt" / f"{split}.bin").read_bytes() for split in ("train", "val")}
