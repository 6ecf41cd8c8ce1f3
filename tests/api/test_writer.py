"""`tokenmill.writer`: documents of a program's own tokens, committed file by file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, part_bytes
from tests.support.inline_executor import InlineExecutor
from tokenmill.api import writer as module
from tokenmill.errors import TokenmillError, UsageError

END = 1199
OPTIONS: dict[str, Any] = {"tokenizer": SMALL_JSON, "eot": END, "executor": InlineExecutor()}


def documents(count: int = 300) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(0, 1000, length).tolist() for length in random.integers(0, 40, count)]


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some hundred tokens."""
    monkeypatch.setattr(module, "FILE_TOKENS", 1000)


def write(out: Path, given: list[list[int]], stop: int | None = None) -> tokenmill.results.PrepareResult | None:
    with tokenmill.writer(out, **OPTIONS) as w:
        for number in range(w.committed, len(given)):
            if number == stop:
                raise KeyboardInterrupt
            w.add(given[number], number=number)
    return w.result


def test_the_store_has_the_documents_and_their_columns(tmp_path: Path) -> None:
    given = documents()
    result = write(tmp_path / "store", given)
    assert result is not None
    store = tokenmill.open(result)
    assert [store[position].tolist() for position in range(len(store))] == [[*ids, END] for ids in given]
    assert store.columns("number")["number"].to_pylist() == list(range(len(given)))
    assert tokenmill.verify(result, all=True, executor=InlineExecutor()).documents_compared == len(given)


@pytest.mark.parametrize("stop", [0, 1, 120, 299])
def test_adding_goes_on_where_it_was_stopped(stop: int, tmp_path: Path) -> None:
    """What was committed stays, and the store is the same as without a stop."""
    given = documents()
    whole = write(tmp_path / "whole", given)
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "store", given, stop)
    with tokenmill.writer(tmp_path / "store", **OPTIONS) as w:
        assert stop - 60 < w.committed <= stop
        for number in range(w.committed, len(given)):
            w.add(given[number], number=number)
    assert whole is not None
    assert w.result is not None
    assert part_bytes(w.result.directory) == part_bytes(whole.directory)


@pytest.mark.processes
def test_a_killed_writer_keeps_what_it_committed(tmp_path: Path) -> None:
    code = f"""
import os, signal, tokenmill
from tokenmill.api import writer
writer.FILE_TOKENS = 10
with tokenmill.writer({str(tmp_path / "store")!r}, tokenizer={SMALL_JSON!r}, eot={END}) as w:
    for number in range(100):
        if number == 33:
            os.kill(os.getpid(), signal.SIGKILL)
        w.add([number] * 5, number=number)
"""
    killed = subprocess.run([sys.executable, "-c", code], env=os.environ, check=False)
    assert killed.returncode == -signal.SIGKILL
    with tokenmill.writer(tmp_path / "store", **OPTIONS) as w:
        assert w.committed == 32
        w.add([7], number=7)
    assert w.result is not None
    assert w.result.documents == 33


def test_a_complete_store_takes_no_more_documents(tmp_path: Path) -> None:
    given = documents(20)
    write(tmp_path / "store", given)
    with tokenmill.writer(tmp_path / "store", **OPTIONS) as w:
        assert w.committed == 20
    assert w.result is not None
    with pytest.raises(UsageError, match="is complete"), tokenmill.writer(tmp_path / "store", **OPTIONS) as w:
        w.add([1], number=1)


@pytest.mark.parametrize(
    ("ids", "kept", "message"),
    [
        ([1.5], {"number": 1}, "ids has to be a list of whole numbers"),
        ([[1], [2]], {"number": 1}, "ids has to be a list of whole numbers"),
        ([-1], {"number": 1}, "negative"),
        ([1], {}, "the document has the columns none"),
    ],
)
def test_what_cannot_be_a_document_is_refused(ids: Any, kept: dict[str, int], message: str, tmp_path: Path) -> None:
    def add() -> None:
        with tokenmill.writer(tmp_path / "store", **OPTIONS) as w:
            w.add([1], number=0)
            w.add(ids, **kept)

    with pytest.raises(UsageError, match=message):
        add()


def test_an_id_that_the_vocabulary_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenmillError, match="the id 60000 is not a token of small"):
        write(tmp_path / "store", [[1], [60_000]])


def test_a_writer_without_documents_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no document was added"), tokenmill.writer(tmp_path / "store", **OPTIONS):
        pass
