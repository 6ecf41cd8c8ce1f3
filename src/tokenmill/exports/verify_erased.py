"""Check that an export does not hold the tokens of documents that were erased from its store."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.errors import CorruptStore
from tokenmill.executors.checks import Checks
from tokenmill.exports import shards
from tokenmill.exports.erase_export import exported_stores, shards_near, store_positions
from tokenmill.exports.erase_shard import ErasedDocuments, ShardEraser
from tokenmill.exports.job import FrozenExport
from tokenmill.exports.shards import ShardTask, read_export_plan
from tokenmill.storage import Folder
from tokenmill.store.job import Run


@dataclass(frozen=True, slots=True)
class CheckErased:
    """The function that checks one shard. With `left_out`, the erased documents must not be in it at all."""

    eraser: ShardEraser
    left_out: bool

    def __call__(self, task: ShardTask) -> int:
        """Return the number of erased documents in the shard. Raises CorruptStore if one has its tokens."""
        return self.eraser.check(task, left_out=self.left_out)


def check_erased(export: Folder, frozen: FrozenExport, store: Folder, run: Run, digest: str, checks: Checks) -> None:  # noqa: PLR0913, PLR0917 - an export, its store, and what checks it
    """Check the shards of an export that may hold erased documents. `digest` is that of the store's parts now."""
    if not run.has_erased:
        return
    versions = [*(change.before for change in run.history), digest]
    positions = store_positions(export, frozen, store, versions)
    if positions is None:
        return
    try:
        plan = read_export_plan(export, frozen)
    except CorruptStore as error:
        checks.problems.append(error.text)
        return
    for number, change in enumerate(run.history, 1):
        if not change.documents:
            continue
        erased = ErasedDocuments(store.root, change, positions.sources, run.erased_token)
        eraser = ShardEraser(export.root, frozen.job, erased, exported_stores(export, frozen, store))
        near = shards_near(frozen, plan, eraser, positions.parts)
        function = CheckErased(eraser, left_out=number <= positions.version)
        for _ in checks.run(function, shards.tasks(plan, near), lambda task: f"shard {task.shard}"):
            pass
