"""Erasure in a bucket: the same files as on a disk, also in exports whose split is one object."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.api.test_erase import END, SECRETS, write
from tests.support.command import run
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.remote_runs import end, start
from tests.support.servers.seaweed import Bucket
from tokenmill.api import erase as erase_module
from tokenmill.errors import CORRUPT, TRY_AGAIN, CorruptStore, IncompleteStore, JobChanged, RunFailed, StoreError
from tokenmill.exports import erase_export
from tokenmill.exports.exporter import Exporter
from tokenmill.pipeline import erase as store_erasure
from tokenmill.storage import folder_at, read_existing
from tokenmill.store.erasing import ErasingMark, publish_mark, remove_mark
from tokenmill.store.erasures import DOCUMENTS_FILE, erased_documents
from tokenmill.store.part_ranges import open_ranged

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "workers": 1, "unit_bytes": 900, "keep": "url"}


def test_an_erasure_in_a_bucket_gives_the_files_of_a_disk(s3: Bucket, tmp_path: Path) -> None:
    """Parts, kept columns and exports are equal, the loader masks, and a mark makes readers refuse."""
    write(tmp_path / "in/a.parquet")
    s3.server.upload(tmp_path / "in", f"{s3.url}/in")
    stores = {}
    for root in (str(tmp_path), s3.url):
        store = stores[root] = f"{root}/out"
        tokenmill.prepare(f"{root}/in/a.parquet", out=store, **CALL)
        for to in ("nanogpt", "litdata"):
            tokenmill.export(store, to=to, workers=1)
        tokenmill.export(store, to="parquet", shuffle=3, with_columns="url", shard_tokens=300, workers=1)
        result = tokenmill.erase(store, rows=[("a.parquet", row) for row in SECRETS], request="r", workers=1)
        assert (result.documents, len(result.exports), result.unreached) == (4, 3, {})
        tokenmill.verify(store, workers=1)
    disk, bucket = (folder_at(store) for store in stores.values())
    parts = [f"parts/{name}" for name in disk.names("parts")] + [f"kept/{name}" for name in disk.names("kept")]
    for name in [*parts, "nanogpt/train.bin", "litdata/chunk-0-0.bin"]:
        assert disk.read(name) == bucket.read(name)
    shards = [name for name in disk.names("parquet") if name.endswith(".parquet")]
    rows = [
        [
            row
            for name in sorted(shards)
            for row in pq.read_table(pa.BufferReader(folder.buffer(f"parquet/{name}"))).to_pylist()
        ]
        for folder in (disk, bucket)
    ]
    assert [row | {"source": ""} for row in rows[0]] == [row | {"source": ""} for row in rows[1]]
    assert len(shards) > 2
    assert sorted(row["row"] for row in rows[1] if row["url"] is None) == sorted(SECRETS)
    (change,) = tokenmill.open(stores[s3.url]).run.history
    assert erased_documents(disk.root, change).equals(erased_documents(bucket.root, change))
    options: dict[str, Any] = {"sequence_tokens": 16, "batch_sequences": 4, "grain": 32}
    loaders = [tokenmill.loader(store, **options) for store in stores.values()]
    for step in range(len(loaders[0])):
        one, other = (loader[step]["labels"] for loader in loaders)
        assert np.array_equal(one == -100, other == -100)
    publish_mark(bucket, ErasingMark("the erasure r", "tokenmill erase", "r"))
    with pytest.raises(IncompleteStore, match="not finished"):
        tokenmill.open(bucket.root)
    remove_mark(bucket, "another")
    with pytest.raises(IncompleteStore, match="not finished"):
        tokenmill.open(bucket.root)
    remove_mark(bucket, "r")
    tokenmill.open(bucket.root)


def test_two_erasures_at_once_in_a_bucket(s3: Bucket, tmp_path: Path) -> None:
    """A bucket has no lock: one of two requests waits for the mark of the other, and finishes when it is repeated."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    tokenmill.export(store, to="nanogpt", workers=1)
    documents = [tokens.copy() for tokens in tokenmill.open(store)]
    commands = []
    for row in (17, 18):  # documents of one part
        (tmp_path / f"{row}.csv").write_text(f"a.parquet,{row}\n")
        commands.append(("erase", store, "--rows", tmp_path / f"{row}.csv", "--request", f"r{row}", "--workers", "1"))
    ended = [end(process) for process in [start(*command) for command in commands]]
    assert any(result.code == 0 for result in ended), ended
    assert all("is not finished" in result.err for result in ended if result.code), ended
    for command in commands:
        run(*command)
    for row, tokens in enumerate(tokenmill.open(store)):
        assert np.array_equal(tokens, documents[row]) == (row not in {17, 18})
    assert [change.request for change in tokenmill.open(store).run.history] in (["r17", "r18"], ["r18", "r17"])
    tokenmill.verify(store, workers=1)


