"""Which unit is next, and which units have a part, made here or by another driver of the same store."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tokenmill.executors.ranks import SHARED_LISTING_SECONDS, DoneListing
from tokenmill.pipeline.driving.context import RunContext
from tokenmill.pipeline.driving.isolation import Isolation
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.store import layout
from tokenmill.store.state import rechecked_units

# How often the parts are listed while no other driver was seen.
LISTING_SECONDS = 30.0


class CommittedUnits:
    """Which units have a part. While the store is suspect, only parts count that the reference engine confirmed."""

    def __init__(self, context: RunContext, isolation: Isolation) -> None:
        self._context = context
        self._isolation = isolation
        self._planned_bytes: npt.NDArray[np.int64] = context.frozen.plan["text_bytes"].to_numpy()
        self._total_bytes = int(self._planned_bytes.sum())
        self._in_flight: set[int] = set()
        self._seen_in_flight: set[int] = set()
        self._listing = DoneListing(self._list)
        self.restart(recheck=False)

    def restart(self, *, recheck: bool) -> None:
        """Take as committed what the store holds, and nothing else; with `recheck`, only what was rechecked."""
        self._recheck = recheck
        self._is_committed = self._list()
        self._is_earlier = self._is_committed.copy()
        self._planned_bytes_done = 0

    def __getitem__(self, unit: int) -> bool:
        return bool(self._is_committed[unit])

    def mask(self) -> npt.NDArray[np.bool_]:
        """For each unit, whether it has a part."""
        return self._is_committed.copy()

    def missing(self) -> npt.NDArray[np.int64]:
        """The units without a part, in order."""
        return np.flatnonzero(~self._is_committed)

    def earlier(self) -> npt.NDArray[np.int64]:
        """The units whose parts this call has not made, in order."""
        return np.flatnonzero(self._is_earlier)

    def progress(self) -> tuple[int, int]:
        """The units with a part, as far as this driver knows, and the bytes that were planned for them.

        Heartbeats ask from another thread. NumPy writes beyond its result if the mask changes while it is used, so this
        uses a copy.
        """
        is_committed = self.mask()
        return int(is_committed.sum()), int(self._planned_bytes[is_committed].sum())

    def planned_bytes_left(self) -> int:
        """The planned bytes of all units but those that were committed since the start."""
        return self._total_bytes - self._planned_bytes_done

    def start(self, unit: int) -> None:
        """A worker gets this unit."""
        self._in_flight.add(unit)

    def stop(self, unit: int) -> None:
        """No worker has this unit any more."""
        self._in_flight.discard(unit)

    def commit(self, task: UnitTask) -> None:
        """A worker has made or found the part of this unit."""
        self._is_committed[task.unit] = True
        self._planned_bytes_done += task.text_bytes

    def discard(self, units: list[int]) -> None:
        """The parts of these units were removed."""
        self._is_committed[units] = False
        self._is_earlier[units] = False

    def list_if_due(self, interval: float, *, with_in_flight: bool = False) -> None:
        """List the parts if that was not done within `interval` seconds, or longer if listing is slow."""
        if self._listing.is_due(interval):
            self.list_parts(with_in_flight=with_in_flight)

    def list_parts(self, *, with_in_flight: bool = False) -> None:
        """Find the units that other drivers have committed.

        A part of a unit in flight may be this driver's own, whose outcome has not arrived yet. With `with_in_flight` it
        counts as another driver's when a second listing finds it and there is still no outcome.
        """
        there = self._listing()
        new = np.flatnonzero(there & ~self._is_committed)
        in_flight = self._in_flight.intersection(new.tolist())
        new = np.setdiff1d(new, list(in_flight - self._seen_in_flight if with_in_flight else in_flight))
        self._seen_in_flight = in_flight
        self._is_committed[new] = self._is_earlier[new] = True
        self._isolation.remove(unit.task.unit for unit in self._isolation.waiting() if there[unit.task.unit])
        text_bytes = int(self._planned_bytes[new].sum())
        self._planned_bytes_done += text_bytes
        self._context.report.advance(text_bytes, self._context.events.step)

    def _list(self) -> npt.NDArray[np.bool_]:
        folder, units = self._context.folder, self._context.frozen.run.units
        done = layout.committed_units(folder, units)
        return done & rechecked_units(folder, units) if self._recheck else done


@dataclass
class Schedule:
    """The order in which units are started.

    Where other drivers may work on the same store, each driver starts somewhere else and skips what others committed.
    """

    context: RunContext
    committed: CommittedUnits
    _all_dispatched: bool = field(default=False, init=False)
    saw_other_driver: bool = field(default=False, init=False)

    def tasks(self, units: npt.NDArray[np.int64], should_stop: Callable[[], bool]) -> Iterator[UnitTask]:
        """The tasks of some units in the order in which to start them, until `should_stop` returns True."""
        self._all_dispatched = False
        frozen = self.context.frozen
        for task in plan.tasks(frozen.plan, frozen.sources, self._order(units)):
            if should_stop():
                return
            self.committed.start(task.unit)
            yield task
        self._all_dispatched = True

    def is_done_elsewhere(self) -> bool:
        """Whether other drivers have committed all that is still in flight here, so that waiting is useless."""
        if not self.context.is_shared or not self._all_dispatched:
            return False
        self.committed.list_if_due(SHARED_LISTING_SECONDS, with_in_flight=True)
        return not len(self.committed.missing())

    def _order(self, units: npt.NDArray[np.int64]) -> Iterable[int]:
        if not self.context.is_shared:
            return map(int, units)
        if self.context.rank_share is None:
            return self._from_random_unit(units)
        return self.context.rank_share.order(units, self.committed.mask(), self._list_committed)

    def _list_committed(self) -> npt.NDArray[np.bool_]:
        self.committed.list_parts()
        return self.committed.mask()

    def _from_random_unit(self, units: npt.NDArray[np.int64]) -> Iterator[int]:
        """The units in order from a random one on, for drivers that are not ranks.

        When this driver meets a unit that another driver just committed, it jumps to a random unit; otherwise both
        would keep working on neighboring units.
        """
        self.saw_other_driver = True
        while len(units):
            self.committed.list_if_due(SHARED_LISTING_SECONDS if self.saw_other_driver else LISTING_SECONDS)
            if self.saw_other_driver:
                units = units[~self.committed.mask()[units]]
                units = np.roll(units, -secrets.randbelow(max(len(units), 1)))
                self.saw_other_driver = False
                continue
            unit, units = int(units[0]), units[1:]
            if not self.committed[unit]:
                yield unit
