"""Publishes a heartbeat to the store every few seconds: this driver runs, and how far it is (see store/heartbeats).

Metrics are made from the same records. How the run ended is in the last heartbeat, and in the last line of the log.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

import msgspec

from tokenmill.errors import INTERRUPTED, RunFailed, TokenmillError, exit_code_of
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.ranks import RankShare
from tokenmill.humanize import count
from tokenmill.pipeline.driving.events import RunEvents
from tokenmill.pipeline.driving.metrics import MetricsFile
from tokenmill.storage import Folder
from tokenmill.store import heartbeats, layout
from tokenmill.system import limits
from tokenmill.system.storage_settings import bind

# Rates are averages over this time.
RECENT_SECONDS = 60.0

# Longer headlines are cut.
MAX_HEADLINE = 500
COMPLETE, FAILED, INTERRUPTION = "complete", "failed", "interrupted"


@dataclass
class Heartbeat:
    """Publishes from a thread of its own while its block lasts. The last heartbeat says how the block has ended."""

    folder: Folder
    events: RunEvents
    pool: Pool
    rank_share: RankShare | None
    progress: Callable[[], tuple[int, int]]
    metrics: MetricsFile | None = None
    _was_waiting: bool = field(default=False, init=False)
    _end: heartbeats.EndRecord | None = field(default=None, init=False)
    _ended: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        host, now = socket.gethostname().partition(".")[0] or "host", time.time()
        self._first = heartbeats.HeartbeatRecord(
            driver=f"{int(now * 1000):014d}-{host}-{secrets.token_hex(3)}",
            host=host,
            process=os.getpid(),
            started=now,
            time=now,
            every_seconds=heartbeats.interval_seconds(self.folder),
            rank=self.rank_share.rank if self.rank_share else None,
            of=self.rank_share.of if self.rank_share else None,
        )
        self._recent: deque[tuple[float, int, int]] = deque([(time.monotonic(), 0, 0)])
        self._thread = threading.Thread(target=bind(self._loop), daemon=True)

    def __enter__(self) -> Self:
        self.folder.create(layout.DRIVERS)
        self._thread.start()
        return self

    def __exit__(self, _: object, error: BaseException | None, trace: object) -> None:
        end = self._end = heartbeats.EndRecord(COMPLETE) if error is None else _end_of(error)
        record = {"outcome": end.outcome, "kind": end.kind, "headline": end.headline, "exit_code": end.exit_code}
        advice = {"advice": end.advice} if end.advice else {}
        try:
            with suppress(TokenmillError):  # a failure to record is ignored
                self.events.log.add("end", **record, **advice)
        finally:
            self._ended.set()
            self._thread.join()

    def _loop(self) -> None:
        self._publish(ended=False)
        if not self._first.rank:  # of many ranks, the first one is enough
            with suppress(TokenmillError):  # the next driver tries it again
                heartbeats.prune(self.folder)
        while not self._ended.wait(self._first.every_seconds):
            self._publish(ended=False)
        self._publish(ended=True)

    def _publish(self, *, ended: bool) -> None:
        beat = self._record(ended=ended)
        if beat.waiting and not self._was_waiting:
            waiting = f"{beat.waiting:,} of {count(beat.workers, 'worker')} wait"
            self.events.report.say(f"note: the object store answers that there are too many requests: {waiting}")
        self._was_waiting = bool(beat.waiting)
        with suppress(TokenmillError):  # publishing a part meets the same error, and reports it
            heartbeats.publish(self.folder, beat)
        with suppress(Exception):  # a run does not end because of its metrics
            if self.metrics is not None:
                self.metrics.update(beat)

    def _record(self, *, ended: bool) -> heartbeats.HeartbeatRecord:
        events, step = self.events, self.events.step
        now = time.monotonic()
        self._recent.append((now, step.text_bytes, step.tokens))
        while now - self._recent[0][0] > RECENT_SECONDS and len(self._recent) > 2:
            self._recent.popleft()
        since, text_bytes, tokens = self._recent[0]
        seconds = max(now - since, 1e-3)
        units_done, planned_bytes_done = self.progress()
        return msgspec.structs.replace(
            self._first,
            time=time.time(),
            ended=ended,
            end=self._end if ended else None,
            workers=self.pool.workers,
            waiting=self.pool.waiting,
            nodes=tuple(self.pool.nodes) or (self._first.host,),
            units=step.units,
            tokens=step.tokens,
            text_bytes=step.text_bytes,
            deaths=step.deaths,
            retries=events.retries,
            failures=events.failures,
            bytes_per_second=(step.text_bytes - text_bytes) / seconds,
            tokens_per_second=(step.tokens - tokens) / seconds,
            units_done=units_done,
            planned_bytes_done=planned_bytes_done,
        )


def _end_of(error: BaseException) -> heartbeats.EndRecord:
    code = exit_code_of(error)
    if code == INTERRUPTED:
        return heartbeats.EndRecord(INTERRUPTION, "Interrupted", "interrupted by a signal", code)
    error = error if isinstance(error, TokenmillError) else limits.explained(error) or error
    code = exit_code_of(error)
    headline = error.headline if isinstance(error, TokenmillError) else str(error)
    advice = error.advice if isinstance(error, RunFailed) else ()
    return heartbeats.EndRecord(FAILED, type(error).__name__, _shown(headline), code, tuple(map(_shown, advice)))


def _shown(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()[:MAX_HEADLINE]  # a file name may not be UTF-8