def test_the_same_erasure_twice_at_once_in_a_bucket(s3: Bucket, tmp_path: Path) -> None:
    """Two machines run one command: both end, and the store has one change."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    (tmp_path / "rows.csv").write_text("a.parquet,17\n")
    command = ("erase", store, "--rows", tmp_path / "rows.csv", "--request", "r", "--workers", "1")
    ended = [end(process) for process in [start(*command) for _ in range(2)]]
    assert [result.code for result in ended] == [0, 0], ended
    assert len(tokenmill.open(store).run.history) == 1
    tokenmill.verify(store, workers=1)


@pytest.mark.parametrize(
    ("moment", "row"),
    [("find", 17), ("freeze_erasure", 17), ("mark_store", 17), ("find", 18), ("freeze_erasure", 18)],
)
def test_another_process_carries_out_the_same_request(
    moment: str, row: int, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process erases a row while this one finds, freezes, or marks row 17: its documents and its list stay."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    original = getattr(erase_module, moment)

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(erase_module, moment, original)
        tokenmill.erase(store, rows=[("a.parquet", row)], request="r", workers=1)
        return original(*arguments)

    monkeypatch.setattr(erase_module, moment, slow)
    expectation = nullcontext() if row == 17 else pytest.raises(JobChanged, match="has another selector")
    with expectation:
        assert tokenmill.erase(store, rows=[("a.parquet", 17)], request="r", workers=1).documents == 1
    assert [change.documents for change in tokenmill.open(store).run.history] == [1]
    deny = folder_at(store).read("erasures/r/deny.jsonl").decode()
    assert [json.loads(line)["row"] for line in deny.splitlines()] == [row]
    tokenmill.verify(store, workers=1)


def test_another_selector_is_frozen_before_the_documents_are_published(
    s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The documents of the process that loses do not replace those of the other."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    original = store_erasure.publish_file

    def slow(*arguments: Any) -> None:
        monkeypatch.setattr(store_erasure, "publish_file", original)
        assert arguments[2].startswith(DOCUMENTS_FILE.removesuffix(".parquet"))
        tokenmill.erase(store, rows=[("a.parquet", 18)], request="r", workers=1)
        original(*arguments)

    monkeypatch.setattr(store_erasure, "publish_file", slow)
    with pytest.raises(JobChanged, match="has another selector"):
        tokenmill.erase(store, rows=[("a.parquet", 17)], request="r", workers=1)
    assert [change.documents for change in tokenmill.open(store).run.history] == [1]
    tokenmill.verify(store, workers=1)
    assert tokenmill.erase(store, request="r", workers=1).documents == 1


@pytest.mark.parametrize(
    ("moment", "is_torn"), [("find", False), ("find", True), ("freeze_erasure", False), ("mark_store", False)]
)
def test_another_process_carries_out_another_request(
    moment: str, is_torn: bool, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another request changes the same part while this one finds (and reads half of a part), freezes, or marks."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    original = getattr(erase_module, moment)

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(erase_module, moment, original)
        tokenmill.erase(store, rows=[("a.parquet", 18)], request="other", workers=1)
        if is_torn:
            raise RunFailed("1 item failed", exit_code=CORRUPT)  # as a worker's CorruptStore arrives
        return original(*arguments)

    monkeypatch.setattr(erase_module, moment, slow)
    tokenmill.erase(store, rows=[("a.parquet", 17)], request="r", workers=1)
    assert [change.request for change in tokenmill.open(store).run.history] == ["other", "r"]
    tokenmill.verify(store, workers=1)


@pytest.mark.parametrize("where", ["bucket", "disk"])
def test_a_file_that_another_process_removes_is_read_as_missing(where: str, s3: Bucket, tmp_path: Path) -> None:
    """Between a test of existence and the read, another process could remove it: there is one request."""
    folder = folder_at(f"{s3.url}/out" if where == "bucket" else str(tmp_path / "out"))
    folder.create()
    publish_mark(folder, ErasingMark("the erasure r", "command", "r"))
    data = read_existing(folder, "erasing.json")
    assert data is not None
    assert read_existing(folder, "erasing.json", 5) == data[:5]
    remove_mark(folder, "r")
    assert read_existing(folder, "erasing.json") is None
    assert read_existing(folder, "erasing.json", 5) is None
    (tmp_path / "file").touch()
    assert read_existing(folder_at(str(tmp_path / "file")), "run.json") is None


@pytest.mark.parametrize("where", ["bucket", "disk"])
def test_a_part_that_is_replaced_while_it_is_read_is_noticed(where: str, s3: Bucket, tmp_path: Path) -> None:
    """The columns of the new part are at other places: read by the old header, they would be other rows and tokens."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out" if where == "bucket" else str(tmp_path / "out")
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    parts = [open_ranged(folder_at(store), unit) for unit in range(len(tokenmill.open(store).manifest))]
    (part,) = (part for part in parts if 17 in part.row)
    rows, tokens = part.row, part.read_tokens(0, part.summary.tokens)
    tokenmill.erase(store, rows=[("a.parquet", 17)], workers=1)
    if where == "disk":  # the file is gone, and its content is not
        assert np.array_equal(part.row, rows)
        assert np.array_equal(part.read_tokens(0, part.summary.tokens), tokens)
        return
    for read in (lambda: part.row, lambda: part.read_tokens(0, 5)):
        with pytest.raises(CorruptStore, match="replaced while it was read"):
            read()


