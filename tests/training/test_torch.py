"""The adapters: workers of PyTorch, states with batches in flight, map-style datasets, and Grain."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import tokenmill
from tokenmill.errors import UsageError

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.data import DataLoader  # noqa: E402

from tokenmill.training.torch import SequenceDataset, TokenDataLoader, TokenDataset  # noqa: E402

# A machine of two cores is warned of four workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

SMALL: dict[str, Any] = {"sequence_tokens": 64, "grain": 256, "batch_sequences": 192, "seed": 5}


def ids(batch: Any) -> np.ndarray:
    """The input of a batch as an array."""
    return np.asarray(batch["input_ids"])


def passes(loader: Any, steps: int, workers: int) -> list[np.ndarray]:
    """The input of the first batches of a data loader with workers."""
    batches = iter(TokenDataLoader(loader, num_workers=workers))
    return [ids(next(batches)) for _ in range(steps)]


@pytest.mark.parametrize(("world_size", "workers"), [(1, 0), (1, 2), (3, 1), (8, 4), (64, 2)])
def test_ranks_and_workers_give_the_same_global_batches(store: str, world_size: int, workers: int) -> None:
    """Whatever the number of ranks and workers is, the slices of the ranks are those of the global batches."""
    whole = tokenmill.loader(store, **SMALL)
    own = 192 // world_size
    for rank in {0, world_size - 1}:
        loader = tokenmill.loader(store, **SMALL, rank=rank, world_size=world_size)
        for step, found in enumerate(passes(loader, 5, workers)):
            assert np.array_equal(found, whole[step]["input_ids"][rank * own : (rank + 1) * own])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [TokenDataLoader, TokenDataset])
def test_no_sequence_is_repeated_after_a_resume_with_other_batches(store: str, kind: Any, workers: int) -> None:
    """The last batch of such a pass ends after the pass, and the next pass begins where it ended."""
    three, four = (tokenmill.loader(store, **SMALL | {"batch_sequences": size}) for size in (3, 4))
    state = three.state_dict() | {"sequences": 3 * len(three) - 9}
    plain = tokenmill.loader(store, **SMALL | {"batch_sequences": 4})
    plain.load_state_dict(state)
    expected = [ids(batch) for batch, _ in zip(plain, range(8), strict=False)]
    if kind is TokenDataLoader:
        feed = TokenDataLoader(four, num_workers=workers)
        feed.load_state_dict(state)
    else:
        dataset = TokenDataset(four)
        dataset.load_state_dict(state)
        feed = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0)
    found: list[np.ndarray] = []
    while len(found) < len(expected):
        found += [ids(batch) for batch, _ in zip(feed, range(8 - len(found)), strict=False)]
    assert all(np.array_equal(*pair) for pair in zip(found, expected, strict=True))


def test_the_state_counts_delivered_batches(store: str) -> None:
    """With batches in flight, a state continues after the last delivered one, with other workers and ranks too."""
    settings = SMALL | {"batch_sequences": 24}
    whole = tokenmill.loader(store, **settings)
    state, step = whole.state_dict(), 0
    for workers, world_size in ((2, 1), (0, 3), (1, 2), (3, 1)):
        loaders = [tokenmill.loader(store, **settings, rank=rank, world_size=world_size) for rank in range(world_size)]
        feeds = [
            TokenDataLoader(loader, num_workers=workers, prefetch_factor=4 if workers else None) for loader in loaders
        ]
        for feed in feeds:
            feed.load_state_dict(state)
        batches = [iter(feed) for feed in feeds]
        for _ in range(4):
            joined = np.concatenate([ids(next(each)) for each in batches])
            assert np.array_equal(joined, whole[step]["input_ids"])
            step += 1
        state = feeds[-1].state_dict()
        assert all(feed.state_dict() == state for feed in feeds)
        assert state["sequences"] == 24 * step


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_passes_follow_each_other(store: str, workers: int, persistent: bool) -> None:
    """A second loop takes the next pass; a loop that was left goes on where it was, also with persistent workers."""
    loader = tokenmill.loader(store, **SMALL)
    feed = TokenDataLoader(loader, num_workers=workers, persistent_workers=persistent)
    assert len(feed) == len(loader)
    found = [ids(batch) for batch in feed]
    found += [ids(batch) for batch, _ in zip(feed, range(3), strict=False)]
    found += [ids(batch) for batch in feed]
    expected = [loader[step]["input_ids"] for step in range(len(found) + 1)]
    # zip takes a fourth batch from the feed before it ends: it was delivered
    del expected[len(loader) + 3]
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.filterwarnings("ignore::UserWarning")  # torchdata calls a deprecated function of torch
@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_a_stateful_data_loader_loses_nothing(store: str, workers: int) -> None:
    """Torchdata saves the state of each worker for the last delivered batch: nothing is repeated or lost."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    loader = tokenmill.loader(store, **SMALL | {"batch_sequences": 24})
    for taken in (1, 2, 5, 7):
        first = stateful.StatefulDataLoader(TokenDataset(loader), batch_size=None, num_workers=workers)
        batches = iter(first)
        found = [ids(next(batches)) for _ in range(taken)]
        state = pickle.loads(pickle.dumps(first.state_dict()))
        second = stateful.StatefulDataLoader(TokenDataset(loader), batch_size=None, num_workers=workers)
        second.load_state_dict(state)
        resumed = iter(second)
        found += [ids(next(resumed)) for _ in range(6)]
        assert all(np.array_equal(batch, loader[step]["input_ids"]) for step, batch in enumerate(found))


