"""Which parts of the store can be used: found before the first unit is started, and again before the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.executors.fan_out import FanOut
from tokenmill.humanize import count
from tokenmill.pipeline.adoption import check_parts, remove_parts
from tokenmill.pipeline.check_parts import ANY_SLICE, InvalidPart
from tokenmill.store import layout, quarantine

if TYPE_CHECKING:
    import numpy.typing as npt
    import pyarrow as pa

    from tokenmill.executors.outcomes import Executor
    from tokenmill.pipeline.context import RunContext
    from tokenmill.pipeline.manifest import ManifestBuilder
    from tokenmill.pipeline.schedule import CommittedUnits

# How often parts may turn out to be missing or damaged when the manifest is about to be written.
MAX_COLLECTIONS = 5


class PartInventory:
    """Checks parts, removes those that cannot be used, and publishes the manifest.

    `repair` checks the content of every part. `retry_quarantine` removes the parts that have rows in quarantine.
    """

    def __init__(
        self,
        context: RunContext,
        manifest: ManifestBuilder,
        committed: CommittedUnits,
        *,
        repair: bool = False,
        retry_quarantine: bool = False,
    ) -> None:
        self._context = context
        self._manifest = manifest
        self._committed = committed
        self._repair = repair
        self._retry_quarantine = retry_quarantine
        self._sizes = np.zeros(0, np.int64)
        self._collections = 0
        self._recheck = False

    @property
    def recheck(self) -> bool:
        """Whether the reference engine has to make or confirm every part, because the fast engine failed an audit."""
        return self._recheck

    def take_stock(self, executor: Executor) -> None:
        """Remove the parts that cannot be used, so that their units are done again.

        Where several drivers share a store, the driver that writes the manifest checks the parts (see `collect`).
        """
        self.check_audit()
        if self._is_complete(executor) or not len(earlier := self._committed.earlier()):
            return
        if self._context.is_shared and not self._repair and not self._retry_quarantine:
            return
        unusable = self._unusable(executor, earlier, with_content=self._repair)
        self._do_again(unusable, "damaged or made from other sources")
        if self._retry_quarantine:
            self._do_again(self._manifest.quarantined_units(), "with rows in quarantine")

    def check_audit(self) -> bool:
        """Distrust every part of the fast engine if it failed an audit in this store, in any driver.

        From then on a unit is done when the reference engine has made its part or found it equal. Returns True if this
        call found out.
        """
        mismatch = None if self._recheck else layout.read_mismatch(self._context.folder)
        if mismatch is None:
            return False
        self._recheck = True
        self._manifest.clear()
        self._committed.restart(recheck=True)
        missing = len(self._committed.missing())
        if missing:
            layout.withdraw_manifest(self._context.folder)
            self._context.events.warn(
                f"{mismatch.engine} failed an audit: {count(missing, 'unit')} compared with "
                f"{self._context.frozen.reference_engine}, and made again where they differ"
            )
        return True

    def collect(self, executor: Executor) -> bool:
        """Complete the manifest from the parts of other calls and drivers; False if units have to be done again."""
        self._collections += 1
        if self.check_audit() and len(self._committed.missing()):
            return False
        unusable = self._unusable(executor, self._manifest.missing())
        if not unusable:
            return True
        if self._collections > MAX_COLLECTIONS:
            raise StoreError(
                f"parts of {self._context.folder.root} keep disappearing or changing while the run goes on",
                f"first        unit {unusable[0]}",
                "Find out which process removes or overwrites them, then run the same command again.",
            )
        self._do_again(unusable, "missing, damaged or made from other sources")
        return False

    def publish(self) -> pa.Table:
        """Publish the list of rows in quarantine, then the manifest. `collect` has to have returned True."""
        quarantine.gather(self._context.folder, self._committed.mask())
        return self._manifest.publish(self._sizes)

    def _is_complete(self, executor: Executor) -> bool:
        """Whether the store has a manifest and exactly the parts that it lists; if not, the manifest is removed.

        Parts are compared by size, and by their summaries where no network is involved.
        """
        folder, run = self._context.folder, self._context.frozen.run
        if not folder.exists(layout.MANIFEST):
            return False
        try:
            manifest = layout.require_manifest(folder, run)
        except CorruptStore:
            layout.withdraw_manifest(folder)
            self._context.events.warn("the manifest is damaged: it is written again")
            return False
        sizes = layout.part_sizes(folder, run.units)
        listed = manifest["bytes"].to_numpy() if "bytes" in manifest.column_names else np.maximum(sizes, 0)
        wrong = np.flatnonzero(sizes != listed).tolist()
        if not self._context.is_shared or self._repair:
            wrong = sorted({*wrong, *self._unlisted(executor, manifest, np.flatnonzero(sizes >= 0))})
        if not wrong and not self._repair and not self._retry_quarantine:
            return True
        if run.format < layout.FORMAT:
            raise StoreError(
                f"{folder.root} is a store of format {run.format}, and cannot be changed",
                *([f"missing      {count(len(wrong), 'part')}, the first is unit {wrong[0]}"] if wrong else []),
                "Prepare it again with another --out.",
            )
        self._do_again(wrong, "missing, cut off or not the manifest's")
        return False

    def _unlisted(self, executor: Executor, manifest: pa.Table, units: npt.NDArray[np.int64]) -> list[int]:
        """The units whose parts have another checksum in their summary than in the manifest."""
        parts = ((unit, ANY_SLICE) for unit in units.tolist())
        summaries = check_parts(self._fan_out(executor), self._context.folder, self._context.frozen.run.job, parts)
        checksums = manifest["sha256"]
        return sorted(
            part.unit
            for part in summaries
            if isinstance(part, InvalidPart) or part.sha256 != checksums[part.unit].as_py()
        )

    def _unusable(self, executor: Executor, units: npt.NDArray[np.int64], *, with_content: bool = False) -> list[int]:
        """The units whose parts are damaged, missing, or made from something else; the manifest gets the others."""
        invalid = self._manifest.add_from_parts(self._fan_out(executor), units, content_too=with_content)
        for part in invalid:
            self._context.events.log("invalid part", unit=part.unit, reason=part.reason)
        self._sizes = layout.part_sizes(self._context.folder, self._context.frozen.run.units)
        return sorted({*(part.unit for part in invalid), *self._manifest.truncated(self._sizes)})

    def _fan_out(self, executor: Executor) -> FanOut:
        return FanOut(executor, self._context.report, self._context.workers)

    def _do_again(self, units: list[int], why: str) -> None:
        """Remove the manifest, then the parts of some units, and take these units as missing."""
        if not units:
            return
        remove_parts(self._context.folder, units)
        self._committed.discard(units)
        self._manifest.discard(units)
        named = f"unit {units[0]}" if len(units) == 1 else f"units {units[0]} ... {units[-1]}"
        self._context.events.warn(f"{count(len(units), 'part')} {why} ({named}): made again")