@pytest.mark.parametrize("name", ["require_manifest", "load_existing"])
def test_another_request_is_carried_out_before_the_documents_are_looked_for(
    name: str, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The change that an erasure makes is numbered by the run of the parts that it looks at."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    original = getattr(erase_module, name)

    def slow(*arguments: Any) -> Any:
        monkeypatch.setattr(erase_module, name, original)
        tokenmill.erase(store, rows=[("a.parquet", 18)], request="other", workers=1)
        return original(*arguments)

    monkeypatch.setattr(erase_module, name, slow)
    assert tokenmill.erase(store, rows=[("a.parquet", 17)], request="r", workers=1).documents == 1
    assert [change.request for change in tokenmill.open(store).run.history] == ["other", "r"]
    tokenmill.verify(store, workers=1)


@pytest.mark.parametrize("to", ["nanogpt", "llmc"])
def test_another_store_of_an_export_in_a_bucket_erases_at_the_same_time(
    to: Any, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shards are planned again, because the other store has changed them after they were planned."""
    stores = []
    for name in ("a", "b"):
        write(tmp_path / name / "a.parquet")
        tokenmill.prepare(str(tmp_path / name / "a.parquet"), out=str(tmp_path / f"{name}-store"), **CALL)
        stores.append(str(tmp_path / f"{name}-store"))
    export = f"{s3.url}/joint"
    tokenmill.export(stores, to=to, out=export, workers=1)
    original = erase_export._changed_shards

    def slow(*arguments: Any) -> Any:
        planned = original(*arguments)
        monkeypatch.setattr(erase_export, "_changed_shards", original)
        assert tokenmill.erase(stores[1], rows=[("a.parquet", 41)], request="r", workers=1).unreached == {}
        return planned

    monkeypatch.setattr(erase_export, "_changed_shards", slow)
    result = tokenmill.erase(stores[0], rows=[("a.parquet", 17)], request="r", workers=1)
    assert (list(result.exports), result.unreached) == ([export], {})
    for directory in (*stores, export):
        tokenmill.verify(directory, workers=1)


def test_leftover_pieces_in_a_bucket_are_removed(s3: Bucket, tmp_path: Path) -> None:
    """Regions that a killed or slow exporter left beside the object."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    tokenmill.export(store, to="nanogpt", workers=1)
    folder = folder_at(store)
    secret = tokenmill.open(store)[17][:-1].astype("<u2").tobytes()
    with folder.publish("nanogpt/.train.bin.pieces/00000000000000000000") as file:
        file.write(folder.read("nanogpt/train.bin"))
    tokenmill.erase(store, rows=[("a.parquet", 17)], workers=1)
    assert folder.names("nanogpt/.train.bin.pieces") == []
    assert all(secret not in data for data in s3.server.objects(store).values())


def test_an_export_in_a_bucket_that_is_not_complete(s3: Bucket, tmp_path: Path) -> None:
    """A bucket has no lock: another process may be writing it. It is listed, and reached when it is complete."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    tokenmill.export(store, to="llmc", shard_tokens=500, val="none", workers=1)
    folder = folder_at(store)
    secret = tokenmill.open(store)[17][:-1].astype("<u2").tobytes()
    folder.discard("llmc/.tokenmill/manifest.parquet")
    erased = tokenmill.erase(store, rows=[("a.parquet", 17)], request="r", workers=1)
    assert erased.removed_exports == []
    assert "is not complete" in erased.unreached[f"{store}/llmc"]
    tokenmill.export(store, to="llmc", shard_tokens=500, val="none", workers=1)
    with pytest.raises(CorruptStore):
        tokenmill.verify(store, workers=1)
    erased = tokenmill.erase(store, request="r", workers=1)
    assert (list(erased.exports), erased.unreached) == ([f"{store}/llmc"], {})
    assert all(secret not in data for data in s3.server.objects(store).values())
    tokenmill.verify(store, workers=1)


def test_an_export_beside_an_erasure_in_a_bucket(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The export ends with exit code 75, and does not call the changed part damaged. All its shards stay."""
    write(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    start = Exporter.announce

    def erase_first(exporter: Exporter) -> None:
        start(exporter)
        tokenmill.erase(store, rows=[("a.parquet", 17)], workers=1)

    with monkeypatch.context() as patch:
        patch.setattr(Exporter, "announce", erase_first)
        with pytest.raises(StoreError, match="was changed while it was exported") as failed:
            tokenmill.export(store, to="llmc", shard_tokens=500, val="none", workers=1)
    assert failed.value.exit_code == TRY_AGAIN
    tokenmill.export(store, to="llmc", shard_tokens=500, val="none", workers=1)
    assert tokenmill.erase(store, rows=[("a.parquet", 17)], workers=1).unreached == {}
    tokenmill.verify(store, workers=1)
