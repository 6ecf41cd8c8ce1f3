"""Erasure in exports of several stores, elsewhere, incomplete or out of reach; two requests; memory; quarantine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.api.test_erase import END, ROWS, SECRETS, files_with, write
from tests.support.corpora import SMALL_TIKTOKEN
from tokenmill.api import erase as command
from tokenmill.api.erase import _Erasure
from tokenmill.errors import IncompleteStore, UsageError
from tokenmill.store.erasing import ERASING
from tokenmill.store.reader import Store

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "unit_bytes": 900, "workers": 1}


def make(tmp_path: Path, name: str = "out", **options: Any) -> str:
    tokenmill.prepare(write(tmp_path / f"in/{name}/a.parquet"), out=tmp_path / name, **{**CALL, **options})
    return str(tmp_path / name)


def erase(store: str, rows: tuple[int, ...] = SECRETS, **options: Any) -> Any:
    return tokenmill.erase(store, rows=[("a.parquet", row) for row in rows], **options)


@pytest.mark.parametrize("shuffle", [None, 7])
def test_an_export_of_two_stores_outside_of_both(tmp_path: Path, shuffle: int | None) -> None:
    """Each store erases its own documents, in either order; the other's stay."""
    stores = [make(tmp_path, name) for name in ("a", "b")]
    documents = [tokens.copy() for tokens in Store(stores[1])]
    out = str(tmp_path / "elsewhere")
    tokenmill.export(stores, to="llmc", out=out, shuffle=shuffle, val=0.2, shard_tokens=400)
    before = {path: path.read_bytes() for path in sorted(Path(out).glob("*.bin"))}
    shards = erase(stores[1], (3, 41), request="b").exports
    assert shards == {out: sum(path.read_bytes() != content for path, content in before.items())}
    tokenmill.verify(out)
    assert out in erase(stores[0], (17,), request="a").exports
    tokenmill.verify(out)
    tokenmill.verify(stores)
    # Both stores have the same documents: of 3 and 41 one copy is left, of 17 too. Shards follow each other.
    old = b"".join(content[1024:] for content in before.values())
    new = b"".join(path.read_bytes()[1024:] for path in before)
    assert len(old) == len(new)
    for row in (3, 41, 17):
        whole = documents[row][:-1].astype("<u2").tobytes()
        assert (old.count(whole), new.count(whole)) == (2, 1)


@pytest.mark.parametrize("to", ["nanogpt", "litdata", "parquet"])
def test_an_incomplete_export_is_removed(tmp_path: Path, to: str) -> None:
    """Its files, temporary files included, are gone, and the same command exports again without the documents."""
    out = make(tmp_path)
    documents = [tokens.copy() for tokens in Store(out)]
    tokenmill.export(out, to=to)
    export = tmp_path / "out" / to
    (export / ".tokenmill/manifest.parquet").unlink()
    if to == "nanogpt":
        (export / "train.bin").rename(export / ".train.bin.unsealed")
    result = erase(out)
    assert result.removed_exports == [str(export)]
    assert all(not files_with(tmp_path / "out", documents[row][:-1]) for row in SECRETS)
    again = tokenmill.export(out, to=to)
    assert sum(split.documents for split in again.splits.values()) == ROWS - 4
    tokenmill.verify(out)


def test_leftover_regions_of_a_complete_export_are_removed(tmp_path: Path) -> None:
    """A file under its temporary name holds the tokens, although the export is complete."""
    out = make(tmp_path)
    secret = Store(out)[17][:-1].copy()
    tokenmill.export(out, to="nanogpt")
    shutil.copyfile(tmp_path / "out/nanogpt/train.bin", tmp_path / "out/nanogpt/.train.bin.unsealed")
    erase(out)
    assert not files_with(tmp_path / "out", secret)


def test_a_named_export_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that finishes a killed erasure does not name the export, and erases in it."""
    out = make(tmp_path)
    secret = Store(out)[17][:-1].copy()
    tokenmill.export(out, to="llmc")
    (tmp_path / "out/llmc").rename(tmp_path / "moved")
    with monkeypatch.context() as patch:
        patch.setattr(_Erasure, "_finish", _killed)
        with pytest.raises(KeyboardInterrupt):
            erase(out, (17,), request="r", export=tmp_path / "moved")
    with pytest.raises(IncompleteStore):
        Store(out)
    result = tokenmill.erase(out, request="r")
    assert list(result.exports) == [str(tmp_path / "moved")]
    assert not files_with(tmp_path, secret)


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def test_memory_bounds_what_a_worker_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that cannot hold the copies of the largest part is refused before anything changes."""
    out = make(tmp_path)
    digest = Store(out).digest
    with monkeypatch.context() as patch:
        patch.setattr(command, "COPIES", 1 << 30)
        with pytest.raises(UsageError, match="less than one worker needs"):
            erase(out, memory="2GB")
    assert Store(out).digest == digest
    assert erase(out, memory="2GB").documents == len(SECRETS)
    assert not (tmp_path / "out" / ERASING).exists()


