"""Check the parts, the vocabulary and the quarantine file of a store, and collect all problems."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.executors import progress
from tokenmill.executors.checks import Checks
from tokenmill.pipeline.erase_quarantine import ERASED
from tokenmill.pipeline.planning.freeze import FrozenRun
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.verify import Verify
from tokenmill.storage import Folder
from tokenmill.store import quarantine
from tokenmill.store.deny import read_rules
from tokenmill.store.duplicates import read_duplicates
from tokenmill.store.erasures import check_history, check_selector, erasure_records, refuse_unlisted
from tokenmill.store.job import STORE_FORMAT, Run
from tokenmill.store.manifest import is_listed
from tokenmill.store.run import read_vocabulary


@dataclass
class CheckedStore:
    """How many documents were compared with the reference, and how many have the tokens of an erased document."""

    compared: int = 0
    copies: int = 0


def check_store(
    folder: Folder, frozen: FrozenRun, manifest: pa.Table, function: Verify, checks: Checks
) -> CheckedStore:
    """Check everything in a store but its exports; return what was counted."""
    try:
        read_vocabulary(folder, frozen.run.job.tokenizer)
        if not isinstance(frozen.run.job.deny, msgspec.UnsetType):
            read_rules(folder, frozen.run.job.deny)
        if not isinstance(frozen.run.job.dedup, msgspec.UnsetType):
            read_duplicates(folder, frozen.run.job.dedup)
        check_history(folder, frozen.run)
        for change in frozen.run.history:
            if change.documents:
                check_selector(folder, change.request)
    except StoreError as error:
        checks.problems.append(error.text)
    checked, step = CheckedStore(), progress.Step()
    checks.report.begin("verify", int(frozen.plan["text_bytes"].to_numpy().sum()), 0, checks.workers)
    tasks = plan.tasks(frozen.plan, frozen.sources, range(frozen.run.units))
    for done in checks.run(function, tasks, lambda task: f"part {task.unit}"):
        summary = done.value.summary
        if not is_listed(manifest, summary):
            checks.problems.append(f"part {done.item.unit} is not the one the manifest describes")
        try:
            refuse_unlisted(folder, frozen.run, summary)
        except CorruptStore as error:  # the same for each part of the store
            checks.problems += [error.text] if error.text not in checks.problems else []
        checked.compared += done.value.compared
        checked.copies += done.value.copies
        step = progress.Step(step.text_bytes + summary.text_bytes, step.tokens + summary.tokens, step.units + 1)
        checks.report.advance(done.item.text_bytes, step)
    checks.problems += _quarantine_problems(folder, frozen.run, manifest)
    return checked


def _quarantine_problems(folder: Folder, run: Run, manifest: pa.Table) -> list[str]:
    """What is wrong with the records of rows in quarantine, if anything."""
    expected = int(manifest["quarantined"].to_numpy().sum())
    units = quarantine.units_to_check(run, manifest)
    try:
        entries = list(quarantine.read(folder))
        if len(entries) != expected:
            counts = f"names {len(entries):,} rows, and the manifest counts {expected:,} in quarantine"
            return [f"{quarantine.QUARANTINE_FILE} {counts}. `tokenmill prepare` writes it again."]
        lost = quarantine.unrecorded(folder, units)
        if lost or (run.format >= STORE_FORMAT and not quarantine.is_gathered(folder, units)):
            where = f"the records of unit {lost[0]}" if lost else quarantine.QUARANTINE_FILE
            return [f"{where}: other rows than the parts skip. `tokenmill prepare` writes them again."]
        erased = {(row.file, row.row): one.request for one in erasure_records(folder) for row in one.quarantined}
        restored = {erased.get((entry.file, entry.position)) for entry in entries if entry.detail != ERASED}
        if erased and quarantine.has_unused_files(folder, units):  # of before the erasure
            restored |= set(erased.values())
        return [
            f"erased rows in quarantine have their text. Run `tokenmill erase {folder.root} --request {request}`."
            for request in dict.fromkeys(erased.values())
            if request in restored
        ]
    except CorruptStore as error:
        return [error.text]
