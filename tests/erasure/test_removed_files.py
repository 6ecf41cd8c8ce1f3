"""Parts of a store in a bucket while an erasure removes them, and files that go between two looks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tokenmill
from tests.support.erasing import CALL, write_source
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import StoreError
from tokenmill.storage import folder_at, read_existing
from tokenmill.store.part_ranges import open_ranged


@pytest.mark.parametrize("where", ["bucket", "disk"])
def test_a_file_that_another_process_removes_is_read_as_missing(where: str, s3: Bucket, tmp_path: Path) -> None:
    """Between a test of existence and the read, another process could remove it: there is one request."""
    folder = folder_at(f"{s3.url}/out" if where == "bucket" else str(tmp_path / "out"))
    folder.create("changes")
    with folder.publish("changes/00000001.json") as file:
        file.write(b"a claim")
    assert read_existing(folder, "changes/00000001.json") == b"a claim"
    assert read_existing(folder, "changes/00000001.json", 5) == b"a cla"
    folder.discard("changes/00000001.json")
    assert read_existing(folder, "changes/00000001.json") is None
    assert read_existing(folder, "changes/00000001.json", 5) is None
    (tmp_path / "file").touch()
    assert read_existing(folder_at(str(tmp_path / "file")), "run.json") is None


@pytest.mark.parametrize("where", ["bucket", "disk"])
def test_a_part_that_goes_while_it_is_read(where: str, s3: Bucket, tmp_path: Path) -> None:
    """Its columns stay readable on a disk. In a bucket the object is gone, and nothing else is read in its place."""
    write_source(tmp_path / "in/a.parquet")
    store = f"{s3.url}/out" if where == "bucket" else str(tmp_path / "out")
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=store, **CALL)
    parts = [open_ranged(folder_at(store), unit) for unit in range(len(tokenmill.open(store).manifest))]
    (part,) = (part for part in parts if 17 in part.row)
    rows, tokens = part.row, part.read_tokens(0, part.summary.tokens)
    tokenmill.erase(store, rows=[("a.parquet", 17)], workers=1)
    if where == "disk":
        assert np.array_equal(part.row, rows)
        assert np.array_equal(part.read_tokens(0, part.summary.tokens), tokens)
        return
    for read in (lambda: part.row, lambda: part.read_tokens(0, 5)):
        with pytest.raises(StoreError):
            read()
