"""Erasure after a restore: files of a store or an export are lost, damaged, or come back from a copy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
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


def check_refused(tmp_path: Path, advice: str) -> None:
    """All commands say that erased documents may be in the store again, and what to run."""
    out = str(tmp_path / "out")
    calls: list[Callable[[], object]] = [
        lambda: Store(out),
        lambda: tokenmill.export(out, to="nanogpt", workers=1),
        lambda: tokenmill.verify(out, workers=1),
        lambda: tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=out, keep="id,url", **CALL),
        lambda: erase(out, 41, request="t"),
    ]
    for call in calls:
        with pytest.raises(CorruptStore, match=f"(?s)erased may be in .* again.*{advice}"):
            call()


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


@pytest.mark.parametrize("lost", [(), ("manifest.parquet",)])
def test_a_part_names_an_erasure_that_the_run_does_not_list(tmp_path: Path, lost: tuple[str, ...]) -> None:
    """The files of the erasure are lost, too. `prepare` does not take the parts for documents of end tokens."""
    out, _ = make(tmp_path)
    erase(out, request="r")
    (tmp_path / "out/run.json").unlink()
    for name in ("erasures.jsonl", *lost):
        (tmp_path / "out" / name).unlink()
    shutil.rmtree(tmp_path / "out/erasures")
    with pytest.raises(CorruptStore, match=r"names an erasure that run\.json does not list"):
        tokenmill.prepare(str(tmp_path / "in/a.parquet"), out=out, keep="id,url", **CALL)


@pytest.mark.parametrize("known", [0, 1])
def test_an_older_run_is_restored(tmp_path: Path, known: int) -> None:
    """Only `run.json` is of before the erasures. The same commands list them in it again; another order is refused."""
    out, _ = make(tmp_path)
    kept = {0: (tmp_path / "out/run.json").read_bytes()}
    for number, (row, name) in enumerate(zip((SECRET, 18), "rs", strict=True), 1):
        erase(out, row, request=name)
        kept[number] = (tmp_path / "out/run.json").read_bytes()
    expected = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (tmp_path / "out/run.json").write_bytes(kept[known])
    for call in (lambda: Store(out), lambda: erase(out, 41, request="t"), lambda: tokenmill.verify(out, workers=1)):
        with pytest.raises(CorruptStore, match="erased may be in"):
            call()
    if not known:
        with pytest.raises(CorruptStore, match="--request r; tokenmill erase"):
            tokenmill.erase(out, request="s", workers=1)
    for name in "rs"[known:]:
        assert tokenmill.erase(out, request=name, workers=1).documents == 1
    assert (tmp_path / "out/run.json").read_bytes() == kept[2]
    assert all(path.read_bytes() == content for path, content in expected.items() if path.suffix != ".jsonl")
    tokenmill.verify(out, workers=1)


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_copy_over_a_store_with_erased_documents(tmp_path: Path, is_outside: bool) -> None:
    """All commands name the requests, and the same commands erase again, in the exports of the copy, too."""
    out, secret = make(tmp_path)
    far = tmp_path / "far" if is_outside else tmp_path / "out/llmc"
    tokenmill.export(out, to="llmc", out=str(far), workers=1)
    shutil.copytree(out, tmp_path / "copy")
    erase(out, request="r")
    erase(out, 18, request="s")
    shutil.copytree(tmp_path / "copy", out, dirs_exist_ok=True)
    assert files_with(tmp_path / "out", secret)
    check_refused(tmp_path, "--request r; tokenmill erase")
    shutil.rmtree(tmp_path / "copy")
    for name in ("r", "s"):
        assert tokenmill.erase(out, request=name, workers=1).documents == 1
    assert not files_with(tmp_path, secret)
    assert [change.request for change in Store(out).run.history] == ["r", "s"]
    for directory in (out, str(far)):
        tokenmill.verify(directory, workers=1)


def test_a_copy_of_between_two_erasures(tmp_path: Path) -> None:
    """The log of the copy does not list the second request. The records of the request itself do."""
    out, secret = make(tmp_path)
    tokenmill.export(out, to="llmc", workers=1)
    erase(out, 18, request="r")
    shutil.copytree(out, tmp_path / "copy")
    erase(out, request="s")
    shutil.copytree(tmp_path / "copy", out, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "copy")
    with pytest.raises(CorruptStore, match="--request s"):
        tokenmill.verify(out, workers=1)
    assert tokenmill.erase(out, request="s", workers=1).documents == 1
    assert not files_with(tmp_path, secret)
    tokenmill.verify(out, workers=1)


@pytest.mark.parametrize("requests", [1, 2])
def test_a_restore_that_ends_before_the_run(tmp_path: Path, requests: int) -> None:
    """Parts and manifest are of before the erasures, `run.json` is not. Readers refuse; the erasures begin again."""
    out, secret = make(tmp_path)
    tokenmill.export(out, to="llmc", workers=1)
    shutil.copytree(out, tmp_path / "copy")
    for row, name in list(zip((SECRET, 18), "rs", strict=True))[:requests]:
        erase(out, row, request=name)
    (tmp_path / "copy/run.json").unlink()
    shutil.copytree(tmp_path / "copy", out, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "copy")
    check_refused(tmp_path, "--request r")
    if requests == 2:
        with pytest.raises(CorruptStore, match="--request r; tokenmill erase"):
            tokenmill.erase(out, request="s", workers=1)
    for name in "rs"[:requests]:
        assert tokenmill.erase(out, request=name, workers=1).documents == 1
    assert not files_with(tmp_path, secret)
    assert Store(out).columns("id", start=SECRET, stop=SECRET + 1)["id"].to_pylist() == [None]
    tokenmill.verify(out, workers=1)


@pytest.mark.parametrize("restored", ["parts", "kept"])
def test_some_files_of_a_store_are_restored(tmp_path: Path, restored: str) -> None:
    """`verify` fails, and the same erasure begins again, also with a later erasure in the same part."""
    out, secret = make(tmp_path)
    shutil.copytree(Path(out) / restored, tmp_path / "copy")
    erase(out, request="r")
    (file,) = (path for path in (Path(out) / restored).iterdir() if path.read_bytes() != _copied(tmp_path, path))
    shutil.copyfile(tmp_path / "copy" / file.name, file)
    with pytest.raises(CorruptStore):
        tokenmill.verify(out, workers=1)
    erase(out, request="r")
    tokenmill.verify(out, workers=1)
    erase(out, SECRET + 1, request="s")
    if restored == "kept":
        shutil.copyfile(tmp_path / "copy" / file.name, file)
    for name in "rs":
        tokenmill.erase(out, request=name, workers=1)
    shutil.rmtree(tmp_path / "copy")
    assert not files_with(Path(out), secret)
    assert Store(out).columns("id", start=SECRET, stop=SECRET + 1)["id"].to_pylist() == [None]
    tokenmill.verify(out, workers=1)


def _copied(tmp_path: Path, path: Path) -> bytes:
    return (tmp_path / "copy" / path.name).read_bytes()


def test_an_erasure_in_a_copy_leaves_the_exports_of_the_original(tmp_path: Path) -> None:
    """The copy knows the export by its absolute path. When the original is gone, the copy is the store."""
    out, secret = make(tmp_path)
    far, copy = tmp_path / "far", str(tmp_path / "copy")
    tokenmill.export(out, to="llmc", out=str(far), workers=1)
    shutil.copytree(out, copy)
    result = erase(copy, request="r")
    assert result.exports == {}
    assert f"an export of {out}" in result.unreached[str(far)]
    assert files_with(far, secret)
    for directory in (out, copy, str(far)):
        tokenmill.verify(directory, workers=1)
    shutil.rmtree(out)
    assert list(tokenmill.erase(copy, request="r", workers=1).exports) == [str(far)]
    assert not files_with(tmp_path, secret)


@pytest.mark.parametrize("is_named", [False, True])
def test_only_the_files_of_an_export_are_restored(tmp_path: Path, is_named: bool) -> None:
    """`cp copy/* export/` leaves `.tokenmill` as it is. The export is listed as not reached until it is made again."""
    out, secret = make(tmp_path)
    far = tmp_path / "far"
    tokenmill.export(out, to="llmc", out=str(far), workers=1)
    copies = {path: path.read_bytes() for path in far.glob("*.bin")}
    erase(out, request="r")
    for path, content in copies.items():
        path.write_bytes(content)
    result = erase(out, request="r", export=str(far) if is_named else ())
    assert list(result.unreached) == [str(far)]
    tokenmill.export(out, to="llmc", out=str(far), workers=1)
    assert not files_with(far, secret)
    assert erase(out, request="r").unreached == {}
    tokenmill.verify(str(far), workers=1)


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


@pytest.mark.parametrize("restored", ["quarantine.jsonl", "quarantine", "both"])
def test_rows_in_quarantine_that_were_erased_with_documents(tmp_path: Path, restored: str) -> None:
    """A copy brings their text back, under the name of the part of before. The same erasure removes it."""
    source, out = tmp_path / "a.jsonl", tmp_path / "out"
    lines = [{"text": f"document {row}", "id": row % 5} for row in range(20)] + [{"text": 7, "id": 3, "name": "SECRET"}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    call: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": 1199, "workers": 1, "max_bad": 0.5}
    tokenmill.prepare(str(source), out=str(out), quarantine_text=True, keep="id", **call)
    shutil.copytree(out, tmp_path / "copy")
    request: dict[str, Any] = {"column": "id", "values": ["3"], "request": "r", "workers": 1}
    result = tokenmill.erase(out, **request)
    assert (result.documents, result.quarantined) == (4, 1)
    if restored != "quarantine":
        shutil.copyfile(tmp_path / "copy/quarantine.jsonl", out / "quarantine.jsonl")
    if restored != "quarantine.jsonl":
        shutil.copytree(tmp_path / "copy/quarantine", out / "quarantine", dirs_exist_ok=True)
    assert any(b"SECRET" in path.read_bytes() for path in out.rglob("*.jsonl"))
    with pytest.raises(CorruptStore):
        tokenmill.verify(out, workers=1)
    tokenmill.erase(out, **request)
    assert not any(b"SECRET" in path.read_bytes() for path in out.rglob("*.jsonl"))
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
