"""Kills: what a pipeline does when one of its workers, or its parent, gets SIGKILL in the middle of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import Any

from benchmarks.peers import outputs
from benchmarks.peers.contest import Entry, Setting, last_line, log_of, ready, started
from benchmarks.peers.orphans import descendants

TICKS = os.sysconf("SC_CLK_TCK")
SILENT_SECONDS = 60
SILENT_CORES = 0.05
ORPHAN_SECONDS = 5
MIN_WORKER_SECONDS = 0.5
# Of the usual time, when most pipelines are between their start and their last step.
MOMENT = 0.5
# What is recorded of a run that was faster than the timed ones, so that there was nothing left to kill.
ENDED_FIRST: dict[str, Any] = {"ended_first": True}


def kill_all(entries: list[Entry], setting: Setting) -> None:
    """Kill a worker of each pipeline that writes its tokens, then, in another run, its parent."""
    for entry in entries:
        if not entry.failure and not entry.pipeline.bare:
            entry.kills = {"worker": kill_worker(entry, setting), "parent": kill_parent(entry, setting)}
            print(f"kills  {entry.pipeline.title}: {entry.kills}", file=sys.stderr, flush=True)


def kill_worker(entry: Entry, setting: Setting) -> dict[str, Any] | None:
    """Kill the descendant that has used most CPU time, and watch the rest; None if it has no other process."""
    command, variables, out = ready(entry, setting, entry.work, keep=True)
    with started(command, setting, variables) as process:
        if _has_ended(process, entry.best_seconds * MOMENT):
            return ENDED_FIRST
        workers = [pid for pid in descendants() if pid != process.pid and _cpu_seconds([pid]) > MIN_WORKER_SECONDS]
        if not workers:
            return None
        os.kill(max(workers, key=lambda pid: _cpu_seconds([pid])), signal.SIGKILL)
        end = _watch(process, setting.limit_seconds)
    return end | {"message": last_line(log_of(setting)), "tokens_are": _tokens(entry, out)}


def kill_parent(entry: Entry, setting: Setting) -> dict[str, Any]:
    """Kill the process that was started, look at what goes on without it, and run the same command again."""
    command, variables, out = ready(entry, setting, entry.work, keep=True)
    with started(command, setting, variables) as process:
        if _has_ended(process, entry.best_seconds * MOMENT):
            return ENDED_FIRST
        process.kill()
        process.wait()
        time.sleep(1)
        used = _cpu_seconds(descendants())
        time.sleep(ORPHAN_SECONDS)
        left = descendants()
        orphans = {"orphans": len(left), "orphans_cores": max(0.0, _cpu_seconds(left) - used) / ORPHAN_SECONDS}
    partial = _tokens(entry, out)
    began = time.perf_counter()
    with started(command, setting, variables) as process:
        end = _watch(process, setting.limit_seconds)
    seconds = time.perf_counter() - began
    message = last_line(log_of(setting)) if end["exit_code"] else ""
    again = end | {"seconds": seconds, "message": message, "tokens_are": _tokens(entry, out)}
    return orphans | {"tokens_are": partial, "usual_seconds": entry.best_seconds, "again": again}


def _has_ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether a process ends within some seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    return process.returncode is not None


def _watch(process: subprocess.Popen[bytes], limit_seconds: float) -> dict[str, Any]:
    """Its exit code and seconds to that; or no exit code, and the seconds in which nothing used the processor."""
    began = time.perf_counter()
    quiet_since, quiet_used = began, _cpu_seconds(descendants())
    while (now := time.perf_counter()) - began < limit_seconds:
        if _has_ended(process, 1):
            return {"exit_code": process.returncode, "seconds": time.perf_counter() - began, "silent": False}
        used = _cpu_seconds(descendants())
        if used < quiet_used or used - quiet_used > SILENT_CORES * max(now - quiet_since, 10):
            quiet_since, quiet_used = now, used
        if now - quiet_since > SILENT_SECONDS:
            return {"exit_code": None, "seconds": now - began, "silent": True}
    return {"exit_code": None, "seconds": limit_seconds, "silent": False}


def _cpu_seconds(pids: list[int]) -> float:
    """The CPU time of processes."""
    ticks = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
            ticks += sum(map(int, file.read().rpartition(b")")[2].split()[11:13]))
    return ticks / TICKS


def _tokens(entry: Entry, out: str) -> str:
    """What the files that a run left behind hold."""
    try:
        found = outputs.find(entry.pipeline.layout, out)
        return found.verdict(entry.work.expected) if found.tokens else "none"
    except Exception as error:  # noqa: BLE001 - files that were not finished fail in any way
        return f"not readable ({type(error).__name__})"
