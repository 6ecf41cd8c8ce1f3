"""What erasures compare and count: memory, quarantine, the card, exact values, stores like the erased one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.erasure.test_erase import SECRETS
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.erasing import END, ROWS, write_source
from tokenmill.api import erase as command
from tokenmill.errors import UsageError
from tokenmill.store.reader import Store

CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "unit_bytes": 900, "workers": 1}


def make(tmp_path: Path, name: str = "out", **options: Any) -> str:
    tokenmill.prepare(write_source(tmp_path / f"in/{name}/a.parquet"), out=tmp_path / name, **{**CALL, **options})
    return str(tmp_path / name)


def erase(store: str, rows: tuple[int, ...] = SECRETS, **options: Any) -> Any:
    return tokenmill.erase(store, rows=[("a.parquet", row) for row in rows], **options)


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


def test_a_store_like_one_with_erased_documents(tmp_path: Path) -> None:
    """The new sources may have the erased documents again: a note names the option that leaves them out."""
    store = make(tmp_path)
    first = erase(store, request="r1").deny
    source = str(tmp_path / "in/out/a.parquet")
    like = tokenmill.prepare(source, like=store, out=tmp_path / "like")
    assert like.documents == ROWS
    assert [note for note in like.notices if f"--deny {store}" in note]
    second = erase(store, (5,), request="r2").deny
    one = tokenmill.prepare(source, like=store, out=tmp_path / "one", deny=first)
    assert [note for note in one.notices if f"--deny {store}" in note]
    deny = tmp_path / "both.jsonl"
    deny.write_bytes(Path(first).read_bytes() + Path(second).read_bytes())
    for name, given in (("file", str(deny)), ("store", store)):
        without = tokenmill.prepare(source, like=store, out=tmp_path / name, deny=given)
        assert without.documents == ROWS - len(SECRETS) - 1
        assert not [note for note in without.notices if "erased" in note]
