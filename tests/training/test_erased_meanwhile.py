"""A training goes on while documents are erased, and its states say which erasures a store has had."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support.erasing import CALL, END, erase_rows, make_store, stop_at, write_source
from tests.support.servers.seaweed import Bucket
from tokenmill.erasure import erase as erasure
from tokenmill.errors import CorruptStore, UsageError
from tokenmill.storage import Folder
from tokenmill.store.chain import last_change
from tokenmill.training import parts
from tokenmill.training.batches import IGNORED

OPTIONS: dict[str, Any] = {
    "sequence_tokens": 16,
    "batch_sequences": 4,
    "grain": 16,
    "fields": ["input_ids", "labels", "document_ids"],
}


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """The time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which a loader looks for claims."""
    clock = Clock()
    monkeypatch.setattr(parts, "time", clock)
    return clock


def masked(batch: dict[str, np.ndarray], erased: set[int]) -> dict[str, np.ndarray]:
    """A batch as it is when some documents are erased."""
    is_erased = np.isin(batch["document_ids"], list(erased))
    rows = {"input_ids": np.where(is_erased, END, batch["input_ids"]), "document_ids": batch["document_ids"]}
    following = np.zeros_like(is_erased)
    following[:, :-1] = is_erased[:, 1:]
    return rows | {"labels": np.where(following, IGNORED, batch["labels"])}


def check(batch: dict[str, np.ndarray], before: dict[str, np.ndarray], erased: set[int]) -> None:
    """Every token is as before, or an end token that is not learned. The last label is of the next sequence."""
    expected = masked(before, erased)
    assert np.array_equal(batch["input_ids"], expected["input_ids"])
    assert np.array_equal(batch["labels"][:, :-1], expected["labels"][:, :-1])
    last = batch["labels"][:, -1]
    assert bool(((last == before["labels"][:, -1]) | (last == IGNORED)).all())


@pytest.mark.parametrize("where", ["disk", "bucket"])
def test_a_training_while_ten_erasures_happen(where: str, s3: Bucket, tmp_path: Path, clock: Clock) -> None:
    """It does not stop; a second after a claim no token of its documents is given out, and all other tokens are."""
    store = f"{s3.url}/out" if where == "bucket" else str(tmp_path / "out")
    tokenmill.prepare(write_source(tmp_path / "in/a.parquet"), out=store, **CALL)
    before = list(tokenmill.loader(store, **OPTIONS))
    loader = tokenmill.loader(store, **OPTIONS)
    erased: set[int] = set()
    for step, batch in enumerate(loader):
        check(batch, before[step], erased)
        if step % 3 == 2 and len(erased) < 10:
            row = (step * 7) % 60
            erase_rows(store, row, request=f"r{row}")
            erased.add(row)
            clock.now += parts.LOOK_SECONDS
    assert len(erased) == 10
    assert step + 1 == len(before) == len(loader)
    assert [version[0] for version in loader.state_dict()["stores"].values()] == [10]
    for step, expected in enumerate(before):
        check(loader[step], expected, erased)


def test_packed_rows_while_documents_are_erased(tmp_path: Path, clock: Clock) -> None:
    """Also in packed rows, erased documents become end tokens without labels, and all other tokens stay."""
    store = str(tmp_path / "out")
    tokenmill.prepare(write_source(tmp_path / "in/a.parquet"), out=store, **CALL)
    before = list(tokenmill.loader(store, **OPTIONS, packing="best-fit"))
    loader = tokenmill.loader(store, **OPTIONS, packing="best-fit")
    erased: set[int] = set()
    for step, batch in enumerate(loader):
        expected = masked(before[step], erased)
        assert np.array_equal(batch["input_ids"], expected["input_ids"])
        assert (batch["labels"][np.isin(batch["document_ids"], list(erased))] == IGNORED).all()
        if step % 5 == 2:
            erase_rows(store, step, request=f"r{step}")
            erased.add(step)
            clock.now += parts.LOOK_SECONDS
    assert any(np.isin(list(erased), batch["document_ids"]).any() for batch in before[step // 2 :])


def test_a_claim_that_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    """The claim names the documents: they are masked at once, although their tokens are still in the parts."""
    store = make_store(tmp_path)
    loader = tokenmill.loader(store, **OPTIONS)
    before = [loader[step] for step in range(len(loader))]
    with monkeypatch.context() as patch:
        stop_at(patch, erasure, "reconcile", lambda *_: True)
        with pytest.raises(KeyboardInterrupt):
            erase_rows(store, 17, request="r")
    check(loader[0], before[0], set())  # within the second
    clock.now += parts.LOOK_SECONDS
    for step, expected in enumerate(before):
        check(loader[step], expected, {17})
    erase_rows(store, request="r")
    for step, expected in enumerate(before):
        check(loader[step], expected, {17})


def test_a_state_of_before_an_erasure(tmp_path: Path) -> None:
    """It loads afterwards, and the training goes on at its step."""
    store = make_store(tmp_path)
    loader = tokenmill.loader(store, **OPTIONS)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state, expected = loader.state_dict(), list(batches)
    erase_rows(store, 17, request="r")
    later = tokenmill.loader(store, **OPTIONS)
    later.load_state_dict(state)
    for batch, before in zip(later, expected, strict=True):
        check(batch, before, {17})


def test_a_state_of_a_store_that_was_replaced_by_a_copy(tmp_path: Path) -> None:
    """A copy of before the erasure is refused, and so is one in which something else was erased."""
    store = make_store(tmp_path)
    shutil.copytree(store, tmp_path / "copy")
    erase_rows(store, 17, request="r")
    state = tokenmill.loader(store, **OPTIONS).state_dict()
    shutil.rmtree(store)
    (tmp_path / "copy").rename(store)
    with pytest.raises(CorruptStore, match="older copy"):
        tokenmill.loader(store, **OPTIONS).load_state_dict(state)
    erase_rows(store, 18, request="s")
    with pytest.raises(CorruptStore, match="changed by itself"):
        tokenmill.loader(store, **OPTIONS).load_state_dict(state)
    with pytest.raises(UsageError, match="not the state of a loader"):
        tokenmill.loader(store, **OPTIONS).load_state_dict({"sequences": 0, "digest": ""})


def test_looking_for_claims_costs_one_listing_in_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """However many batches are fetched."""
    loader = tokenmill.loader(make_store(tmp_path), **OPTIONS)
    looks: list[object] = []

    def look(folder: Folder) -> int:
        looks.append(folder)
        return last_change(folder)

    monkeypatch.setattr(parts, "last_change", look)
    for step in range(len(loader)):
        _ = loader[step]
    assert not looks
    clock.now += parts.LOOK_SECONDS
    for step in range(len(loader)):
        _ = loader[step]
    assert len(looks) == 1
