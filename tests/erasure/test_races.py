"""Several processes erase in one store at once, on a disk and in a bucket. One of them goes on where another pauses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support.command import run
from tests.support.erasing import CALL, write_source
from tests.support.remote_runs import end, start
from tests.support.servers.seaweed import Bucket
from tokenmill.erasure import erase as loop
from tokenmill.erasure import reconcile
from tokenmill.errors import CORRUPT, TRY_AGAIN, CorruptStore, JobChanged, RunFailed
from tokenmill.exports import converge_shard
from tokenmill.storage import folder_at
from tokenmill.storage.local.files import DiskLocks
from tokenmill.store.chain import read_head
from tokenmill.store.job import require_run
from tokenmill.store.layout import hashed_name
from tokenmill.store.reader import Store


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that each test copies."""
    folder = tmp_path_factory.mktemp("prepared")
    tokenmill.prepare(write_source(folder / "in/a.parquet"), out=folder / "out", keep="url", **CALL)
    return folder / "out"


@pytest.fixture(params=["disk", "bucket"])
def store(request: pytest.FixtureRequest, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store on a disk without locks, as on some network file systems, or in a bucket."""
    monkeypatch.setattr(DiskLocks, "exclusive", lambda *_: nullcontext())
    if request.param == "disk":
        return str(shutil.copytree(prepared, tmp_path / "out"))
    bucket: Bucket = request.getfixturevalue("s3")
    bucket.server.upload(prepared, f"{bucket.url}/out")
    folder, run_ = folder_at(f"{bucket.url}/out"), require_run(folder_at(str(prepared)))
    for name, content in (("plan.parquet", run_.plan_blake3), ("sources.parquet", run_.sources_blake3)):
        with folder.publish(hashed_name(name, content)) as file:  # their names in a bucket
            file.write((prepared / name).read_bytes())
    return f"{bucket.url}/out"


def erase(store: str, row: int, request: str) -> Any:
    return tokenmill.erase(store, rows=[("a.parquet", row)], request=request, workers=1)


def paused(patch: pytest.MonkeyPatch, owner: Any, name: str, meanwhile: Callable[[], object]) -> None:
    """Let something else happen before the first call of a function."""
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        patch.setattr(owner, name, original)
        meanwhile()
        return original(*arguments, **options)

    patch.setattr(owner, name, call)


def check(store: str, documents: list[np.ndarray], requests: list[str], *rows: int) -> None:
    """Exactly these documents are erased, by these requests."""
    opened = Store(store)
    assert [change.request for change in opened.collection.members[0].head.history] == requests
    for row, tokens in enumerate(opened):
        assert np.array_equal(tokens, documents[row]) == (row not in rows)
    tokenmill.verify(store, workers=1)


MOMENTS = [
    (loop, "find"),
    (loop, "publish_claim"),
    (loop, "reconcile"),
    (reconcile, "MakeFiles"),
    (reconcile.ChangedStore, "finish"),
    (reconcile, "publish_new"),
]


@pytest.mark.parametrize(("owner", "moment"), MOMENTS, ids=[name for _, name in MOMENTS])
@pytest.mark.parametrize("request_", ["same", "other"])
def test_another_process_goes_on(
    store: str, monkeypatch: pytest.MonkeyPatch, owner: Any, moment: str, request_: str
) -> None:
    """A process pauses at some moment while another carries out the same request, or another one; then it wakes."""
    documents = [tokens.copy() for tokens in Store(store)]
    row = 17 if request_ == "same" else 18
    paused(monkeypatch, owner, moment, lambda: erase(store, row, request_))
    assert erase(store, 17, "same").documents == 1
    if request_ == "other":
        erase(store, 18, "other")  # what the process that woke up late has left is removed
        is_first = moment in {"find", "publish_claim"}
        return check(store, documents, ["other", "same"] if is_first else ["same", "other"], 17, 18)
    return check(store, documents, ["same"], 17)


def test_a_process_that_wakes_after_other_changes(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has listed the files for its change. It removes and makes no file of a later one that is not made again."""
    documents = [tokens.copy() for tokens in Store(store)]

    def meanwhile() -> None:
        for number in (18, 19, 41):
            erase(store, number, f"r{number}")

    paused(monkeypatch, reconcile, "MakeFiles", meanwhile)
    erase(store, 17, "r17")
    assert Store(store).document(18).erased == "r18"
    erase(store, 41, "r41")
    check(store, documents, ["r17", "r18", "r19", "r41"], 17, 18, 19, 41)


def test_one_name_for_two_selectors(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim that was created first counts, and the other process is refused. Its tables do not replace any."""
    documents = [tokens.copy() for tokens in Store(store)]
    paused(monkeypatch, loop, "publish_claim", lambda: erase(store, 18, "r"))
    with pytest.raises(JobChanged, match="has another selector"):
        erase(store, 17, "r")
    check(store, documents, ["r"], 18)


def test_a_part_goes_while_it_is_searched(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The documents are looked for again. An error that has no such reason is raised."""
    documents = [tokens.copy() for tokens in Store(store)]

    def torn() -> None:
        erase(store, 18, "other")
        raise RunFailed("1 item failed", exit_code=CORRUPT)  # as a worker's CorruptStore arrives

    paused(monkeypatch, loop, "find", torn)
    erase(store, 17, "r")
    check(store, documents, ["other", "r"], 17, 18)

    def damaged() -> None:
        raise RunFailed("1 item failed", exit_code=CORRUPT)

    paused(monkeypatch, loop, "find", damaged)
    with pytest.raises(RunFailed):
        erase(store, 41, "third")


def test_a_file_of_an_export_is_replaced_while_it_is_read(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read again, as often as another version is found. What is wrong twice is damaged."""
    tokenmill.export(store, to="nanogpt", workers=1)
    original, versions = converge_shard._is_as_written, iter("abc")

    def torn() -> None:
        raise CorruptStore("parts of two files")

    def replaced(*arguments: Any) -> bool:
        for version in versions:
            raise CorruptStore("the file was replaced while it was read", version, exit_code=TRY_AGAIN)
        return original(*arguments)

    monkeypatch.setattr(converge_shard, "_is_as_written", replaced)
    assert erase(store, 17, "r").unreached == {}
    monkeypatch.setattr(converge_shard, "_is_as_written", lambda *_: torn())
    assert "parts of two files" in str(erase(store, 18, "other").unreached)


@pytest.mark.parametrize("rows", [(17, 18), (17, 17)])
def test_two_commands_at_once_in_a_bucket(s3: Bucket, tmp_path: Path, rows: tuple[int, int]) -> None:
    """Real processes: both end well, and both requests are done, or the one that both have."""
    write_source(tmp_path / "in/a.parquet")
    out = f"{s3.url}/out"
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=out, **CALL)
    tokenmill.export(out, to="nanogpt", workers=1)
    documents = [tokens.copy() for tokens in tokenmill.open(out)]
    commands = []
    for row in rows:
        (tmp_path / f"{row}.csv").write_text(f"a.parquet,{row}\n")
        commands.append(("erase", out, "--rows", tmp_path / f"{row}.csv", "--request", f"r{row}", "--workers", "1"))
    ended = [end(process) for process in [start(*command) for command in commands]]
    assert {result.code for result in ended} <= {0, 75}, [result.out + result.err for result in ended]
    for command in commands:
        run(*command)
    requests = [change.request for change in read_head(tokenmill.open(out).collection.members[0].folder).history]
    assert sorted(requests) == sorted({f"r{row}" for row in rows})
    check(out, documents, requests, *rows)
