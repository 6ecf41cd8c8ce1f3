"""The memory of a worker and the memory there is."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from dataclasses import dataclass

from tokenmill.system import cgroups, machine, procfs

STEADY_READINGS = 64
STEPS = 16
MUCH_GROWTH_BYTES = 64 << 20
MIN_GROWTH_BYTES = 2 << 20
FLATTENING = 0.5
"""Below this power memory grows ever more slowly, and no text is long enough to tell where that ends."""


def own_peak_bytes() -> int:
    """The memory at the peak that this process shares with no other."""
    lines = procfs.read("/proc/self/smaps_rollup").splitlines()
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Private_Dirty:"))
    if not own:
        return machine.resident_bytes()
    status = procfs.status(os.getpid())
    return own + max(0, procfs.number(status, b"VmHWM") - procfs.number(status, b"VmRSS")) * 1024


def held_bytes(pid: int) -> int:
    """The memory of a process without the files it maps."""
    return procfs.held_bytes(procfs.status(pid))


@dataclass(frozen=True, slots=True)
class Growth:
    """How memory grows with the text: bytes for each byte in the second half, and the power of the text it goes with.

    A list of all texts grows with power 1; a cache of words with about 0.75, for new words become rarer.
    """

    rate: float
    power: float


NO_GROWTH = Growth(0.0, 1.0)


def growth(readings: list[tuple[int, int]]) -> Growth:
    """The growth that readings of (text bytes, memory bytes) show.

    It counts only if it is steady: a table that doubles now and then, or memory that is taken once, is no growth.
    """
    end = readings[-1][0]
    if len(readings) < STEADY_READINGS:  # so few texts only if it grew by very much
        grown = readings[-1][1] - readings[len(readings) // 2][1]
        return Growth(2 * grown / end, 1.0) if grown > MUCH_GROWTH_BYTES else NO_GROWTH
    held = [_held_at(readings, end * step / STEPS) for step in range(STEPS + 1)]
    steps = [after - before for before, after in itertools.pairwise(held)]
    early, late = (statistics.median(part) for part in (steps[STEPS // 4 : STEPS // 2], steps[STEPS // 2 :]))
    if late * STEPS / 2 < MIN_GROWTH_BYTES:
        return NO_GROWTH
    power = 1 + math.log2(late / max(early, 1))  # the middle of one part has twice the text of the other's
    return Growth(late * STEPS / end, min(power, 1.0)) if power > FLATTENING else NO_GROWTH


def text_until(room_bytes: float, text_bytes: int, grown: Growth) -> float:
    """How many bytes of text a process can take until it has grown by so much more, if it goes on like this."""
    last_half = grown.rate * text_bytes / 2
    times = (1 + room_bytes * (1 - 0.5**grown.power) / last_half) ** (1 / grown.power)
    return float(text_bytes * times)


def _held_at(readings: list[tuple[int, int]], text: float) -> float:
    """The memory when about so much text had been read."""
    width = readings[-1][0] / 20
    near = [held for done, held in readings if abs(done - text) <= width]
    return statistics.median(near or [held for done, held in readings if done <= text])


def available_bytes() -> int:
    """The memory that could still be taken, as the machine and the control group allow."""
    return max(0, min(_of_machine(), *_of_groups(), machine.memory_bytes()))


def _of_machine() -> int:
    for line in procfs.read("/proc/meminfo").splitlines():
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) * 1024
    return machine.memory_bytes()


def _of_groups() -> list[int]:
    """What each group's limit leaves. Files that are only cached count as free, for the kernel drops them."""
    left = []
    for directory, version in cgroups.membership(os.getpid()):
        names = cgroups.NAMES[version]
        limit, used = (procfs.read(f"{directory}/{name}").strip() for name in (names.limit, names.used))
        if limit.isdigit() and used.isdigit() and int(limit) < cgroups.UNLIMITED:
            left.append(int(limit) - int(used) + _cached_files(directory, b"total_" if version == 1 else b""))
    return left


def _cached_files(directory: str, prefix: bytes) -> int:
    fields = dict(line.split() for line in procfs.read(f"{directory}/memory.stat").splitlines())
    return sum(int(fields.get(prefix + name, 0)) for name in (b"inactive_file", b"active_file"))
