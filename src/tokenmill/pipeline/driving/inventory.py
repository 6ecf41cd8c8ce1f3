"""Which parts of the store can be used: found before the first unit is started, and again before the manifest."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.outcomes import Executor
from tokenmill.humanize import count
from tokenmill.pipeline.driving.context import RunContext
from tokenmill.pipeline.driving.manifest import ManifestBuilder
from tokenmill.pipeline.driving.schedule import CommittedUnits
from tokenmill.pipeline.planning.open_run import check_parts, remove_parts, with_other_text
from tokenmill.pipeline.unit.part_summaries import ANY_SLICE, InvalidPart
from tokenmill.store import event_log, layout, quarantine
from tokenmill.store.chain import withdraw_manifest
from tokenmill.store.state import read_mismatch, rechecked_checksums
from tokenmill.store.tables import log_run, read_manifest

# How often parts may turn out to be missing or damaged when the manifest is about to be written.
MAX_COLLECTIONS = 5


@dataclass
class PartInventory:
    """Checks parts, removes those that cannot be used, and publishes the manifest.

    `repair` checks the content of every part, and compares its text with the sources. `retry_quarantine` removes the
    parts that have rows in quarantine.
    `recheck` is set when the fast engine has failed an audit: the reference engine has to make or confirm every part.
    """

    context: RunContext
    manifest: ManifestBuilder
    committed: CommittedUnits
    repair: bool = False
    retry_quarantine: bool = False
    recheck: bool = field(default=False, init=False)
    _sizes: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64), init=False)
    _collections: int = field(default=0, init=False)

    def take_stock(self, executor: Executor) -> None:
        """Remove the parts that cannot be used, so that their units are done again.

        Where several drivers share a store, the driver that writes the manifest checks the parts (see `collect`).
        """
        self.check_audit()
        if self._is_complete(executor) or not len(earlier := self.committed.earlier()):
            return
        if self.context.is_shared and not self.repair and not self.retry_quarantine:
            return
        unusable = self._unusable(executor, earlier, with_content=self.repair)
        self._do_again(unusable, "damaged or made from other sources")
        if self.retry_quarantine:
            self._do_again(self.manifest.quarantined_units(), "with rows in quarantine")

    def check_audit(self) -> bool:
        """Distrust every part of the fast engine if it failed an audit in this store, in any driver.

        From then on a unit is done when the reference engine has made its part or found it equal. Returns True if this
        call found out.
        """
        mismatch = None if self.recheck else read_mismatch(self.context.folder)
        if mismatch is None:
            return False
        self.recheck = True
        self.manifest.clear()
        self.committed.restart(recheck=True)
        missing = len(self.committed.missing())
        if missing:
            withdraw_manifest(self.context.folder)
            self.context.events.warn(
                f"{mismatch.engine} failed an audit: {count(missing, 'unit')} compared with "
                f"{self.context.frozen.reference_engine}, and made again where they differ"
            )
        return True

    def collect(self, executor: Executor) -> bool:
        """Complete the manifest from the parts of other calls and drivers; False if units have to be done again."""
        self._collections += 1
        if self.check_audit() and len(self.committed.missing()):
            return False
        if self.context.is_shared and not self.recheck and len(self.manifest.missing()):
            self.manifest.add_from_summaries()
        unusable = self._unusable(executor, self.manifest.missing())
        if not unusable:
            unusable = quarantine.unrecorded(self.context.folder, self.manifest.quarantined_units())
        if not unusable:
            return True
        if self._collections > MAX_COLLECTIONS:
            raise StoreError(
                f"parts of {self.context.folder.root} keep disappearing or changing while the run goes on",
                f"first        unit {unusable[0]}",
                "Find out which process removes or overwrites them, then run the same command again.",
            )
        self._do_again(unusable, "missing, damaged or made from other sources")
        return False

    def publish(self) -> pa.Table:
        """Publish the list of rows in quarantine, then the manifest. `collect` has to have returned True."""
        quarantine.gather(self.context.folder, self.committed.mask())
        return self.manifest.publish(self._sizes)

    def _is_complete(self, executor: Executor) -> bool:
        """Whether the store has a manifest and exactly the parts that it lists; if not, the manifest is removed.

        Parts are compared by size, and by their summaries where no network is involved.
        """
        folder, run, head = self.context.folder, self.context.frozen.run, self.context.frozen.head
        if not folder.exists(layout.MANIFEST):
            return False
        try:
            manifest = head.manifest(read_manifest(folder, run))
        except CorruptStore as error:
            withdraw_manifest(folder)
            reason = (*error.details, error.headline)[0].removeprefix("reason").strip()
            self.context.events.warn(f"the manifest is written again ({reason})")
            return False
        sizes = layout.part_sizes(folder, run.units, head.part_file)
        wrong = np.flatnonzero(sizes != manifest["bytes"].to_numpy()).tolist()
        if not self.context.is_shared or self.repair:
            wrong = sorted({*wrong, *self._unlisted(executor, manifest, np.flatnonzero(sizes >= 0))})
        bad = quarantine.units_to_check(manifest) if not wrong else []
        unrecorded = quarantine.unrecorded(folder, bad, head)
        if not wrong and not unrecorded and not self.repair and not self.retry_quarantine:
            if not quarantine.is_gathered(folder, bad, head):
                quarantine.gather(folder, self.committed.mask(), head)
                self.context.events.warn(f"{quarantine.list_file(head)} was damaged: written again")
            return True
        self._do_again(wrong, "missing, cut off or not the manifest's")
        self._do_again(unrecorded, "whose records of bad rows are lost")
        return False

    def _unlisted(self, executor: Executor, manifest: pa.Table, units: npt.NDArray[np.int64]) -> list[int]:
        """The units whose parts have another checksum in their summary than in the manifest."""
        folder, run = self.context.folder, self.context.frozen.run
        parts = ((unit, ANY_SLICE) for unit in units.tolist())
        checksums, unlisted = manifest["blake3"], list[int]()
        for part in check_parts(self._fan_out(executor), folder, run.job, parts, self.context.frozen.head.version):
            if isinstance(part, InvalidPart) or part.blake3 != checksums[part.unit].as_py():
                unlisted.append(part.unit)
        return sorted(unlisted)

    def _unusable(self, executor: Executor, units: npt.NDArray[np.int64], *, with_content: bool = False) -> list[int]:
        """The units whose parts are damaged, missing, or made from something else; the manifest gets the others."""
        invalid = self.manifest.add_from_parts(self._fan_out(executor), units, content_too=with_content)
        for part in invalid:
            self.context.events.log.add("invalid part", unit=part.unit, reason=part.reason)
        frozen = self.context.frozen
        self._sizes = layout.part_sizes(self.context.folder, frozen.run.units, frozen.head.part_file)
        unusable = {*(part.unit for part in invalid), *self.manifest.truncated(self._sizes)}
        doubtful = np.setdiff1d(units if with_content else self._unrecorded(units), sorted(unusable))
        fan_out, context = self._fan_out(executor), self.context
        unusable |= set(with_other_text(context.folder, context.frozen, context.limits, fan_out, doubtful))
        if self.recheck and not frozen.head.number:  # the reference engine has confirmed these checksums only
            confirmed = rechecked_checksums(context.folder, units, frozen.run.units)
            unusable |= set(self.manifest.unrecorded(units, confirmed).tolist())
        return sorted(unusable)

    def _unrecorded(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The units whose parts the log does not record: made by a driver that was killed just then, or put there."""
        if not len(units):
            return units
        self.context.events.log.flush()
        run = self.context.frozen.run
        recorded = event_log.recorded_parts(self.context.folder, run.units, log_run(run))
        return self.manifest.unrecorded(units, recorded)

    def _fan_out(self, executor: Executor) -> FanOut:
        return FanOut(executor, self.context.report, self.context.workers)

    def _do_again(self, units: list[int], why: str) -> None:
        """Remove the manifest, then the parts of some units, and take these units as missing."""
        if not units:
            return
        remove_parts(self.context.folder, units)
        self.committed.discard(units)
        self.manifest.discard(units)
        named = f"unit {units[0]}" if len(units) == 1 else f"units {units[0]} ... {units[-1]}"
        self.context.events.warn(f"{count(len(units), 'part')} {why} ({named}): made again")
