"""The one number to change: how many processes fit into the memory, the limits and the cores there are."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.doctor.watching.deaths import Death
from tokenmill.doctor.watching.symptoms import Symptom
from tokenmill.humanize import count, size
from tokenmill.system import machine

ROOM = 0.9
"""The share of a limit that can be planned with."""

LESS = "Let it hold less at a time: a smaller batch_size and writer_batch_size, and no cache that only grows."
ALONE = (f"Give it more memory. {LESS}",)
SINGLE = ("Give it more memory, or let it hold less at a time.",)
COMMAND = ("The command itself grew, not its workers: let it write results away as they come, not keep them.",)
NO_ROOM = "there is not enough memory"
FILES, ADDRESSES = "Max open files", "Max address space"


@dataclass(frozen=True, slots=True)
class Lack:
    """What shows that memory was short, and what to change; `title` if the usual one says too much."""

    shown: tuple[str, ...]
    fix: tuple[str, ...]
    title: str | None = None


def memory(death: Death) -> Lack:
    """What was held when the kernel killed a process, and how many processes would have fitted."""
    peak, limit = death.peak_bytes or 0, death.limit_bytes or 0
    alone = (f"it held {size(peak)}, as far as was seen",) if peak else ()
    if death.role == "command":
        return Lack(alone, COMMAND if death.workers else SINGLE, NO_ROOM)
    if death.workers < 2 or not limit:
        return Lack(alone, ALONE, NO_ROOM)
    each = max(peak, death.largest_worker_bytes)
    if each > limit / 2:
        large = f"one of {death.workers} workers alone held {size(each)} of {size(limit)}"
        return Lack((large,), (LESS, "Fewer processes alone may not be enough: even one may not fit."), NO_ROOM)
    others = max(0, death.tree_bytes - death.workers * death.worker_bytes)
    fitting = int((limit * ROOM - others) / max(each, 1))
    fewer = max(1, min(death.workers // 2, fitting))  # they were still growing: what one will need is not known
    return Lack(_held(death, limit), (f"Use num_proc={fewer}: {death.workers} did not fit into {size(limit)}.", LESS))


def _held(death: Death, limit: int) -> tuple[str, ...]:
    """What all held, unless they grew so fast that what was seen last is far from it."""
    if death.tree_bytes < limit / 2:
        return (f"{death.tree_processes:,} processes, {death.workers} of them workers, had to share {size(limit)}",)
    held = f"{death.tree_processes:,} processes held {size(death.tree_bytes)}"
    return (f"{held} when it died: {death.workers} workers about {size(death.worker_bytes)} each",)


def is_crowded(processes: int) -> bool:
    """Whether there are so many that the cores cannot be the reason for having them."""
    return processes > 2 * machine.cores() + 2


def room(symptom: Symptom, limits: dict[str, int], most: int) -> tuple[list[str], tuple[str, ...] | None]:
    """What the limits and the number of processes add to a symptom, and the fix that follows."""
    if symptom.cause == "memory":
        return _memory_room(limits, most)
    return _process_room(limits, most) if symptom.cause == "too-many-processes" else ([], None)


def _memory_room(limits: dict[str, int], most: int) -> tuple[list[str], tuple[str, ...] | None]:
    if ADDRESSES not in limits:
        return [f"there were {most} processes"] if most > 1 else [], (
            f"Use fewer processes. {LESS}",
        ) if most > 1 else ALONE
    limit = f"each process may have {size(limits[ADDRESSES])} of addresses (ulimit -v)"
    return [limit], ("Raise or remove that limit (ulimit -v unlimited); fewer processes do not help.", LESS)


def _process_room(limits: dict[str, int], most: int) -> tuple[list[str], tuple[str, ...]]:
    cores = machine.cores()
    shown = [f"there were {most} processes on {count(cores, 'core')}"]
    if FILES in limits:
        shown.append(f"a process may have {limits[FILES]:,} open files (ulimit -n)")
    if not is_crowded(most):
        return shown, ("Raise the limit (ulimit -n 65536), or close files when they are done with.",)
    return shown, (f"Use num_proc={cores}: more processes than cores do not make it faster.",)
