"""Erasure after a restore: files of a store or an export are lost, damaged, or come back from a copy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.api.test_erase import CALL, files_with, write
from tests.support.corpora import SMALL_TIKTOKEN
from tokenmill.errors import CorruptStore, StoreError
from tokenmill.exports.job import PLAN
from tokenmill.store.reader import Store

SECRET = 17


def make(tmp_path: Path) -> tuple[str, np.ndarray]:
    """A store with kept columns, and the tokens of its secret document."""
    source, out = write(tmp_path / "in/a.parquet"), str(tmp_path / "out")
    tokenmill.prepare(source, out=out, keep="id,url", **CALL)
    return out, Store(out)[SECRET][:-1].copy()


def erase(store: str, row: int = SECRET, **options: Any) -> Any:
    return tokenmill.erase(store, rows=[("a.parquet", row)], workers=1, **options)


def test_a_lost_run_of_a_store_with_erased_documents(tmp_path: Path) -> None:
    """`prepare` does not adopt the parts: it would forget what was erased."""
    out, _ = make(tmp_path)
    erase(out, request="r")
    run = (tmp_path / "out/run.json").read_bytes()
    (tmp_path / "out/run.json").unlink()
    with pytest.raises(StoreError, match=r"run\.json of .* would have to be made again") as refused:
        tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=out, keep="id,url", **CALL)
    assert "requests     r" in refused.value.details
    (tmp_path / "out/run.json").write_bytes(run)
    tokenmill.verify(out, workers=1)


def test_a_part_names_an_erasure_that_the_run_does_not_list(tmp_path: Path) -> None:
    """The files of the erasure are lost, too. Readers do not end in an IndexError."""
    out, _ = make(tmp_path)
    erase(out, request="r")
    (tmp_path / "out/run.json").unlink()
    for name in ("erasures.jsonl", "manifest.parquet"):
        (tmp_path / "out" / name).unlink()
    shutil.rmtree(tmp_path / "out/erasures")
    tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=out, keep="id,url", **CALL)
    with pytest.raises(CorruptStore, match=r"names an erasure that run\.json does not list"):
        Store(out).document(SECRET)


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_copy_over_a_store_with_erased_documents(tmp_path: Path, is_outside: bool) -> None:
    """`verify` names the request, and the same command erases again, in the exports of the copy, too."""
    out, secret = make(tmp_path)
    far = tmp_path / "far" if is_outside else tmp_path / "out/llmc"
    tokenmill.export(out, to="llmc", out=str(far), workers=1)
    shutil.copytree(out, tmp_path / "copy")
    erase(out, request="r")
    erase(out, 18, request="s")
    shutil.copytree(tmp_path / "copy", out, dirs_exist_ok=True)
    assert files_with(tmp_path / "out", secret)
    with pytest.raises(CorruptStore) as found:
        tokenmill.verify(out, workers=1)
    assert "--request r; tokenmill erase" in str(found.value)
    shutil.rmtree(tmp_path / "copy")
    for name in ("r", "s"):
        assert tokenmill.erase(out, request=name, workers=1).documents == 1
    assert not files_with(tmp_path, secret)
    assert [change.request for change in Store(out).run.history] == ["r", "s"]
    for directory in (out, str(far)):
        tokenmill.verify(directory, workers=1)


@pytest.mark.parametrize("how", ["same", "named", "named by another request"])
def test_an_export_that_is_restored_from_a_copy(tmp_path: Path, how: str) -> None:
    """The same command, or `--export`, erases the documents of all requests in it again."""
    out, secret = make(tmp_path)
    second = Store(out)[18][:-1].copy()
    far = str(tmp_path / "far")
    tokenmill.export(out, to="llmc", out=far, workers=1)
    shutil.copytree(far, tmp_path / "copy")
    erase(out, request="r")
    erase(out, 18, request="s")
    shutil.rmtree(far)
    (tmp_path / "copy").rename(far)
    assert files_with(tmp_path / "far", secret)
    if how == "named by another request":
        erase(out, 41, request="t", export=far)
    else:
        erase(out, 18, request="s", **({} if how == "same" else {"export": far}))
    assert not files_with(tmp_path / "far", secret)
    assert not files_with(tmp_path / "far", second)
    tokenmill.verify(far, workers=1)
    result = erase(out, 18, request="s")
    assert (list(result.exports), result.unreached, result.retried) == ([far], {}, {})


def test_rows_in_quarantine_do_not_come_back(tmp_path: Path) -> None:
    """No document is erased with them, so no part has changed."""
    source, out = tmp_path / "a.jsonl", str(tmp_path / "out")
    lines = [{"text": f"document {row}", "id": row} for row in range(20)]
    source.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"text": 7, "id": 900, "name": "SECRET"}]))
    call: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1, "max_bad": 0.5}
    tokenmill.prepare(str(source), out=out, quarantine_text=True, **call)
    before = {path: path.read_bytes() for path in Path(out).rglob("*.jsonl") if b"SECRET" in path.read_bytes()}
    assert before
    request: dict[str, Any] = {"column": "id", "values": ["900"], "request": "r", "workers": 1}
    assert tokenmill.erase(out, **request).quarantined == 1
    tokenmill.verify(out, workers=1)
    with pytest.raises(StoreError, match="would have to be made again"):
        tokenmill.prepare(str(source), out=out, quarantine_text=True, retry_quarantine=True, **call)
    for path, content in before.items():
        path.write_bytes(content)
    with pytest.raises(CorruptStore, match="erased rows in quarantine have their text"):
        tokenmill.verify(out, workers=1)
    tokenmill.erase(out, **request)
    assert not any(b"SECRET" in path.read_bytes() for path in before)
    tokenmill.verify(out, workers=1)


def test_an_incomplete_export_without_its_plan(tmp_path: Path) -> None:
    """Its files are not known, so it is not reported as removed."""
    out, secret = make(tmp_path)
    far = tmp_path / "far"
    tokenmill.export(out, to="llmc", out=str(far), workers=1)
    (far / PLAN).unlink()
    (far / ".tokenmill/manifest.parquet").unlink()
    result = erase(out, request="r")
    assert (result.removed_exports, list(result.unreached)) == ([], [str(far)])
    assert files_with(far, secret)
    shutil.rmtree(far)
    tokenmill.verify(out, workers=1)


@pytest.mark.parametrize("harm", ["missing", "flipped"])
def test_a_damaged_export_does_not_block_the_store(tmp_path: Path, harm: str) -> None:
    """It is listed with the reason. After it was made again, the next erasure finds nothing to do in it."""
    out, secret = make(tmp_path)
    tokenmill.export(out, to="nanogpt", val="none", workers=1)
    file = tmp_path / "out/nanogpt/train.bin"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    if harm == "missing":
        file.unlink()
    else:
        file.write_bytes(content)
    result = erase(out, request="r")
    assert list(result.unreached) == [f"{out}/nanogpt"]
    Store(out)
    shutil.rmtree(tmp_path / "out/nanogpt")
    tokenmill.export(out, to="nanogpt", val="none", workers=1)
    assert erase(out, request="r").unreached == {}
    assert not files_with(tmp_path / "out", secret)
    tokenmill.verify(out, workers=1)
