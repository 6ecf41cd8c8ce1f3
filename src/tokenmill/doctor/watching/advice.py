"""Derives the number to change: how many processes fit the memory, the limits and the cores."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.doctor.watching.deaths import Death
from tokenmill.doctor.watching.symptoms import Symptom
from tokenmill.humanize import count, size
from tokenmill.system import machine

# The fraction of a limit that the advice plans with.
USABLE_FRACTION = 0.9

HOLD_LESS = "Let it hold less at a time: a smaller batch_size and writer_batch_size, and no cache that only grows."
MORE_MEMORY_OR_LESS = (f"Give it more memory. {HOLD_LESS}",)
MORE_MEMORY = ("Give it more memory, or let it hold less at a time.",)
COMMAND_GREW = ("The command itself grew, not its workers: let it write results away as they come, not keep them.",)
NO_MEMORY = "there is not enough memory"
# Evidence and fix.
Advice = tuple[list[str], tuple[str, ...] | None]
# Names of limits in /proc.
FILE_LIMIT, ADDRESS_LIMIT = "Max open files", "Max address space"


@dataclass(frozen=True, slots=True)
class Shortage:
    """Evidence that memory was short, and the fix. `title` replaces the default title if that claims too much."""

    evidence: tuple[str, ...]
    fix: tuple[str, ...]
    title: str | None = None


def memory_shortage(death: Death) -> Shortage:
    """Describes what was held when the kernel killed a process, and how many processes would have fit."""
    peak, limit = death.peak_bytes or 0, death.limit_bytes or 0
    held = (f"it held {size(peak)}, as far as was seen",) if peak else ()
    if death.role == "command":
        return Shortage(held, COMMAND_GREW if death.workers else MORE_MEMORY, NO_MEMORY)
    if death.workers < 2 or not limit:
        return Shortage(held, MORE_MEMORY_OR_LESS, NO_MEMORY)
    per_worker = max(peak, death.largest_worker_bytes)
    if per_worker > limit / 2:
        evidence = f"one of {death.workers} workers alone held {size(per_worker)} of {size(limit)}"
        fix = (HOLD_LESS, "Fewer processes alone may not be enough: even one may not fit.")
        return Shortage((evidence,), fix, NO_MEMORY)
    others = max(0, death.tree_bytes - death.workers * death.worker_bytes)
    fitting = int((limit * USABLE_FRACTION - others) / max(per_worker, 1))
    fewer = max(1, min(death.workers // 2, fitting))  # they were still growing, so their final size is unknown
    fix = (f"Use num_proc={fewer}: {death.workers} did not fit into {size(limit)}.", HOLD_LESS)
    return Shortage(_tree_evidence(death, limit), fix)


def _tree_evidence(death: Death, limit: int) -> tuple[str, ...]:
    """Describes what all processes held. If they grew too fast to be sampled, only their number is shown."""
    if death.tree_bytes < limit / 2:
        return (f"{death.tree_processes:,} processes, {death.workers} of them workers, had to share {size(limit)}",)
    held = f"{death.tree_processes:,} processes held {size(death.tree_bytes)}"
    return (f"{held} when it died: {death.workers} workers about {size(death.worker_bytes)} each",)


def is_crowded(processes: int) -> bool:
    """Returns whether there are far more processes than the cores can justify."""
    return processes > 2 * machine.cores() + 2


def limit_advice(symptom: Symptom, limits: dict[str, int], max_processes: int) -> Advice:
    """Returns the evidence that limits and process count add to a symptom, and the resulting fix."""
    if symptom.cause == "memory":
        return _memory_advice(limits, max_processes)
    return _process_advice(limits, max_processes) if symptom.cause == "too-many-processes" else ([], None)


def _memory_advice(limits: dict[str, int], max_processes: int) -> Advice:
    if ADDRESS_LIMIT not in limits:
        if max_processes <= 1:
            return [], MORE_MEMORY_OR_LESS
        return [f"there were {max_processes} processes"], (f"Use fewer processes. {HOLD_LESS}",)
    limit = f"each process may have {size(limits[ADDRESS_LIMIT])} of addresses (ulimit -v)"
    return [limit], ("Raise or remove that limit (ulimit -v unlimited); fewer processes do not help.", HOLD_LESS)


def _process_advice(limits: dict[str, int], max_processes: int) -> Advice:
    cores = machine.cores()
    evidence = [f"there were {max_processes} processes on {count(cores, 'core')}"]
    if FILE_LIMIT in limits:
        evidence.append(f"a process may have {limits[FILE_LIMIT]:,} open files (ulimit -n)")
    if not is_crowded(max_processes):
        return evidence, ("Raise the limit (ulimit -n 65536), or close files when they are done with.",)
    return evidence, (f"Use num_proc={cores}: more processes than cores do not make it faster.",)
