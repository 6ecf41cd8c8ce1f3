"""Measures the memory of a worker and the available memory."""

from __future__ import annotations

import itertools
import math
import os
import statistics
from dataclasses import dataclass

from tokenmill.system import cgroups, machine, procfs

# With fewer readings, growth cannot be checked for steadiness.
STEADY_READINGS = 64
# The text is divided into this many steps, to compare their growth.
STEPS = 16
LARGE_GROWTH_BYTES = 64 << 20
MIN_GROWTH_BYTES = 2 << 20
# Below this power the growth flattens out, and no sample is long enough to predict the final size.
MIN_POWER = 0.5


def own_peak_bytes() -> int:
    """Returns the peak of the memory that this process shares with no other."""
    lines = procfs.read("/proc/self/smaps_rollup").splitlines()
    own = sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(b"Private_Dirty:"))
    if not own:
        return machine.resident_bytes()
    status = procfs.status(os.getpid())
    return own + max(0, procfs.number(status, b"VmHWM") - procfs.number(status, b"VmRSS")) * 1024


def held_bytes(pid: int) -> int:
    """Returns the memory of a process without mapped files."""
    return procfs.held_bytes(procfs.status(pid))


@dataclass(frozen=True, slots=True)
class Growth:
    """How memory grows with text.

    `rate` is the bytes of memory per byte of text in the second half; memory grows with text ** `power`. The power is 1
    for a list of all texts, and about 0.75 for a cache of words, because new words become rarer.
    """

    rate: float
    power: float


NO_GROWTH = Growth(0.0, 1.0)


def growth(readings: list[tuple[int, int]]) -> Growth:
    """Returns the growth in readings of (text bytes, memory bytes).

    Only steady growth counts, not a table that doubles occasionally or memory that is allocated once.
    """
    end = readings[-1][0]
    if len(readings) < STEADY_READINGS:  # sampling stopped early, because memory grew by so much
        grown = readings[-1][1] - readings[len(readings) // 2][1]
        return Growth(2 * grown / end, 1.0) if grown > LARGE_GROWTH_BYTES else NO_GROWTH
    held = [_held_at(readings, end * step / STEPS) for step in range(STEPS + 1)]
    steps = [after - before for before, after in itertools.pairwise(held)]
    early, late = (statistics.median(part) for part in (steps[STEPS // 4 : STEPS // 2], steps[STEPS // 2 :]))
    if late * STEPS / 2 < MIN_GROWTH_BYTES:
        return NO_GROWTH
    power = 1 + math.log2(late / max(early, 1))  # the middle of the late part has twice as much text
    return Growth(late * STEPS / end, min(power, 1.0)) if power > MIN_POWER else NO_GROWTH


def text_until(room_bytes: float, text_bytes: int, grown: Growth) -> float:
    """Returns how much text a process can read until it has grown by `room_bytes`, if its growth continues."""
    last_half = grown.rate * text_bytes / 2
    times = (1 + room_bytes * (1 - 0.5**grown.power) / last_half) ** (1 / grown.power)
    return float(text_bytes * times)


def _held_at(readings: list[tuple[int, int]], text: float) -> float:
    """Returns the memory after about `text` bytes of text."""
    width = readings[-1][0] / 20
    near = [held for done, held in readings if abs(done - text) <= width]
    return statistics.median(near or [held for done, held in readings if done <= text])


def available_bytes() -> int:
    """Returns the memory that can still be allocated on this machine and in its control groups."""
    return max(0, min(_machine_available_bytes(), *_group_available_bytes(), machine.memory_bytes()))


def _machine_available_bytes() -> int:
    for line in procfs.read("/proc/meminfo").splitlines():
        if line.startswith(b"MemAvailable:"):
            return int(line.split()[1]) * 1024
    return machine.memory_bytes()


def _group_available_bytes() -> list[int]:
    """Returns what the limit of each group leaves. Cached files count as free, because the kernel drops them."""
    available = []
    for directory, version in cgroups.membership(os.getpid()):
        names = cgroups.NAMES[version]
        limit, used = (procfs.read(f"{directory}/{name}").strip() for name in (names.limit, names.used))
        if limit.isdigit() and used.isdigit() and int(limit) < cgroups.UNLIMITED:
            available.append(int(limit) - int(used) + _cached_files(directory, b"total_" if version == 1 else b""))
    return available


def _cached_files(directory: str, prefix: bytes) -> int:
    fields = dict(line.split() for line in procfs.read(f"{directory}/memory.stat").splitlines())
    return sum(int(fields.get(prefix + name, 0)) for name in (b"inactive_file", b"active_file"))
