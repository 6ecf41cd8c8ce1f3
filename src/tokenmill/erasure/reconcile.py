"""Make the files of a store those that its last claim names: after the claim, a kill, or a restore from a copy.

Any process may do it at any time. Files are listed first, and the head is read then: so no file that is listed belongs
to a later claim. What the head does not name is removed when all that it names is there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.erasure.erased_spool import erase_spool
from tokenmill.erasure.erased_unit import Erased, LostFiles, MakeFiles
from tokenmill.errors import TRY_AGAIN, CorruptStore, StoreError
from tokenmill.executors.fan_out import FanOut
from tokenmill.storage import Folder, prefetch_map, publish_new
from tokenmill.store import layout, quarantine
from tokenmill.store.chain import Claim, Head, checked_head, claimed_documents, done_file, of_unit, read_chain
from tokenmill.store.job import Run
from tokenmill.store.layout import KEPT, PARTS, QUARANTINE
from tokenmill.store.tables import read_manifest

MAX_ROUNDS = 20
"""How often files are listed again because another process changes them."""

UnitFiles = dict[int, list[str]]
"""The names of the files of each unit."""

_NUMBERED = re.compile(r"([0-9]{8,18})[-.].*")


def reconcile(folder: Folder, run: Run, fan_out: FanOut) -> Head:
    """Make the files of a store those of its head, and record that they are. Returns the head.

    Raises CorruptStore if a file is lost and no earlier one of its unit is there.
    """
    base = read_manifest(folder, run)
    files = unit_files(folder, run)
    for _ in range(MAX_ROUNDS):
        head = checked_head(folder, base)
        if not head.number:
            return head
        store = ChangedStore(folder, run, head, base, files)
        lost = store.make_lost(read_chain(folder, head), fan_out)
        if not lost:
            store.finish(fan_out)
            return head
        before, files = files, unit_files(folder, run)
        now = checked_head(folder, base)
        if files == before and (now.version, now.is_done) == (head.version, head.is_done):
            more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
            raise CorruptStore(f"{folder.path(lost[0])} is missing{more}", layout.RESTORE)
    raise StoreError(f"another process changes {folder.root}", "Run the same command again.", exit_code=TRY_AGAIN)


def unit_files(folder: Folder, run: Run) -> UnitFiles:
    """List all parts, kept columns and rows in quarantine."""
    files: UnitFiles = {}
    for directory in (PARTS, KEPT, QUARANTINE):
        for names in layout.numbered_names(folder, directory, run.units):
            for name in names:
                if (match := _NUMBERED.fullmatch(name)) is not None:
                    files.setdefault(int(match[1]), []).append(f"{directory}/{name}")
    for listed in files.values():
        listed.sort()
    return files


@dataclass(frozen=True, slots=True)
class ChangedStore:
    """A store after a change, and the files that were there before its head was read."""

    folder: Folder
    run: Run
    head: Head
    base: pa.Table
    files: UnitFiles

    def _wanted(self) -> Iterator[tuple[int, list[str]]]:
        """The files that each changed unit has to have."""
        has_rows = self.base["quarantined"].to_numpy() > 0
        columns = (self.head.files[name].to_pylist() for name in ("unit", "hash"))
        for unit, part in zip(*columns, strict=True):
            names = [self.head.part_file(unit)]
            names += [self.head.kept_file(unit)] if self.run.job.keep else []
            yield unit, names + ([quarantine.unit_name(unit, part)] if has_rows[unit] else [])

    def leftovers(self) -> list[str]:
        """The files of changed units that the head does not name. They may hold what was erased."""
        files = [name for unit, live in self._wanted() for name in self.files.get(unit, ()) if name not in live]
        return files + quarantine.other_lists(self.folder, self.head)

    def make_lost(self, claims: Iterable[Claim], fan_out: FanOut) -> list[str]:
        """Make the files of the head that are not there. Returns those that cannot be made."""
        lost = {unit for unit, names in self._wanted() if not set(names) <= set(self.files.get(unit, ()))}
        tokens, failed = self.base["tokens"].to_numpy(), list[str]()
        if lost:
            fan_out.begin("erase", int(tokens[list(lost)].sum()))
            for done in fan_out.run(
                MakeFiles(self.folder.root), self._items(lost, claims), lambda item: f"part {item.unit}"
            ):
                failed += done.value
                fan_out.advance(int(tokens[done.item.unit]))
        return sorted(failed)

    def _items(self, units: set[int], claims: Iterable[Claim]) -> Iterator[LostFiles]:
        """What is erased in these units, and the files that they have."""
        documents = claimed_documents(self.folder, self.head).sort_by("unit")
        rows: dict[int, set[tuple[str, int]]] = {}
        for row in (row for claim in claims for row in claim.quarantined):
            rows.setdefault(row.unit, set()).add((row.file, row.row))
        hashes = dict(zip(self.head.files["unit"].to_pylist(), self.head.files.to_pylist(), strict=True))
        counts = self.base["documents"].to_numpy()
        for unit, names in self._wanted():
            if unit in units:
                own, changes = of_unit(documents, unit), np.zeros(counts[unit], np.int64)
                changes[own["document"].to_numpy()] = own["change"].to_numpy()
                erased = Erased(changes, frozenset(rows.get(unit, ())), self.run.erased_token)
                kept = hashes[unit]["kept"]
                yield LostFiles(unit, erased, hashes[unit]["hash"], kept, names, self.files.get(unit, []))

    def finish(self, fan_out: FanOut) -> None:
        """Remove what the head does not name, and record that the change is done."""
        if not self.head.is_done:
            erase_spool(self.folder, self.run, self.head, fan_out)
        has_rows = bool(self.base["quarantined"].to_numpy().any())
        directories = [PARTS, *([KEPT] if self.run.job.keep else []), *([QUARANTINE] if has_rows else [])]
        for directory in directories:
            self.folder.sync_directory(directory)
        for _ in prefetch_map(self.folder, self.folder.discard, self.leftovers()):
            pass
        if has_rows:
            quarantine.gather(self.folder, np.ones(self.run.units, np.bool_), self.head)
        for directory in (*directories, "."):
            self.folder.sync_directory(directory)
        if not self.head.is_done:
            publish_new(self.folder, done_file(self.head.number), b"")
