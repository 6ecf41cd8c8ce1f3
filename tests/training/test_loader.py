"""Batches: every token once in an epoch, the same from any cursor and for any number of ranks, and exact resume."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tokenmill.errors import UsageError
from tokenmill.store.reader import Store

SMALL: dict[str, Any] = {"sequence_tokens": 32, "grain": 128, "batch_sequences": 192, "seed": 5}


def stream(directory: str) -> np.ndarray:
    """All tokens of a store."""
    store = Store(directory)
    return store.tokens(0, store.token_count).astype(np.int64)


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    """Whether two batches are equal in every field."""
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


def rows_of(batches: list[dict[str, np.ndarray]], name: str = "input_ids") -> np.ndarray:
    """The rows of all batches."""
    return np.concatenate([batch[name] for batch in batches])


@pytest.mark.parametrize("shuffle", ["full", "window", "none"])
def test_an_epoch_has_every_token_once(store: str, shuffle: Any) -> None:
    """The sequences of an epoch are the slices of the stream, each once; labels are the tokens after them."""
    loader = tokenmill.loader(store, **SMALL | {"batch_sequences": 1}, shuffle=shuffle)
    tokens = stream(store)
    batches = list(loader)
    length = len(batches) * 32
    assert loader.tokens == length
    assert loader.tokens + loader.tail_tokens == len(tokens)
    assert 0 < loader.tail_tokens <= 128
    ids, labels = rows_of(batches), rows_of(batches, "labels")
    expected = np.concatenate([tokens[:length].reshape(-1, 32), tokens[1 : length + 1].reshape(-1, 32)], axis=1)
    found = np.concatenate([ids, labels], axis=1)
    order = np.lexsort(found.T), np.lexsort(expected.T)
    assert np.array_equal(found[order[0]], expected[order[1]])
    assert np.array_equal(found, expected) == (shuffle == "none")


def test_the_next_pass_has_another_order(store: str) -> None:
    """A second loop goes on: every sequence once more, in another order; nothing is lost between the two."""
    loader = tokenmill.loader(store, **SMALL)
    assert loader.sequences % SMALL["batch_sequences"]
    first, second = list(loader), list(loader)
    assert len(first) == len(second) == len(loader)
    rows = rows_of(first + second)[: 2 * loader.sequences]
    epochs = rows[: loader.sequences], rows[loader.sequences :]
    assert not np.array_equal(epochs[0][: len(epochs[1])], epochs[1])
    unique = {row.tobytes() for row in epochs[0]}
    assert len(unique) == loader.sequences
    assert {row.tobytes() for row in epochs[1]} <= unique
    assert len({row.tobytes() for row in epochs[1]}) == len(epochs[1])


def test_a_thousand_cursors_resume_exactly(store: str) -> None:
    """From any cursor, through JSON, a new loader gives the batches of an undisturbed one."""
    loader = tokenmill.loader(store, **SMALL | {"batch_sequences": 6})
    undisturbed = [loader[step] for step in range(3 * len(loader))]
    other = tokenmill.loader(store, **SMALL | {"batch_sequences": 6})
    for step in np.random.default_rng(1).integers(0, len(undisturbed) - 2, 1000).tolist():
        state = {**loader.state_dict(), "sequences": 6 * step}
        other.load_state_dict(json.loads(json.dumps(state)))
        batches = iter(other)
        assert same(next(batches), undisturbed[step])
        assert other.state_dict()["sequences"] == 6 * (step + 1)
        if other.state_dict()["sequences"] % (6 * len(loader)):
            assert same(next(batches), undisturbed[step + 1])


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8, 64])
def test_ranks_share_each_global_batch(store: str, world_size: int) -> None:
    """The slices of all ranks, one after the other, are the batch of a single process; states are equal."""
    whole = tokenmill.loader(store, **SMALL)
    ranks = [tokenmill.loader(store, **SMALL, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step in (0, 1, len(whole) - 1, len(whole), 1000):
        slices = [rank[step] for rank in ranks]
        joined = {name: np.concatenate([part[name] for part in slices]) for name in slices[0]}
        assert same(joined, whole[step])
    for rank in ranks[:4]:
        next(iter(rank))
    assert all(rank.state_dict() == ranks[0].state_dict() for rank in ranks[:4])


def test_everything_but_the_past_may_change(store: str) -> None:
    """Ranks, batch size, fields and epochs change in mid-run; the sequences go on where they were."""
    loader = tokenmill.loader(store, **SMALL)
    rows = rows_of([loader[step] for step in range(20)])
    given = []
    state = loader.state_dict()
    for world_size, batch in ((1, 192), (3, 192), (2, 64), (4, 96)):
        ranks = [
            tokenmill.loader(store, **SMALL | {"batch_sequences": batch}, rank=rank, world_size=world_size, epochs=2)
            for rank in range(world_size)
        ]
        for rank in ranks:
            rank.load_state_dict(state)
        steps = zip(*map(iter, ranks), strict=True)
        for _ in range(2):
            given += [part["input_ids"] for part in next(steps)]
        state = ranks[-1].state_dict()
    given_rows = np.concatenate(given)
    assert state["sequences"] == len(given_rows) == 2 * (192 + 192 + 64 + 96)
    assert np.array_equal(given_rows, rows[: len(given_rows)])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 6}, "another seed"),
        ({"sequence_tokens": 64}, "another sequence_tokens"),
        ({"grain": 256}, "another grain"),
        ({"shuffle": "window"}, "another shuffle"),
        ({"val": 0.1}, "another val and another split"),
        ({"packing": "best-fit"}, "another packing"),
    ],
)
def test_a_state_of_another_past_is_refused(store: str, change: dict[str, Any], said: str) -> None:
    """The message names the choice that differs, with both values. A state without a past is accepted."""
    before = tokenmill.loader(store, **SMALL)
    now = tokenmill.loader(store, **SMALL | change)
    now.load_state_dict(before.state_dict())
    next(iter(before))
    with pytest.raises(UsageError, match=f"the state is of a loader with {said}") as raised:
        now.load_state_dict(before.state_dict())
    assert "is now" in str(raised.value)


def test_a_state_of_other_stores_is_refused(store: str, other_store: str) -> None:
    """A checkpoint is bound to the data."""
    before = tokenmill.loader([store, other_store], **SMALL)
    next(iter(before))
    for stores in (store, [other_store, store]):
        with pytest.raises(UsageError, match="another stores"):
            tokenmill.loader(stores, **SMALL).load_state_dict(before.state_dict())


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"sequences": 5, "digest": ""},
        {"format": 1, "sequences": 5},
        {"format": 1, "sequences": -1, "digest": ""},
        {"format": 1, "sequences": "5", "digest": "x"},
        {"format": 1, "sequences": 1 << 90, "digest": ""},
    ],
)
def test_what_is_no_state_is_refused(store: str, state: Any) -> None:
    """A state has its format, a number and a text."""
    with pytest.raises(UsageError, match="not the state of a loader"):
        tokenmill.loader(store, **SMALL).load_state_dict(state)


def test_a_state_of_another_format_is_refused(store: str) -> None:
    """Whatever else it has."""
    with pytest.raises(UsageError, match="the state has format 2"):
        tokenmill.loader(store, **SMALL).load_state_dict({"format": 2, "cursor": 5})


def test_a_state_is_small(store: str) -> None:
    """The state is a number and a line of text, whatever was given out."""
    loader = tokenmill.loader(store, **SMALL)
    next(iter(loader))
    assert len(json.dumps(loader.state_dict())) < 300
    assert loader.state_dict()["sequences"] == 192


def test_several_stores_are_mixed_by_size(store: str, other_store: str) -> None:
    """Each epoch has every sequence of every store once, in each store's own order; every batch has its share."""
    settings = SMALL | {"batch_sequences": 8}
    both = tokenmill.loader([store, other_store], **settings)
    singles = [tokenmill.loader(one, **settings) for one in (store, other_store)]
    assert both.sequences == sum(single.sequences for single in singles)
    rows = rows_of([both[step] for step in range(2 * both.sequences // 8 + 1)])[: 2 * both.sequences]
    for number, single in enumerate(singles):
        own = rows_of([single[step] for step in range(2 * single.sequences // 8 + 1)])[: 2 * single.sequences]
        wanted = {row.tobytes() for row in own}
        found = np.array([row for row in rows if row.tobytes() in wanted])
        assert np.array_equal(found, own), number
    share = singles[1].sequences / both.sequences
    is_second = np.array([row.tobytes() in wanted for row in rows])
    assert np.abs(np.cumsum(is_second) - share * np.arange(1, len(rows) + 1)).max() < 3


def test_steps_are_pure(store: str, other_store: str) -> None:
    """A step is the same before, during and after a loop, and in a copy by pickle, which keeps the cursor."""
    loader = tokenmill.loader([store, other_store], **SMALL, fields=["tokens", "labels"])
    fourth = loader[4]
    batches = [batch for batch, _ in zip(loader, range(6), strict=False)]
    copy: tokenmill.Loader = pickle.loads(pickle.dumps(loader))
    assert same(batches[4], fourth)
    assert same(copy[4], fourth)
    assert same(next(iter(copy)), loader[loader.state_dict()["sequences"] // 192])
    assert np.array_equal(fourth["tokens"][:, 1:], fourth["labels"])


def test_negative_steps_are_refused(store: str) -> None:
    """A step is counted from 0; there is no last one."""
    loader = tokenmill.loader(store, **SMALL)
    with pytest.raises(IndexError):
        loader[-1]
    assert loader[10**12]["input_ids"].shape == (192, 32)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sequence_tokens": 0}, "sequence_tokens is 0"),
        ({"sequence_tokens": 48}, "does not have whole sequences"),
        ({"batch_sequences": 0}, "batch_sequences= must be at least 1"),
        ({"seed": -1}, "seed= must be at least 0"),
        ({"val": 2}, "not a fraction"),
        ({"split": "val"}, "no documents are held out"),
        ({"shuffle": "some"}, "shuffle= is full, window or none, not 'some'"),
        ({"fields": ["ids"]}, "no field 'ids'"),
        ({"rank": 0}, "belong together"),
        ({"rank": 3, "world_size": 3}, "no rank 3 of 3"),
        ({"rank": 0, "world_size": 5}, "cannot be divided among 5 ranks"),
        ({"grain": 1 << 20}, "smaller than one grain"),
    ],
)
def test_impossible_options_are_refused(store: str, options: dict[str, Any], said: str) -> None:
    """The message says what is wrong with the option."""
    with pytest.raises(UsageError, match=said):
        tokenmill.loader(store, **SMALL | options)


def test_the_grain_follows_the_sequences(store: str) -> None:
    """The default is 8,192 tokens, or the multiple of the sequence below it, or a longer sequence itself."""
    for sequence, grain in ((32, 8192), (2048, 8192), (1000, 8000), (10_000, 10_000)):
        assert tokenmill.loader(store, sequence_tokens=sequence).options.grain == grain


def test_a_store_is_not_given_twice(store: str) -> None:
    """The same sequences twice in an epoch are no mixture."""
    with pytest.raises(UsageError, match="same parts"):
        tokenmill.loader([store, store])


def test_the_rank_comes_from_the_environment(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variables of torchrun come before those of Slurm. Job arrays do not count."""
    assert tokenmill.loader(store, **SMALL).rank.origin == "a single process"
    for name, value in {"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_ARRAY_TASK_ID": "9"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "10")
    assert "rank 2 of 4 (Slurm)" in repr(tokenmill.loader(store, **SMALL))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert str(tokenmill.loader(store, **SMALL).rank) == "rank 1 of 3 (RANK and WORLD_SIZE)"
    assert str(tokenmill.loader(store, **SMALL, rank=0, world_size=2).rank) == "rank 0 of 2 (given)"


def test_a_pickled_loader_does_not_read_a_store_that_was_replaced(store: str, other_store: str, tmp_path: Path) -> None:
    """Workers of a trainer unpickle their loader: another store at its path would go on with other tokens."""
    copy = tmp_path / "store"
    shutil.copytree(store, copy)
    pickled = pickle.dumps(tokenmill.loader(copy, **SMALL))
    assert same(pickle.loads(pickled)[0], tokenmill.loader(store, **SMALL)[0])
    shutil.rmtree(copy)
    shutil.copytree(other_store, copy)
    with pytest.raises(UsageError, match="pickled loader was replaced"):
        pickle.loads(pickled)
