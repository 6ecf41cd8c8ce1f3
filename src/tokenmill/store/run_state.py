"""Read the state of a run from its directory, while other processes and machines may work on it."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.storage import Folder
from tokenmill.store import heartbeats, layout, tables
from tokenmill.store.heartbeats import EndRecord, HeartbeatRecord, last_end
from tokenmill.store.job import Run
from tokenmill.store.state import is_suspect


@dataclass(frozen=True, slots=True)
class RunState:
    """A run at one moment. `active` are the drivers at work, and `latest` the same or else the last driver.

    `name` is complete, damaged, running or stopped. A damaged store has a manifest that lists missing parts.
    `process` is the one that holds the store's lock, or else the hosts of the active drivers.
    """

    name: str
    process: int | str | None
    units_done: int
    planned_bytes_done: int
    active: list[HeartbeatRecord]
    latest: list[HeartbeatRecord]
    end: EndRecord | None


class RunWatcher:
    """Reads the state of a run again and again, and reads what cannot change only once.

    In a bucket, while drivers are at work, a read takes one listing of `drivers/` and the object of each driver.
    """

    def __init__(self, folder: Folder, run: Run) -> None:
        self.folder = folder
        self.run = run
        self._heartbeats: dict[str, HeartbeatRecord] = {}
        self._is_first_read = True
        self._done: tuple[int, int] | None = None

    def read(self) -> RunState:
        """The state of the run now."""
        self._heartbeats = heartbeats.read(self.folder, self._heartbeats)
        beats = list(self._heartbeats.values())
        alive = [beat for beat in beats if beat.is_alive]
        is_complete = self._is_complete(has_drivers=bool(alive))
        holder = self.folder.locks.holder(layout.LOCK)
        if holder is None and not self.folder.is_remote:
            alive = [beat for beat in alive if beat.of]  # on a disk, only ranks work without an exclusive lock
        active = [] if is_complete else alive
        units_done, planned_bytes_done = self._committed(active)
        self._is_first_read = False
        if is_complete:
            name = "complete" if units_done == self.run.units else "damaged"
        else:
            name = "running" if holder or active else "stopped"
        return RunState(
            name=name,
            process=_process(holder, active) if name == "running" else None,
            units_done=units_done,
            planned_bytes_done=planned_bytes_done,
            active=active,
            latest=active or beats[-1:],
            end=last_end(self.folder, beats) if name == "stopped" else None,
        )

    def _is_complete(self, *, has_drivers: bool) -> bool:
        """Whether the manifest exists. In a bucket with active drivers, only the first read asks for it."""
        if not self._is_first_read and self.folder.is_remote and has_drivers:
            return False
        return self.folder.exists(layout.MANIFEST) and not is_suspect(self.folder, self.run)

    def _committed(self, active: list[HeartbeatRecord]) -> tuple[int, int]:
        """The number of units that have a part, and the bytes planned for them.

        In a bucket, active drivers publish both numbers, some seconds late. The first read lists the parts, too.
        """
        published = [beat.done for beat in active if self.folder.is_remote and beat.done is not None]
        if not published:
            committed = layout.committed_units(self.folder, self.run.units)
            is_all = bool(committed.all())
            return int(committed.sum()), self.run.text_bytes if is_all else int(self._planned_bytes[committed].sum())
        units, size = max(published)
        if self._done is None:
            listed = int(layout.committed_units(self.folder, self.run.units).sum())
            # Units that no driver has counted yet get the mean size of the rest, so that the plan is not read.
            more = max(listed - units, 0) * (self.run.text_bytes - size) // max(self.run.units - units, 1)
            self._done = listed, size + more
        self._done = max(self._done, (units, size))
        return self._done

    @functools.cached_property
    def _planned_bytes(self) -> npt.NDArray[np.int64]:
        return tables.read_planned_bytes(self.folder, self.run)


def _process(holder: str | None, active: list[HeartbeatRecord]) -> int | str | None:
    if holder is not None:
        return int(holder) if holder.isdigit() else holder
    return ", ".join(sorted({beat.host for beat in active})) or None