def test_a_plain_data_loader_has_every_batch_once(store: str) -> None:
    """`set_epoch` begins another pass, and leaves a pass that has begun."""
    loader = tokenmill.loader(store, **SMALL)
    dataset = TokenDataset(loader)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        found = [ids(batch) for batch in DataLoader(dataset, batch_size=None, num_workers=2)]
        expected = [loader[epoch * len(loader) + step]["input_ids"] for step in range(len(loader))]
        assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    dataset.load_state_dict({**loader.state_dict(), "sequences": 3 * 192})
    dataset.set_epoch(0)
    assert np.array_equal(ids(next(iter(dataset))), loader[3]["input_ids"])


def test_sequences_are_a_map_style_dataset(store: str) -> None:
    """A sampler sees each sequence of the epoch; a loader with ranks of its own is refused."""
    loader = tokenmill.loader(store, **SMALL)
    dataset = SequenceDataset(loader)
    assert len(dataset) == loader.sequences
    batches = list(DataLoader(dataset, batch_size=192, num_workers=2))
    assert all(np.array_equal(ids(batch), loader[step]["input_ids"]) for step, batch in enumerate(batches[:-1]))
    assert sum(len(ids(batch)) for batch in batches) == loader.sequences
    with pytest.raises(IndexError):
        dataset[len(dataset)]
    with pytest.raises(UsageError, match="ranks of its own"):
        SequenceDataset(tokenmill.loader(store, **SMALL, rank=0, world_size=2))


def test_the_rank_comes_from_torch(store: str, tmp_path: Any) -> None:
    """A process group that is initialized decides the rank."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        assert str(tokenmill.loader(store, **SMALL).rank) == "rank 0 of 1 (torch.distributed)"
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the libraries that Grain imports
def test_grain_reads_sequences(store: str) -> None:
    """A MapDataset of Grain batches the sequences; its checkpoint names the data."""
    grain = pytest.importorskip("grain", reason="grain is not installed")
    from tokenmill.training.grain import TokenSource

    loader = tokenmill.loader(store, **SMALL)
    source = TokenSource(loader)
    dataset = grain.MapDataset.source(source).batch(batch_size=192)
    assert np.array_equal(dataset[2]["input_ids"], loader[2]["input_ids"])
    iterator = iter(dataset.to_iter_dataset())
    for _ in range(3):
        next(iterator)
    state = iterator.get_state()
    other = iter(grain.MapDataset.source(TokenSource(loader)).batch(batch_size=192).to_iter_dataset())
    other.set_state(state)
    assert np.array_equal(next(other)["input_ids"], loader[3]["input_ids"])
    assert repr(source) == repr(TokenSource(tokenmill.loader(store, **SMALL)))
    assert repr(source) != repr(TokenSource(tokenmill.loader(store, **SMALL | {"seed": 6})))
