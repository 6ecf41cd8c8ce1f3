"""Exports in a bucket converge: without locks, with splits that are one object, with leftover regions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON
from tests.support.erasing import CALL, erase_rows, make_store, write_source
from tests.support.segmented import random_documents, write
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import TRY_AGAIN, TokenmillError
from tokenmill.exports import records, shards
from tokenmill.exports.exporter import Exporter
from tokenmill.storage import folder_at

SECRETS = (3, 17, 18, 41)


def make(tmp_path: Path, root: str) -> str:
    source = write_source(tmp_path / "in/a.parquet")
    tokenmill.prepare(source, out=f"{root}/out", **CALL, keep="url")
    return f"{root}/out"


def encoded(store: str, row: int) -> bytes:
    return bytes(tokenmill.open(store)[row][:-1].astype("<u2").tobytes())


def test_the_files_are_those_of_a_disk(s3: Bucket, tmp_path: Path) -> None:
    """Shards of one object, shards of their own, and columns that are empty for the documents."""
    stores = [make(tmp_path, root) for root in (str(tmp_path), s3.url)]
    for store in stores:
        for to in ("nanogpt", "litdata"):
            tokenmill.export(store, to=to, workers=1)
        tokenmill.export(store, to="parquet", shuffle=3, with_columns="url", shard_tokens=300, workers=1)
        result = erase_rows(store, *SECRETS, request="r")
        assert (result.documents, len(result.exports), result.unreached) == (4, 3, {})
        tokenmill.verify(store, workers=1)
    disk, bucket = map(folder_at, stores)
    shards = [f"parquet/{name}" for name in disk.names("parquet") if name.endswith(".parquet")]
    for name in ["nanogpt/train.bin", "litdata/chunk-0-0.bin", *shards]:
        assert disk.read(name) == bucket.read(name)
    rows = [row for name in shards for row in pq.read_table(pa.BufferReader(bucket.buffer(name))).to_pylist()]
    assert len(shards) > 2
    assert sorted(row["row"] for row in rows if row["url"] is None) == list(SECRETS)


def test_labels_are_those_of_a_disk(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two objects of several regions each, of which an erasure writes both again."""
    monkeypatch.setattr(shards, "REGION_TOKENS", 500)
    source = write(tmp_path / "in/a.parquet", random_documents(60, 13))
    folders = []
    for root in (str(tmp_path), s3.url):
        options: dict[str, Any] = {"unit_bytes": 1500, "keep": "id", "workers": 1}
        tokenmill.prepare(source, tokenizer=SMALL_JSON, segments="segments", out=f"{root}/out", **options)
        tokenmill.export(f"{root}/out", to="megatron", mask="labels", workers=1)
        tokenmill.erase(f"{root}/out", column="id", values=["3", "41"], workers=1)
        tokenmill.verify(f"{root}/out", workers=1)
        folders.append(folder_at(f"{root}/out/megatron"))
    names = [f"train_{kind}_document.{end}" for kind in ("text", "text_label") for end in ("bin", "idx")]
    disk, bucket = ([folder.read(name) for name in names] for folder in folders)
    assert disk == bucket
    assert len(disk[0]) > 4 * 500


@pytest.mark.parametrize("to", ["nanogpt", "llmc"])
def test_another_process_goes_on(to: Any, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another store of the export erases between the plan of this one and its manifest."""
    stores, far = [make_store(tmp_path, name, name) for name in ("a", "b")], f"{s3.url}/joint"
    secrets = [encoded(stores[0], 17), encoded(stores[1], 41)]
    tokenmill.export(stores, to=to, out=far, workers=1)
    original = records.publish_next

    def slow(*arguments: Any) -> None:
        monkeypatch.setattr(records, "publish_next", original)
        assert erase_rows(stores[1], 41, request="r").unreached == {}
        original(*arguments)

    monkeypatch.setattr(records, "publish_next", slow)
    assert list(erase_rows(stores[0], 17, request="r").exports) == [far]
    assert not any(secret in data for secret in secrets for data in s3.server.objects(far).values())
    for directory in (*stores, far):
        tokenmill.verify(directory, workers=1)


def test_leftover_pieces_are_removed(s3: Bucket, tmp_path: Path) -> None:
    """Regions that a killed or slow exporter left beside the object."""
    store = make(tmp_path, s3.url)
    tokenmill.export(store, to="nanogpt", workers=1)
    folder, secret = folder_at(store), encoded(store, 17)
    with folder.publish("nanogpt/.train.bin.pieces/00000000000000000000") as file:
        file.write(folder.read("nanogpt/train.bin"))
    erase_rows(store, 17)
    assert folder.names("nanogpt/.train.bin.pieces") == []
    assert all(secret not in data for data in s3.server.objects(store).values())


def test_an_export_beside_an_erasure(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both end with exit code 75. The same export converges at its end, and the same erasure finds it so."""
    store = make(tmp_path, s3.url)
    secret, start = encoded(store, 17), Exporter.announce
    options: dict[str, Any] = {"to": "llmc", "shard_tokens": 500, "val": "none", "workers": 1}

    def erase_first(exporter: Exporter) -> None:
        start(exporter)
        assert erase_rows(store, 17, request="r").exit_code == TRY_AGAIN

    with monkeypatch.context() as patch:
        patch.setattr(Exporter, "announce", erase_first)
        with pytest.raises(TokenmillError, match="were erased from") as failed:
            tokenmill.export(store, **options)
    assert failed.value.exit_code == TRY_AGAIN
    tokenmill.export(store, **options)
    assert all(secret not in data for data in s3.server.objects(store).values())
    assert erase_rows(store, request="r").exit_code == 0
    tokenmill.verify(store, workers=1)