@pytest.mark.parametrize("has_text", [True, False])
def test_rows_in_quarantine_without_sources(tmp_path: Path, has_text: bool) -> None:
    """Their columns are read from their text. A row without such text is counted if it holds text at all."""
    source = tmp_path / "in.jsonl"
    rows: list[dict[str, Any]] = [{"text": f"good words {row}", "url": f"https://a.example/{row}"} for row in range(9)]
    rows[3] = {"text": 5, "url": "https://bad.example/3", "secret": "hidden"}
    rows[6] = {"text": 6, "url": "https://a.example/6"}
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = str(tmp_path / "out")
    tokenmill.prepare(str(source), out=out, keep="url", max_bad=0.9, quarantine_text=has_text, **CALL)
    source.unlink()
    values = ["https://bad.example/3", "https://a.example/0"]
    result = tokenmill.erase(out, column="url", values=values)
    assert (result.documents, result.quarantined) == (1, int(has_text))
    assert result.not_found == ([] if has_text else ["url https://bad.example/3"])
    assert result.not_compared == 0
    assert b"hidden" not in b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    tokenmill.verify(out, sample=0)


def test_the_card_counts_erased_documents(tmp_path: Path) -> None:
    """Counts of the card are without the erased documents, and a sentence names them."""
    out = make(tmp_path)
    erase(out)
    tokenmill.report(out, card=str(tmp_path / "card"))
    readme = (tmp_path / "card/README.md").read_text()
    assert "| erased on request | 4 |" in readme
    assert f"{ROWS - 4} documents" in readme


def test_values_and_rows_given_in_python_are_exact(tmp_path: Path) -> None:
    """Neither spaces nor line ends nor commas of a given value make it another one, or two."""
    rows = [{"text": f"text {row}", "id": value} for row, value in enumerate(["a b", " a b ", "x", "y", "x\ny"])]
    (tmp_path / "a,b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tokenmill.prepare(str(tmp_path / "a,b.jsonl"), out=tmp_path / "out", keep="id", **CALL)
    result = tokenmill.erase(tmp_path / "out", column="id", values=[" a b ", "x\ny"])
    assert (result.documents, result.not_found) == (2, [])
    assert Store(str(tmp_path / "out")).columns("id")["id"].to_pylist() == ["a b", None, "x", "y", None]
    numbers: list[Any] = [np.int64(0), "0"]
    assert tokenmill.erase(tmp_path / "out", rows=[("a,b.jsonl", numbers[0])]).documents == 1
    with pytest.raises(UsageError, match="is not a rule"):
        tokenmill.erase(tmp_path / "out", rows=[("a,b.jsonl", numbers[1])])


def test_a_kill_between_the_record_and_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request alone does not finish it: the list would be missing. The selector does."""
    store = make(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(command, "publish_file", _killed)
        with pytest.raises(KeyboardInterrupt):
            erase(store, request="r")
    assert (tmp_path / "out/erasures/r/request.json").exists()
    with pytest.raises(UsageError, match="has no list"):
        tokenmill.erase(store, request="r")
    result = erase(store, request="r")
    assert result.documents == len(SECRETS)
    assert Path(result.deny).read_bytes().count(b"row") == len(SECRETS)


def test_a_store_like_one_with_erased_documents(tmp_path: Path) -> None:
    """The new sources may have the erased documents again: a note names the list that leaves them out."""
    store = make(tmp_path)
    erase(store, request="r1")
    source, deny = str(tmp_path / "in/out/a.parquet"), f"{store}/erasures/r1/deny.jsonl"
    like = tokenmill.prepare(source, like=store, out=tmp_path / "like")
    assert like.documents == ROWS
    assert [note for note in like.notices if deny in note]
    erase(store, (5,), request="r2")
    both = tokenmill.prepare(source, like=store, out=tmp_path / "one", deny=deny)
    assert [note for note in both.notices if "r2/deny.jsonl" in note and deny not in note]
    deny = str(tmp_path / "both.jsonl")
    Path(deny).write_bytes(b"".join((tmp_path / f"out/erasures/{r}/deny.jsonl").read_bytes() for r in ("r1", "r2")))
    without = tokenmill.prepare(source, like=store, out=tmp_path / "without", deny=deny)
    assert without.documents == ROWS - len(SECRETS) - 1
    assert not [note for note in without.notices if "erased" in note]
