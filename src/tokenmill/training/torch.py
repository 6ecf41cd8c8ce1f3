"""Datasets and a data loader for PyTorch. The only module that imports torch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from tokenmill.errors import UsageError
from tokenmill.training.batches import Batch
from tokenmill.training.loader import Loader, SequenceView
from tokenmill.training.parts import LOOK_SECONDS

Tensors = dict[str, torch.Tensor]

# The key of a worker's own state in a state of StatefulDataLoader: its number and the number of workers.
WORKER = "worker"


def as_tensors(batch: Batch) -> Tensors:
    """A batch as tensors over the same memory."""
    return {name: torch.from_numpy(values) for name, values in batch.items()}


class TokenDataset(IterableDataset[Tensors]):  # type: ignore[misc]
    """The batches of a loader, for `DataLoader(dataset, batch_size=None, num_workers=n)`.

    Workers take whole batches in turn, so the order of batches does not depend on their number. The main process does
    not know what workers have read: call `set_epoch` before each pass, or the pass is repeated. `TokenDataLoader` and
    torchdata's `StatefulDataLoader` save the state; `TokenDataLoader` needs no `set_epoch`.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self.loader = loader
        self._start = loader.state_dict()["sequences"]  # where the pass of this process begins
        self._next: int | None = None  # the next batch of this process; None before a pass

    def __iter__(self) -> Iterator[Tensors]:
        worker, workers = _worker()
        end = self.loader.pass_end(self._start)
        if self._next is None:
            self._next = self.loader.advance(self._start, worker)
        for batch in self.loader.batches(self._next, end, workers):
            # Before the batch is given out: a state that is taken then counts it.
            self._next = self.loader.advance(self._next, workers)
            yield as_tensors(batch)
        self._start, self._next = self.loader.after_pass(self._start), None

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Begin with pass number `epoch`, unless the state is in this pass already. Trainers call it before a pass."""
        start = self.loader.pass_start(epoch)
        if self.loader.pass_end(self._start) != self.loader.pass_end(start):
            self._start, self._next = start, None

    def state_dict(self) -> dict[str, Any]:
        """The state of this process: that of the loader, or of one worker, as StatefulDataLoader saves it."""
        worker, workers = _worker()
        state = self.loader.state_dict()
        if workers == 1:
            return state | {"sequences": self._start if self._next is None else self._next}
        return state | {"sequences": self._start, WORKER: [worker, workers, self._next]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a state was taken: of a loader, of a TokenDataLoader, or of this worker."""
        self._start, self._next = self.loader.check_state(state), None
        if WORKER in state:
            worker, workers, following = state[WORKER]
            if (worker, workers) != _worker():
                raise UsageError(f"the state is of worker {worker} of {workers}", "Use as many workers as before.")
            self._next = following


class TokenDataLoader(DataLoader[Tensors]):  # type: ignore[misc]
    """A DataLoader of a loader's batches whose state is the loader's: the batches delivered, not those prefetched.

    It takes the options of `DataLoader` about workers and memory. The number of workers may change between a state and
    its resume.
    """

    def __init__(self, loader: Loader, **options: Any) -> None:
        if loader.reader.is_remote and options.get("num_workers"):
            options.setdefault("multiprocessing_context", "spawn")  # clients of object stores do not survive a fork
        super().__init__(TokenDataset(loader), batch_size=None, **options)
        self.loader = loader
        self._delivered = loader.state_dict()["sequences"]
        self._is_interrupted = False
        self._known_changes, self._workers_know, self._outdated = loader.reader.look(), 0.0, 0

    def __iter__(self) -> Iterator[Tensors]:
        if self._is_interrupted:
            self._iterator = None  # persistent workers are ahead of what was delivered: begin with new ones
        self._is_interrupted = True
        following = self.loader.after_pass(self._delivered)
        self.dataset.load_state_dict(self.state_dict())
        for prefetched in super().__iter__():
            batch = self._again() if self._is_outdated() else prefetched
            self._delivered = self.loader.advance(self._delivered, 1)
            yield batch
        self._delivered, self._is_interrupted = following, False

    def _is_outdated(self) -> bool:
        """Whether workers may have made the next batch before they knew of an erasure.

        They learn of it a second later than this process, at most. What they have prefetched then is older.
        """
        known, now = self.loader.reader.look(), time.monotonic()
        if known != self._known_changes:
            self._known_changes, self._workers_know = known, now + LOOK_SECONDS
            self._outdated = self.num_workers * (self.prefetch_factor or 0)
        if now >= self._workers_know:
            self._outdated -= 1
        return self.num_workers > 0 and self._outdated >= 0

    def _again(self) -> Tensors:
        """The next batch, made by this process."""
        start = self._delivered
        return as_tensors(next(self.loader.batches(start, self.loader.pass_end(start))))

    def state_dict(self) -> dict[str, Any]:
        """The state after the last batch that was delivered. Equal on all ranks."""
        return self.loader.state_dict() | {"sequences": self._delivered}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a state was taken. The number of ranks and of workers may differ."""
        self._delivered = self.loader.check_state(state)
        self._is_interrupted = True


class SequenceDataset(SequenceView, Dataset[Batch]):  # type: ignore[misc]
    """Single sequences, for trainers with a sampler of their own, such as Hugging Face's. It has `len` and `[i]`."""


def _worker() -> tuple[int, int]:
    """The number of this worker process, and the number of workers; (0, 1) in the main process."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
