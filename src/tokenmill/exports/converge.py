"""Converge an export: the documents that were erased from its stores leave its files, too.

Trainers open fixed names, so the files are changed in place, and numbered manifests say what they are. A manifest is
created if its number is absent, with the versions of the stores and the checksums of the files; then the files follow.
A file that is not as the last manifest says (a killed process, a copy that was restored) becomes so by erasing once
more what was erased until these versions: erasing twice is erasing once. Else it is damaged.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.errors import CORRUPT, TRY_AGAIN, CorruptStore, RunFailed, StoreError
from tokenmill.executors.checks import Checks
from tokenmill.executors.fan_out import FanOut
from tokenmill.exports import job as names
from tokenmill.exports import records, shards
from tokenmill.exports.converge_shard import ConvergeShards, ErasedDocuments, Files
from tokenmill.exports.file_checks import damaged
from tokenmill.exports.job import FrozenExport
from tokenmill.exports.shards import ShardTask
from tokenmill.exports.write_shard import planned_files, split_folder
from tokenmill.storage import Folder, folder_at
from tokenmill.store.chain import Head, StoreVersion, read_head, require_version
from tokenmill.store.job import require_run
from tokenmill.store.layout import restart_advice

MAX_ROUNDS = 20
"""How often an export is looked at while other processes change it."""


def converge(export: Folder, frozen: FrozenExport, runner: FanOut | Checks) -> int:
    """Erase in a complete export what was erased from its stores, or with `Checks` only look whether that is done.

    Returns the number of shards with erased documents. The caller has the lock of the export.
    """
    plan = shards.read_export_plan(export, frozen)
    if isinstance(runner, FanOut):
        _remove_leftovers(export, frozen, plan)
    failure = ""
    for _ in range(MAX_ROUNDS):
        manifest = records.read_manifest(export, frozen.job.digest())
        work = _Convergence.of(export, frozen, plan, runner)  # reads the heads after the manifest
        work.require_versions(manifest)
        if not any(version.number for version in work.versions):
            return 0
        try:
            after = work.shards(manifest)
        except (StoreError, RunFailed) as error:
            # Another process went on, or replaced a file while it was read. Damage is found a second time, in the same
            # version of the file, which the text names.
            is_certain = error.exit_code not in {CORRUPT, TRY_AGAIN} or error.text == failure
            if is_certain and manifest.number == names.manifest_numbers(export)[-1]:
                raise
            failure = error.text
            continue
        changed = {shard: files for shard, files in after.items() if files != manifest.files[shard]}
        if isinstance(runner, Checks) or (manifest.versions == work.versions and not changed):
            if manifest.number == names.manifest_numbers(export)[-1]:
                return len(after)
        else:
            records.publish_next(export, manifest.with_files(changed, work.versions), frozen.job.digest())
    raise StoreError(f"another process changes {export.root}", exit_code=TRY_AGAIN)


@dataclass(frozen=True, slots=True)
class _Convergence:
    """An export with its plan and the heads of its stores."""

    export: Folder
    frozen: FrozenExport
    plan: pa.Table
    directories: list[str]
    heads: list[Head]
    runner: FanOut | Checks

    @classmethod
    def of(cls, export: Folder, frozen: FrozenExport, plan: pa.Table, runner: FanOut | Checks) -> _Convergence:
        directories = frozen.directories(export)
        if not directories:
            raise StoreError("its store is not known: the export was moved out of it")
        heads = []
        for directory, store in zip(directories, frozen.stores, strict=True):
            head = read_head(folder_at(directory))
            require_version(folder_at(directory), head, store.version)
            if head.number and head.identity != store.identity:
                raise StoreError(f"it is an export of another store than {directory} is now")
            heads.append(head)
        return cls(export, frozen, plan, directories, heads, runner)

    @property
    def versions(self) -> tuple[StoreVersion, ...]:
        """The versions of the stores now."""
        return tuple(head.version for head in self.heads)

    def require_versions(self, manifest: records.ExportManifest) -> None:
        """Raise CorruptStore if a store is older than the manifest, or was changed by itself."""
        if len(manifest.versions) != len(self.heads):
            raise damaged(self.export, names.manifest_file(manifest.number), "it is of other stores")
        for directory, head, version in zip(self.directories, self.heads, manifest.versions, strict=True):
            try:
                require_version(folder_at(directory), head, version)
            except CorruptStore as error:
                known = f"known by     {self.export.root}"
                again = f"If no copy has it: {restart_advice(self.export)}"
                raise CorruptStore(error.headline, known, *error.details, again) from error

    def shards(self, manifest: records.ExportManifest) -> dict[int, Files]:
        """The shards with erased documents, and their files without them. Files that lag behind the manifest follow.

        Raises CorruptStore if a file is damaged.
        """
        wanted = ErasedDocuments.of(self.frozen, self.directories, self.versions)
        function = ConvergeShards(
            out=self.export.root,
            job=self.frozen.job,
            recorded=ErasedDocuments.of(self.frozen, self.directories, manifest.versions),
            wanted=wanted,
            token=require_run(folder_at(self.directories[0])).erased_token,
            check=self._command() if isinstance(self.runner, Checks) else "",
        )
        items = self._items(wanted, manifest)
        if isinstance(self.runner, FanOut):
            self.runner.begin(
                f"erase in {self.frozen.job.format}", sum(task.tokens for item in items for task, _ in item)
            )
        after: dict[int, Files] = {}
        for done in self.runner.run(function, items, lambda item: f"shard {item[0][0].shard}"):
            after |= done.value
            if isinstance(self.runner, FanOut):
                self.runner.advance(sum(task.tokens for task, _ in done.item))
        return after

    def _items(
        self, erased: ErasedDocuments, manifest: records.ExportManifest
    ) -> list[tuple[tuple[ShardTask, Files], ...]]:
        """The shards with a block that holds erased documents. Those of one object are for one worker."""
        blocks = erased.blocks(self.frozen)
        first, last = (self.plan[name].to_numpy() for name in ("first_block", "last_block"))
        near = np.flatnonzero(np.searchsorted(blocks, first) < np.searchsorted(blocks, last, side="right"))
        files = manifest.files
        pairs = [(task, files[task.shard]) for task in shards.tasks(self.plan, near)]
        if not (self.export.is_remote and self.frozen.job.shard_tokens is None):
            return [(pair,) for pair in pairs]
        pairs.sort(key=lambda pair: (pair[1][0].name, pair[0].shard))
        return [tuple(group) for _, group in itertools.groupby(pairs, lambda pair: pair[1][0].name)]

    def _command(self) -> str:
        """The command that erases in the export."""
        pairs = zip(self.directories, self.heads, strict=True)
        directory, head = next((directory, head) for directory, head in pairs if head.number)
        return f"tokenmill erase {directory} --request {head.history[-1].request}"


def _remove_leftovers(export: Folder, frozen: FrozenExport, plan: pa.Table) -> None:
    """Remove what killed writers left: it may hold tokens of erased documents."""
    job = frozen.job
    splits = {split_folder(job, split) or "." for split in ("train", "val")}
    for name in {".", names.STATE, names.RECORDS, names.MANIFESTS, *splits}:
        export.remove_temporaries(name)
    export.remove(names.RUNS)
    if job.shard_tokens is None:
        for name in planned_files(job, plan):
            export.regions.discard(name)
