"""Erasure of rows that are in no file: their text is gone from the spool, and all other rows stay as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON
from tests.support.erasing import stop_at
from tests.support.inline_executor import InlineExecutor
from tokenmill.erasure import erased_spool
from tokenmill.storage import folder_at
from tokenmill.store.state import State, look

SECRETS = (3, 17, 18, 41)
ROWS = 60
TEXTS = [f"document secret{row} tells " + f"word{row} and more " * (row % 9 + 1) for row in range(ROWS)]
TABLE = pa.table({"id": [str(row) for row in range(ROWS)], "url": [f"https://{row}.example" for row in range(ROWS)]})
TABLE = TABLE.append_column("text", pa.array(TEXTS))


def given(kind: str) -> Any:
    """The rows as a table, or one by one."""
    return TABLE if kind == "arrow" else iter(TABLE.to_pylist())


def spooled_text(store: Path) -> str:
    """What the spool holds, decompressed."""
    (file,) = (path for path in (store / "spool").iterdir() if path.name != "spool.json")
    if file.suffix == ".arrow":
        return str(pa.ipc.open_file(file).read_all().to_pylist())
    with pa.input_stream(file, compression="zstd") as stream:
        return bytes(stream.read()).decode()


def make(kind: str, out: Path, **options: Any) -> Any:
    """A store of the rows."""
    call: dict[str, Any] = {"tokenizer": SMALL_JSON, "out": out, "executor": InlineExecutor(), **options}
    return tokenmill.prepare(given(kind), **call)


@pytest.mark.parametrize("kind", ["arrow", "jsonl"])
@pytest.mark.parametrize("options", [{}, {"keep": "url"}, {"where": "id != '5'", "dedup": "exact"}])
def test_erased_rows_are_empty_in_the_spool(kind: str, options: dict[str, Any], tmp_path: Path) -> None:
    """Rows keep their numbers; `verify` compares the others; the same rows still find the store complete."""
    out = tmp_path / "out"
    made = make(kind, out, **options)
    for number, secrets in enumerate((SECRETS[:2], SECRETS)):
        values = [f"https://{row}.example" for row in secrets]
        result = tokenmill.erase(out, column="url", values=values, request=f"r-{number}", executor=InlineExecutor())
        assert result.documents == 2
        text = spooled_text(out)
        assert [row for row in range(ROWS) if f"secret{row} " not in text] == list(secrets)
        verified = tokenmill.verify(out, all=True, executor=InlineExecutor())
        assert verified.documents_compared == made.documents - len(secrets)
        assert make(kind, out, **options).units_done_now == 0
    assert tokenmill.open(out).text(made.documents - 1) == TEXTS[-1]


@pytest.mark.parametrize("after", [False, True])
def test_an_erasure_that_was_stopped_at_the_spool_is_finished(
    after: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is not complete before the spool is written."""
    out = tmp_path / "out"
    make("jsonl", out)
    call: dict[str, Any] = {"column": "id", "values": ["3"], "request": "r", "executor": InlineExecutor()}
    with monkeypatch.context() as patch:
        stop_at(patch, erased_spool, "write_lines", lambda *_: True, after=after)
        with pytest.raises(KeyboardInterrupt):
            tokenmill.erase(out, **call)
    assert look(folder_at(str(out))).state is State.CHANGING
    tokenmill.erase(out, request="r", executor=InlineExecutor())
    assert "secret3 " not in spooled_text(out)
    assert tokenmill.verify(out, all=True, executor=InlineExecutor()).documents_compared == ROWS - 1


def test_rows_in_quarantine_are_erased_from_the_spool(tmp_path: Path) -> None:
    """The line of a bad document is replaced, too."""
    out = tmp_path / "out"
    rows = [{"id": "a", "text": "\ud800 private"}, {"id": "b", "text": "public"}]
    result = tokenmill.prepare(iter(rows), tokenizer=SMALL_JSON, out=out, max_bad=1.0, executor=InlineExecutor())
    assert result.quarantined == 1
    source = tokenmill.open(out).sources["path"][0].as_py()
    tokenmill.erase(out, rows=[(source, 0)], request="r", executor=InlineExecutor())
    with pa.input_stream(source, compression="zstd") as stream:
        left = bytes(stream.read())
    assert b"private" not in left
    assert b"public" in left
    assert tokenmill.verify(out, all=True, executor=InlineExecutor()).documents_compared == 1


def test_a_dropped_spool_needs_no_erasure(tmp_path: Path) -> None:
    """There is no text in it."""
    out = tmp_path / "out"
    make("arrow", out, drop_spool=True, keep="id")
    tokenmill.erase(out, column="id", values=["3"], request="r", executor=InlineExecutor())
    assert make("arrow", out, keep="id").units_done_now == 0
    assert tokenmill.verify(out, executor=InlineExecutor()).documents == ROWS
