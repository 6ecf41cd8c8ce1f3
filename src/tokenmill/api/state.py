"""How far a run is, read from its directory alone: also while it goes on in another process or on another machine."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from typing import Annotated

import msgspec
import numpy as np

from tokenmill import layout
from tokenmill.exports import records
from tokenmill.exports.job import MANIFEST, PLAN, exports_in
from tokenmill.exports.shards import SCHEMA
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.damage import Damage, decode

RECENT_SECONDS = 60.0
LOG_TAIL_BYTES = 1 << 20


class Status(msgspec.Struct, frozen=True):
    """A run's state. `process` is the one that writes to the store now, if any, or its machine."""

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
    deaths: int
    failures: int
    exports: dict[str, str]


def status(directory: str) -> Status:
    """Look at a run without disturbing it."""
    folder = folder_at(directory)
    run = layout.require_run(folder)
    text_bytes = layout.read_plan(folder, run)["text_bytes"].to_numpy()
    committed = layout.committed_units(folder, run.units)
    complete = folder.exists(layout.MANIFEST)
    process = folder.at_work(layout.LOCK, layout.LOG)
    done = int(text_bytes[committed].sum())
    log = _Log(folder)
    totals = _totals(folder, run) if complete else {}
    running = process is not None and not complete
    rate = log.bytes_per_second if running else None
    return Status(
        directory=folder.root,
        state="complete" if complete else "running" if running else "stopped",
        process=int(process) if process is not None and process.isdigit() else process,
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
        tokens_per_second=log.tokens_per_second if running else None,
        seconds_left=(int(text_bytes.sum()) - done) / rate if rate else None,
        deaths=log.deaths,
        failures=log.failures,
        exports={name: _export_state(folder_at(folder.path(name))) for name in exports_in(folder)},
    )


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


class _Log:
    """The end of a run's log: the rate of the last minute, and what went wrong since the run was last started."""

    def __init__(self, folder: Folder) -> None:
        events = list(_events(folder))
        starts = [place for place, event in enumerate(events) if event.event == "start"]
        session = events[starts[-1] :] if starts else events
        self.deaths = sum(event.event == "death" for event in session)
        self.failures = sum(event.event == "failure" for event in session)
        now = time.time()
        recent = [event for event in session if event.event == "unit" and event.time > now - RECENT_SECONDS]
        begin = max(session[0].time, now - RECENT_SECONDS) if session else now
        seconds = now - begin if now > begin else math.inf  # a clock that was set back tells no rate
        self.bytes_per_second = sum(event.text_bytes for event in recent) / seconds
        self.tokens_per_second = sum(event.tokens for event in recent) / seconds


class _Event(msgspec.Struct):
    """What is looked at in a line of the log."""

    event: str
    time: Annotated[float, msgspec.Meta(ge=0, le=1e12)]
    text_bytes: Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))] = 0
    tokens: Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))] = 0


def _events(folder: Folder) -> Iterator[_Event]:
    """The last events. A line that is none is left out: the log is for people, and nothing depends on it."""
    for line in _tail(folder):
        with contextlib.suppress(Damage):
            yield decode(line, _Event)


def _tail(folder: Folder) -> list[bytes]:
    """The last whole lines of the log."""
    data = folder.appended(layout.LOG, LOG_TAIL_BYTES)
    lines = data.split(b"\n")
    return [line for line in lines[0 if len(data) < LOG_TAIL_BYTES else 1 : -1] if line]
