"""The processes and the memory that a run may use, here or on a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.errors import UsageError
from tokenmill.executors.local import this_machine
from tokenmill.executors.outcomes import OWN_BYTES
from tokenmill.humanize import parse_size, size
from tokenmill.pipeline.units import WorkerLimits, fast_bytes
from tokenmill.system import machine

if TYPE_CHECKING:
    from tokenmill.executors.outcomes import Capacity
    from tokenmill.pipeline.request import BadDocumentPolicy
    from tokenmill.store.job import Job

WORKER_SHARE_USED = 0.8
"""How much of its share a worker may hold between batches; a batch needs the rest."""

SMALLEST_WORKER_BYTES = 450 << 20
"""What a worker needs to do anything: its libraries, an engine, a batch."""


@dataclass(frozen=True, slots=True)
class Resources:
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

    def limits(self, words: BadDocumentPolicy | None = None) -> WorkerLimits:
        """What each worker is told: strict about bad rows if nothing else is said."""
        if words is None:
            return WorkerLimits(self.worker_bytes, self.alone_bytes)
        return WorkerLimits(
            self.worker_bytes, self.alone_bytes, words.timeout_seconds(), words.on_bad, words.quarantine_text
        )


def plan_resources(  # noqa: PLR0913, PLR0917 - what is asked for, and what there is
    workers: int | None,
    memory: str | int | None,
    most_workers: int,
    smallest_worker_bytes: int = SMALLEST_WORKER_BYTES,
    room: Capacity | None = None,
    job: Job | None = None,
) -> Resources:
    """One worker per core, no more than there is work for, and no more than fit into the memory budget.

    The budget is that of each machine, where there are several. One that cannot hold the longest document of the `job`
    is refused.
    """
    room = room or this_machine()
    document_bytes = 0 if job is None else job.document_bytes or 0
    least_bytes = OWN_BYTES + max(smallest_worker_bytes, fast_bytes(document_bytes))
    if workers is not None and workers < 1:
        raise UsageError("--workers has to be at least 1")
    wanted = min(workers if workers is not None else room.processors, max(most_workers, 1))
    budget = parse_size(memory) if memory is not None else room.bytes_per_core * room.cores_per_machine
    if memory is None and room.machine_bytes is not None:  # a small machine gives more than its usual fraction
        budget = max(budget, min(least_bytes, room.machine_bytes))
    if budget < least_bytes and (memory is not None or job is not None):
        raise _too_little(budget, least_bytes, job, given=memory is not None)
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
    return Resources(count, int(crew_bytes // count * WORKER_SHARE_USED), crew_bytes, crew_bytes, budget, count, notice)


def _too_little(budget: int, least_bytes: int, job: Job | None, *, given: bool) -> UsageError:
    document = "" if job is None else f" that may hold a document of {size(job.document_bytes or 0)}"
    lower = "" if job is None else ", or a lower --max-document-bytes for a new store"
    return UsageError(
        f"{'--memory ' if given else ''}{size(budget)} {'is' if given else 'of memory is'} less than one worker needs",
        f"needed       {size(least_bytes)}: {size(least_bytes - OWN_BYTES)} for a worker{document}, "
        f"{size(OWN_BYTES)} beside it",
        f"Give --memory {-(-least_bytes // 10**8) / 10:g}GB or more{lower}.",
    )


def _of_cluster(wanted: int, most_workers: int, budget: int, smallest_worker_bytes: int, room: Capacity) -> Resources:
    """The same share of memory for every worker, and documents that fit into one: they may come to any node."""
    share = max((budget - OWN_BYTES) // room.cores_per_machine, smallest_worker_bytes)
    worker_bytes, most = int(share * WORKER_SHARE_USED), max(most_workers, wanted)
    notice = None
    if share * room.cores_per_machine > budget - OWN_BYTES and share == smallest_worker_bytes:
        notice = f"each worker needs {size(share)}: the workers of a node may hold more than {size(budget)} together"
    elif share > room.bytes_per_core / machine.DEFAULT_MEMORY_FRACTION:
        notice = f"nodes that have less than {share / 1e9:.1f} GB for each processor get fewer workers, or none"
    return Resources(wanted, worker_bytes, share * wanted, share, share * wanted, most, notice)
