"""Two exports to one directory of a bucket at the same time: one waits for the other, and finds its files."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tokenmill
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tests.support.documents import DOCUMENTS
from tests.support.killing import wait_until
from tests.support.servers.seaweed import Bucket
from tokenmill.executors.progress import Reporter, Silent
from tokenmill.exports import sorted_runs
from tokenmill.results import ExportResult
from tokenmill.storage import folder_at
from tokenmill.storage.objects import lease
from tokenmill.storage.run_once import EXPORTING


def write(tmp_path: Path) -> str:
    return write_parquet(tmp_path / "a.parquet", [*DOCUMENTS] * 3, row_group_size=20)


class Watched(Silent):
    """Notes that an export waits for another one."""

    def __init__(self) -> None:
        self.is_waiting = threading.Event()

    def pending(self, what: str) -> None:
        """Take note of a wait."""
        if "another process that exports" in what:
            self.is_waiting.set()


def test_an_export_that_begins_during_another_one(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one waits, and finds all files; it does not remove the sorted runs that the first one reads."""
    url, watched = f"{s3.url}/run", Watched()
    tokenmill.prepare(write(tmp_path), tokenizer=SMALL_TIKTOKEN, eot=1199, out=url, workers=1)
    results: dict[str, ExportResult] = {}

    def export(name: str, reporter: Reporter) -> None:
        results[name] = tokenmill.export(url, to="llmc", shuffle=7, val=0.2, workers=1, reporter=reporter)

    second = threading.Thread(target=export, args=["second", watched])
    counts = sorted_runs.counts

    def counts_meanwhile(*arguments: Any) -> Any:
        monkeypatch.setattr(sorted_runs, "counts", counts)
        second.start()
        assert wait_until(lambda: watched.is_waiting.is_set() or not second.is_alive())
        return counts(*arguments)

    monkeypatch.setattr(sorted_runs, "counts", counts_meanwhile)
    export("first", Silent())
    second.join()
    assert results["first"].shards_done_now == 2
    assert results["second"].shards_done_now == 0


def test_an_export_waits_for_another_one(s3: Bucket, tmp_path: Path) -> None:
    """While another process holds the directory, nothing is written there."""
    url = f"{s3.url}/run"
    tokenmill.prepare(write(tmp_path), tokenizer=SMALL_TIKTOKEN, eot=1199, out=url, workers=1)
    other = folder_at(f"{url}/llmc").locks.lease(EXPORTING)
    assert other.take()
    written: list[list[str]] = []

    def release() -> None:
        written.append([name for name in s3.server.objects(f"{url}/llmc") if name.endswith(".bin")])
        other.release()

    timer = threading.Timer(0.4, release)
    timer.start()
    result = tokenmill.export(url, to="llmc", val="none", shuffle=1, workers=1)
    timer.join()
    assert written == [[]]
    assert result.shards_done_now == 1
    assert tokenmill.export(url, to="llmc", val="none", shuffle=1, workers=1).shards_done_now == 0


def test_a_holder_that_has_ended_is_replaced_at_once(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed export on the same machine does not make the next one wait. Of another machine nothing is known."""
    monkeypatch.setattr(lease, "SETTLE_SECONDS", 0.0)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder = folder_at(s3.url)
    for machine, pid, is_taken in (
        (lease._machine(), ended.pid, True),
        (lease._machine(), os.getpid(), False),
        ("0" * 16, ended.pid, False),
        ("-", ended.pid, False),
    ):
        folder.discard(".x.claim")
        assert folder.publish_if_absent(".x.claim", pa.py_buffer(f"host {machine} {pid} abc 0\n".encode()))
        mine = folder.locks.lease("x")
        assert mine.take() == is_taken
        mine.release()
    for garbage in (b"\xff\xfe", b"a b c", b" " * 900):
        folder.discard(".x.claim")
        assert folder.publish_if_absent(".x.claim", pa.py_buffer(garbage))
        assert not folder.locks.lease("x").take()
