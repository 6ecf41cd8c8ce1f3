"""How far a run is, read from its directory alone: also while it goes on in another process or on another machine."""

from __future__ import annotations

import msgspec
import numpy as np

from tokenmill import layout, logbook, pulse
from tokenmill.exports import records
from tokenmill.exports.job import MANIFEST, PLAN, exports_in
from tokenmill.exports.shards import SCHEMA
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.damage import Damage, decode

KILLED = pulse.End("killed", headline="no end is recorded: it was killed, or its machine was lost", exit_code=None)


class _LastEvent(msgspec.Struct):
    """What is read of the last line of a log."""

    event: str
    outcome: str = ""
    kind: str = ""
    headline: str = ""
    exit_code: int | None = None


class Status(msgspec.Struct, frozen=True):
    """A run's state. `process` is the one that writes to the store now, if any, or its machine.

    Drivers are the processes that give out work; rates, retries, deaths and failures are of those that are at work now,
    or of the last one that was, since they were started. `end` is how that one ended, if the run is stopped.
    """

    directory: str
    state: str
    process: int | str | None
    tokenizer: str
    begin_token: int | None
    end_token: int | None
    sources: int
    units: int
    limit_units: int | None
    units_done: int
    planned_bytes: int
    planned_bytes_done: int
    tokens: int | None
    documents: int | None
    skipped_rows: int | None
    quarantined: int | None
    bytes_per_second: float | None
    tokens_per_second: float | None
    seconds_left: float | None
    drivers: int
    nodes: int
    workers: int
    retries: int
    deaths: int
    failures: int
    exports: dict[str, str]
    end: pulse.End | None = None


def status(directory: str) -> Status:
    """Look at a run without disturbing it."""
    folder = folder_at(directory)
    run = layout.require_run(folder)
    text_bytes = layout.read_planned_bytes(folder, run)
    committed = layout.committed_units(folder, run.units)
    complete = folder.exists(layout.MANIFEST)
    holder = folder.at_work(layout.LOCK)
    pulses = pulse.read(folder)
    anybody = holder is not None or folder.is_remote  # a disk that nobody holds has ranks at work, if anybody
    at_work = [] if complete else [each for each in pulses if each.is_alive and (anybody or each.of)]
    done = int(text_bytes[committed].sum())
    totals = _totals(folder, run) if complete else {}
    running = not complete and bool(holder or at_work)
    rate = sum(each.bytes_per_second for each in at_work) if running else None
    latest = at_work or pulses[-1:]
    return Status(
        directory=folder.root,
        state="complete" if complete else "running" if running else "stopped",
        process=_process(holder, at_work) if running else None,
        tokenizer=run.job.tokenizer.name,
        begin_token=run.job.begin,
        end_token=run.job.end,
        sources=run.sources,
        units=run.units,
        limit_units=run.job.limit_units,
        units_done=int(committed.sum()),
        planned_bytes=int(text_bytes.sum()),
        planned_bytes_done=done,
        tokens=totals.get("tokens"),
        documents=totals.get("documents"),
        skipped_rows=totals.get("skipped"),
        quarantined=totals.get("quarantined"),
        bytes_per_second=rate,
        tokens_per_second=sum(each.tokens_per_second for each in at_work) if running else None,
        seconds_left=(int(text_bytes.sum()) - done) / rate if rate else None,
        drivers=len(at_work),
        nodes=len({node for each in at_work for node in each.nodes}),
        workers=sum(each.workers for each in at_work),
        retries=sum(each.retries for each in latest),
        deaths=sum(each.deaths for each in latest),
        failures=sum(each.failures for each in latest),
        exports={name: _export_state(folder_at(folder.path(name))) for name in exports_in(folder)},
        end=None if complete or running else _end(folder, pulses),
    )


def _end(folder: Folder, pulses: list[pulse.Pulse]) -> pulse.End | None:
    """How the process ended that was last at work. A full disk has no room for its last pulse, but for a line."""
    if not pulses:
        return None
    last = max(pulses, key=lambda each: each.time)
    if last.end is not None:
        return last.end
    try:
        line = decode(logbook.last_line(folder, last.rank), _LastEvent)
    except Damage:
        return KILLED
    return pulse.End(line.outcome, line.kind, line.headline, line.exit_code) if line.event == "end" else KILLED


def _process(holder: str | None, at_work: list[pulse.Pulse]) -> int | str | None:
    """The process that holds the store, or the machines that work on it."""
    if holder is not None:
        return int(holder) if holder.isdigit() else holder
    return ", ".join(sorted({each.host for each in at_work})) or None


def _export_state(export: Folder) -> str:
    if export.exists(MANIFEST):
        return "complete"
    if not export.exists(PLAN):
        return "not planned yet"
    shards = len(layout.read_table(export, PLAN, schema=SCHEMA))
    return f"{records.committed(export, shards).sum():,} of {shards:,} shards"


def _totals(folder: Folder, run: layout.Run) -> dict[str, int]:
    manifest = layout.require_manifest(folder, run)
    return {name: int(np.sum(manifest[name].to_numpy())) for name in ("documents", "tokens", "skipped", "quarantined")}
