"""Check the parts, the vocabulary and the quarantine file of a store, and collect all problems."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.executors import progress
from tokenmill.executors.checks import Checks
from tokenmill.pipeline.planning.freeze import FrozenRun
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.verify import Verify
from tokenmill.storage import Folder
from tokenmill.store import quarantine
from tokenmill.store.chain import StoreVersion, head_at
from tokenmill.store.deny import read_rules
from tokenmill.store.duplicates import read_duplicates
from tokenmill.store.job import read_vocabulary
from tokenmill.store.manifest import is_listed


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
        for spec in frozen.run.job.tokenizers:
            read_vocabulary(folder, spec)
        if frozen.run.job.deny:
            read_rules(folder, frozen.run.job.deny)
        if frozen.run.job.dedup is not None:
            read_duplicates(folder, frozen.run.job.dedup)
    except StoreError as error:
        checks.problems.append(error.text)
    checked, step = CheckedStore(), progress.Step()
    checks.report.begin("verify", frozen.run.text_bytes, 0, checks.workers)
    tasks = plan.tasks(frozen.plan, frozen.sources, range(frozen.run.units))
    for done in checks.run(function, tasks, lambda task: f"part {task.unit}"):
        summary = done.value.summary
        if not is_listed(manifest, summary):
            checks.problems.append(f"part {done.item.unit} is not the one the manifest describes")
        checked.compared += done.value.compared
        checked.copies += done.value.copies
        step = progress.Step(step.text_bytes + summary.text_bytes, step.tokens + summary.tokens, step.units + 1)
        checks.report.advance(done.item.text_bytes, step)
    checks.problems += _quarantine_problems(folder, manifest, function.version)
    return checked


def _quarantine_problems(folder: Folder, manifest: pa.Table, version: StoreVersion) -> list[str]:
    """What is wrong with the records of rows in quarantine, if anything."""
    expected, head = int(manifest["quarantined"].to_numpy().sum()), head_at(folder.root, version)
    units, name = quarantine.units_to_check(manifest), quarantine.list_file(head)
    advice = f"`tokenmill erase {folder.root} --request R`" if version.number else "`tokenmill prepare`"
    try:
        entries = sum(1 for _ in quarantine.read(folder, head))
        if entries != expected:
            counts = f"names {entries:,} rows, and the manifest counts {expected:,} in quarantine"
            return [f"{name} {counts}. {advice} writes it again."]
        lost = quarantine.unrecorded(folder, units, head)
        if lost or not quarantine.is_gathered(folder, units, head):
            where = f"the records of unit {lost[0]}" if lost else name
            return [f"{where}: other rows than the parts skip. {advice} writes them again."]
    except CorruptStore as error:
        return [error.text]
    return []
