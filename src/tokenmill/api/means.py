"""The processes and the memory that a run may use, here or on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill import machine
from tokenmill.errors import UsageError
from tokenmill.executors.local import this_machine
from tokenmill.executors.outcomes import OWN_BYTES
from tokenmill.job import parse_size
from tokenmill.wording import size
from tokenmill.work import Limits

if TYPE_CHECKING:
    from tokenmill.api.request import BadWords
    from tokenmill.executors.outcomes import Room

WORKER_SHARE_USED = 0.8
"""How much of its share a worker may hold between batches; a batch needs the rest."""

SMALLEST_WORKER_BYTES = 450 << 20
"""What a worker needs to do anything: its libraries, an engine, a batch."""

DOCUMENT_COPIES = 5
"""How many times its size a document takes at most on its way from a source to a part."""


@dataclass(frozen=True, slots=True)
class Means:
    """The processes and the memory a run may use; `worker_bytes` is what each may hold between two batches.

    All workers together may hold `crew_bytes`, also within a batch; one that is alone, `alone_bytes`. There may be
    `most_workers` of them if machines join later.
    """

    workers: int
    worker_bytes: int
    crew_bytes: int
    alone_bytes: int
    memory_bytes: int
    most_workers: int
    notice: str | None = None

    def limits(self, words: BadWords | None = None) -> Limits:
        """What each worker is told: strict about bad rows if nothing else is said."""
        document_bytes = self.alone_bytes // DOCUMENT_COPIES
        if words is None:
            return Limits(self.worker_bytes, document_bytes)
        return Limits(self.worker_bytes, document_bytes, words.timeout_seconds(), words.on_bad, words.quarantine_text)


def choose_means(
    workers: int | None,
    memory: str | int | None,
    most_workers: int,
    smallest_worker_bytes: int = SMALLEST_WORKER_BYTES,
    room: Room | None = None,
) -> Means:
    """One worker per core, no more than there is work for, and no more than fit into the memory budget.

    The budget is that of each machine, where there are several.
    """
    room = room or this_machine()
    if workers is not None and workers < 1:
        raise UsageError("--workers has to be at least 1")
    wanted = min(workers if workers is not None else room.processors, max(most_workers, 1))
    budget = parse_size(memory) if memory is not None else room.share_bytes * room.of_machine
    if budget < OWN_BYTES + smallest_worker_bytes and memory is not None:
        raise _too_little(budget, smallest_worker_bytes)
    if room.machine_bytes is None:
        return _of_cluster(wanted, min(workers or most_workers, most_workers), budget, smallest_worker_bytes, room)
    fitting = max(1, (budget - OWN_BYTES) // smallest_worker_bytes)
    count = min(wanted, fitting)
    notice = None
    if count < wanted:
        notice = f"{count} of {wanted} workers: --memory {budget / 1e9:.1f} GB has no room for more"
    elif budget < OWN_BYTES + smallest_worker_bytes:
        notice = f"one worker needs {size(OWN_BYTES + smallest_worker_bytes)}: memory may run out"
    elif budget > room.machine_bytes:
        notice = f"--memory is more than the {room.machine_bytes / 1e9:.1f} GB there are"
    crew_bytes = max(budget - OWN_BYTES, count * smallest_worker_bytes)
    return Means(count, int(crew_bytes // count * WORKER_SHARE_USED), crew_bytes, crew_bytes, budget, count, notice)


def _too_little(budget: int, smallest_worker_bytes: int) -> UsageError:
    return UsageError(
        f"--memory {size(budget)} is less than one worker needs",
        f"needed       {size(OWN_BYTES + smallest_worker_bytes)}: {size(smallest_worker_bytes)} for a worker, "
        f"{size(OWN_BYTES)} beside it",
        "Give more, or leave --memory out for 70 % of what there is.",
    )


def _of_cluster(wanted: int, most_workers: int, budget: int, smallest_worker_bytes: int, room: Room) -> Means:
    """The same share of memory for every worker, and documents that fit into one: they may come to any node."""
    share = max((budget - OWN_BYTES) // room.of_machine, smallest_worker_bytes)
    worker_bytes, most = int(share * WORKER_SHARE_USED), max(most_workers, wanted)
    notice = None
    if share * room.of_machine > budget - OWN_BYTES and share == smallest_worker_bytes:
        notice = f"each worker needs {size(share)}: the workers of a node may hold more than {size(budget)} together"
    elif share > room.share_bytes / machine.DEFAULT_MEMORY_SHARE:
        notice = f"nodes that have less than {share / 1e9:.1f} GB for each processor get fewer workers, or none"
    return Means(wanted, worker_bytes, share * wanted, share, share * wanted, most, notice)
