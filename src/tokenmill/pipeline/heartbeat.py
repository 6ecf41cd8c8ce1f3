"""Tells the store, every few seconds, that this process is at work on it and how far it is (see pulse)."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Self

import msgspec

from tokenmill.errors import TokenmillError
from tokenmill.store import heartbeats, layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenmill.executors.outcomes import Pool
    from tokenmill.pipeline.events import RunEvents
    from tokenmill.pipeline.ranks import RankShare
    from tokenmill.storage import Folder

RECENT_SECONDS = 60.0


class Heartbeat:
    """Beats on a thread of its own while its block lasts; a last beat says that there will be no more."""

    def __init__(
        self,
        folder: Folder,
        chronicle: RunEvents,
        pool: Pool,
        share: RankShare | None,
        progress: Callable[[], tuple[int, int]],
    ) -> None:
        self._folder = folder
        self._progress = progress
        self._chronicle = chronicle
        self._pool = pool
        host, now = socket.gethostname().partition(".")[0] or "host", time.time()
        self._first = heartbeats.HeartbeatRecord(
            driver=f"{int(now * 1000):014d}-{host}-{secrets.token_hex(3)}",
            host=host,
            process=os.getpid(),
            started=now,
            time=now,
            every_seconds=heartbeats.interval_seconds(folder),
            rank=share.rank if share else None,
            of=share.of if share else None,
        )
        self.end: heartbeats.EndRecord | None = None
        """How the work ended, for the last pulse."""
        self._seen: deque[tuple[float, int, int]] = deque([(time.monotonic(), 0, 0)])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Self:
        self._folder.create(layout.DRIVERS)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _beat(self) -> None:
        self._tell(ended=False)
        if not self._first.rank:  # of many ranks, the first one is enough
            self._prune()
        while not self._ended.wait(self._first.every_seconds):
            self._tell(ended=False)
        self._tell(ended=True)

    def _tell(self, *, ended: bool) -> None:
        with suppress(TokenmillError):  # whoever publishes what matters will meet it, too
            heartbeats.publish(self._folder, self._now(ended=ended))

    def _prune(self) -> None:
        with suppress(TokenmillError):  # the next driver tries it again
            heartbeats.prune(self._folder)

    def _now(self, *, ended: bool) -> heartbeats.HeartbeatRecord:
        step, chronicle = self._chronicle.step, self._chronicle
        now = time.monotonic()
        self._seen.append((now, step.text_bytes, step.tokens))
        while now - self._seen[0][0] > RECENT_SECONDS and len(self._seen) > 2:
            self._seen.popleft()
        since, text_bytes, tokens = self._seen[0]
        seconds = max(now - since, 1e-3)
        units_done, planned_bytes_done = self._progress()
        return msgspec.structs.replace(
            self._first,
            time=time.time(),
            ended=ended,
            end=self.end if ended else None,
            workers=self._pool.workers,
            nodes=tuple(self._pool.nodes) or (self._first.host,),
            units=step.units,
            tokens=step.tokens,
            text_bytes=step.text_bytes,
            deaths=step.deaths,
            retries=chronicle.retries,
            failures=chronicle.failures,
            bytes_per_second=(step.text_bytes - text_bytes) / seconds,
            tokens_per_second=(step.tokens - tokens) / seconds,
            units_done=units_done,
            planned_bytes_done=planned_bytes_done,
        )
