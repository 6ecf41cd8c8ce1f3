"""Small stores whose documents are erased, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_TIKTOKEN

END = 1199
ROWS = 60
CALL: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "workers": 1, "unit_bytes": 900}


def write_source(path: Path, word: str = "") -> str:
    """Documents of different lengths with an id and a URL. With a word, other ones."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"{word}document number {row} tells " + f"words{row} and more " * (row % 9 + 1) for row in range(ROWS)]
    urls = [f"https://s{row}.host{row % 4}.example/{row}" for row in range(ROWS)]
    pq.write_table(pa.table({"text": texts, "id": list(range(ROWS)), "url": urls}), path, row_group_size=10)
    return str(path)


def make_store(tmp_path: Path, name: str = "out", word: str = "", **options: Any) -> str:
    """A store of such documents."""
    source = write_source(tmp_path / f"in/{name}/a.parquet", word)
    tokenmill.prepare(source, out=str(tmp_path / name), **{**CALL, **options})
    return str(tmp_path / name)


def erase_rows(store: str, *rows: int, **options: Any) -> Any:
    """Erase documents, or finish a request without naming any."""
    if rows:
        options["rows"] = [("a.parquet", row) for row in rows]
    return tokenmill.erase(store, workers=1, **options)


def files_with(folder: Path, tokens: np.ndarray) -> list[str]:
    """The files below a folder that hold a sequence of tokens in any width."""
    needles = [tokens.astype(kind).tobytes() for kind in ("<u2", "<u4")]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(needle in path.read_bytes() for needle in needles)]


def contents(folder: Path) -> dict[str, bytes]:
    """The files below a folder, by their paths in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def stop_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_last: Callable[..., bool], *, after: bool = False
) -> None:
    """End the process, as far as a test can, before or after the call of a function for which `is_last` holds."""
    original = getattr(owner, name)

    def call(*arguments: Any, **options: Any) -> Any:
        is_end = is_last(*arguments)
        if is_end and not after:
            raise KeyboardInterrupt
        result = original(*arguments, **options)
        if is_end:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(owner, name, call)
