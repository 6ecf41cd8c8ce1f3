"""Chooses the processes and the memory that a run may use, here or on a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.errors import UsageError
from tokenmill.executors.local import this_machine
from tokenmill.executors.outcomes import OWN_BYTES, Capacity
from tokenmill.humanize import parse_size, size
from tokenmill.pipeline.planning.request import BadDocumentPolicy
from tokenmill.pipeline.unit.documents import WorkerLimits, fast_bytes
from tokenmill.store.job import Job
from tokenmill.system import machine

# The fraction of its memory that a worker may hold between batches; a batch needs the rest.
WORKER_FRACTION_USED = 0.8

# What a worker needs for its libraries, an engine and a batch.
SMALLEST_WORKER_BYTES = 450 << 20

# The same for each further tokenizer of a run.
TOKENIZER_BYTES = 200 << 20


@dataclass(frozen=True, slots=True)
class Resources:
    """The processes and the memory that a run may use.

    Attributes:
        workers: The workers to start.
        worker_bytes: What each worker may hold between two batches.
        total_worker_bytes: What all workers together may hold, also within a batch.
        single_worker_bytes: What a worker may hold while no other one works.
        memory_bytes: The memory budget.
        most_workers: How many workers there may be if machines join later.
        notice: What the user should know about these numbers.
    """

    workers: int
    worker_bytes: int
    total_worker_bytes: int
    single_worker_bytes: int
    memory_bytes: int
    most_workers: int
    notice: str | None = None

    def limits(self, policy: BadDocumentPolicy | None = None) -> WorkerLimits:
        """The limits of each worker. Without a policy a bad row is an error."""
        if policy is None:
            return WorkerLimits(self.worker_bytes, self.single_worker_bytes)
        return WorkerLimits(
            self.worker_bytes, self.single_worker_bytes, policy.document_seconds, policy.on_bad, policy.quarantine_text
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

    On a cluster the budget is that of each machine. A budget that cannot hold the longest document of the `job` is
    refused.
    """
    room = room or this_machine()
    document_bytes = 0 if job is None else job.document_bytes
    min_bytes = OWN_BYTES + max(smallest_worker_bytes, fast_bytes(document_bytes))
    if workers is not None and workers < 1:
        raise UsageError("--workers must be at least 1")
    wanted = min(workers if workers is not None else room.processors, max(most_workers, 1))
    budget = parse_size(memory) if memory is not None else room.bytes_per_core * room.cores_per_machine
    if memory is None and room.machine_bytes is not None:  # a small machine gives more than its default fraction
        budget = max(budget, min(min_bytes, room.machine_bytes))
    if budget < min_bytes and (memory is not None or job is not None):
        raise _too_little(budget, min_bytes, job, given=memory is not None)
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
    total_bytes = max(budget - OWN_BYTES, count * smallest_worker_bytes)
    worker_bytes = int(total_bytes // count * WORKER_FRACTION_USED)
    return Resources(count, worker_bytes, total_bytes, total_bytes, budget, count, notice)


def _too_little(budget: int, min_bytes: int, job: Job | None, *, given: bool) -> UsageError:
    document = "" if job is None else f" that may hold a document of {size(job.document_bytes)}"
    lower = "" if job is None else ", or a lower --max-document-bytes for a new store"
    return UsageError(
        f"{'--memory ' if given else ''}{size(budget)} {'is' if given else 'of memory is'} less than one worker needs",
        f"needed       {size(min_bytes)}: {size(min_bytes - OWN_BYTES)} for a worker{document}, "
        f"{size(OWN_BYTES)} beside it",
        f"Give --memory {-(-min_bytes // 10**8) / 10:g}GB or more{lower}.",
    )


def _of_cluster(wanted: int, most_workers: int, budget: int, smallest_worker_bytes: int, room: Capacity) -> Resources:
    """Every worker gets the same memory, and documents have to fit into one: they may come to any node."""
    bytes_per_worker = max((budget - OWN_BYTES) // room.cores_per_machine, smallest_worker_bytes)
    worker_bytes, most = int(bytes_per_worker * WORKER_FRACTION_USED), max(most_workers, wanted)
    notice = None
    if bytes_per_worker * room.cores_per_machine > budget - OWN_BYTES and bytes_per_worker == smallest_worker_bytes:
        needed = size(bytes_per_worker)
        notice = f"each worker needs {needed}: the workers of a node may hold more than {size(budget)} together"
    elif bytes_per_worker > room.bytes_per_core / machine.DEFAULT_MEMORY_FRACTION:
        notice = (
            f"nodes that have less than {bytes_per_worker / 1e9:.1f} GB for each processor get fewer workers, or none"
        )
    total_bytes = bytes_per_worker * wanted
    return Resources(wanted, worker_bytes, total_bytes, bytes_per_worker, total_bytes, most, notice)
