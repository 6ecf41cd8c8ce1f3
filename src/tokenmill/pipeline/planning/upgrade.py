"""Upgrade a complete store of format 5: its parts get the fields of the current format, and keep their tokens.

A part gets the digest of its slice and its XXH3. It gets no hash of its text, because that would need the sources. The
upgrade is a change of the store like an erasure, so exports and states of loaders stay valid.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.errors import CorruptStore
from tokenmill.executors.fan_out import FanOut
from tokenmill.pipeline.planning.freeze import load_existing
from tokenmill.pipeline.unit.plan import SliceDigests
from tokenmill.storage import Folder, folder_at
from tokenmill.store import layout, quarantine, tables
from tokenmill.store.erasing import ErasingMark, publish_mark, remove_mark
from tokenmill.store.job import LATEST_STORE_FORMAT, OLDEST_STORE_FORMAT, Run, StoreChange
from tokenmill.store.manifest import parts_digest, publish_manifest, read_manifest, require_manifest
from tokenmill.store.part import PartSummary, corrupt, open_part, part_name, publish_part
from tokenmill.store.part_checksum import checksum, with_checksum
from tokenmill.store.run import run_record


@dataclass(frozen=True, slots=True)
class UpgradePart:
    """The function that upgrades one part, or only checks it. Repeating it changes nothing."""

    directory: str
    only_check: bool

    def __call__(self, item: tuple[int, str, str]) -> tuple[int, str, str, int]:
        """Take a unit, the checksum of its part before, and its slice; return the unit, both checksums and the size."""
        unit, sha256, slice_digest = item
        folder = folder_at(self.directory)
        found, content = open_part(folder, unit)
        before = msgspec.structs.replace(found, sha256=sha256, slice="", xxh3="")
        if checksum(content, before) != sha256:
            raise corrupt(folder, unit, "it is not the part that the manifest lists")
        after = with_checksum(msgspec.structs.replace(before, slice=slice_digest), content)
        if after != found and not self.only_check:
            if before.quarantined_rows:
                quarantine.publish_unit_file(folder, after, _quarantined(folder, before))
            publish_part(folder, after, content, replace=True)
        return unit, after.sha256, after.xxh3, folder.size(part_name(unit))


def _quarantined(folder: Folder, part: PartSummary) -> list[quarantine.Quarantined]:
    """The rows in quarantine of a part. Without its own file, they are in the file of all units."""
    if folder.exists(quarantine.unit_file(part)):
        return quarantine.read_unit_file(folder, part)
    return [entry for entry in quarantine.read(folder) if entry.unit == part.unit]


def upgrade_store(folder: Folder, run: Run, fan_out: FanOut) -> Run:
    """Upgrade the parts, the quarantine, and the manifest; return the run as it is then. May be repeated.

    `run` has format 5, or it was replaced by an upgrade that was interrupted.
    """
    before = msgspec.structs.replace(run, format=OLDEST_STORE_FORMAT, changes=msgspec.UNSET)
    manifest = _old_manifest(folder, before, run)
    if manifest is not None:
        change = StoreChange(request="", before=parts_digest(manifest))
        if not run.history:  # a damaged part is found before readers refuse the store
            _upgrade_parts(folder, run, manifest, fan_out, only_check=True)
        run = msgspec.structs.replace(run, format=LATEST_STORE_FORMAT, changes=(change,))
        publish_mark(folder, ErasingMark("the upgrade", f"tokenmill upgrade {folder.root}"))
        layout.publish_json(folder, layout.RUN, run_record(run))
        parts = _upgrade_parts(folder, run, manifest, fan_out, only_check=False)
        if int(manifest["quarantined"].to_numpy().sum()):
            quarantine.gather(folder, np.ones(run.units, np.bool_))
        publish_manifest(folder, run, parts)
    remove_mark(folder, "")
    return run


def _old_manifest(folder: Folder, before: Run, run: Run) -> pa.Table | None:
    """The manifest of format 5; None if an interrupted upgrade has already replaced it."""
    if run.format == OLDEST_STORE_FORMAT:
        return require_manifest(folder, before)
    try:
        return read_manifest(folder, before)
    except CorruptStore:
        read_manifest(folder, run)
        return None


def _upgrade_parts(folder: Folder, run: Run, manifest: pa.Table, fan_out: FanOut, *, only_check: bool) -> pa.Table:
    """Upgrade every part, or check them, and return the new manifest."""
    frozen = load_existing(folder, run)
    slices = SliceDigests(frozen.plan, frozen.sources)
    tokens = manifest["tokens"].to_numpy()
    fan_out.begin("check" if only_check else "upgrade", int(tokens.sum()))
    items = ((unit, sha256.as_py(), slices[unit]) for unit, sha256 in enumerate(manifest["sha256"]))
    parts = []
    for done in fan_out.run(UpgradePart(folder.root, only_check), items, lambda item: f"part {item[0]}"):
        parts.append(done.value)
        fan_out.advance(int(tokens[done.value[0]]))
    columns = zip(*sorted(parts), strict=True) if parts else [()] * 4
    sha256, xxh3, sizes = map(list, list(columns)[1:])
    later = {"spelled": [0] * len(manifest), "sha256": sha256, "xxh3": xxh3, "bytes": sizes}  # no text is read
    arrays = [later[name] if name in later else manifest[name] for name in tables.MANIFEST_SCHEMA.names]
    return pa.table(arrays, schema=tables.MANIFEST_SCHEMA)
