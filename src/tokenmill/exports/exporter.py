"""Run one export: plan its shards, write the missing ones, and publish the manifest."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, UsageError
from tokenmill.executors import ranks
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.ranks import RankShare
from tokenmill.exports import job as names
from tokenmill.exports import records, shards
from tokenmill.exports.advice import larger_val, split_notices, trainer_usage
from tokenmill.exports.converge import converge
from tokenmill.exports.file_checks import damaged
from tokenmill.exports.job import ExportJob
from tokenmill.exports.records import ExportManifest
from tokenmill.exports.result import ExportResult, by_split, exported_split
from tokenmill.exports.shards import Counts, ShardTask
from tokenmill.exports.sort_documents import Ordering, chunks
from tokenmill.exports.verify import ByteRange, IsAsWritten, unlisted
from tokenmill.exports.write_shard import ExportContext, ReadRecords, WriteShard, planned_files, split_folder
from tokenmill.storage import Folder, folder_at, prefetch_map
from tokenmill.storage.run_once import FINISHING, PLANNING, run_once
from tokenmill.store.held_out import MAX_DOCUMENTS, MAX_PARTS, val_advice
from tokenmill.token_files import find_format
from tokenmill.token_files.protocol import CompletedSplit, ShardRecord, WrittenFile
from tokenmill.tokenization import document_hash

# Files whose existence is checked at the same time on remote storage.
PREFETCH_CHECKS = 16


@dataclass
class Exporter:
    """One call's work on a frozen export.

    Of several ranks, each first sorts and writes its own items, then those of other ranks that are missing. What only
    one process should do (the plan, and the end of the export) is guarded by leases.

    Attributes:
        manifest: The manifest of the stores.
        rank_share: Which of several ranks this process is.
        records: The records of all shards.
        written: The records of the shards that this call wrote.
        others: The files that belong to no shard, such as indexes.
        skipped: The tokens of each split that are in no shard.
        write_seconds: How long writing took.
    """

    context: ExportContext
    folder: Folder
    manifest: pa.Table
    fan_out: FanOut
    notices: list[str]
    rank_share: RankShare | None = None
    records: list[ShardRecord] = field(default_factory=list)
    written: list[ShardRecord] = field(default_factory=list)
    others: list[WrittenFile] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)
    write_seconds: float = 0.0

    def __post_init__(self) -> None:
        self.job = self.context.frozen.job
        self.format = find_format(self.job.format)

    def announce(self) -> None:
        """Report what is about to be written."""
        job, spec, say = self.job, self.format.SPEC, self.fan_out.report.say
        end = "none" if job.end_token is None else f"{job.end_token}, {job.end}"
        stores = self.context.parts.directories
        kept_order = "as in the store" if len(stores) == 1 else "store by store"
        order = kept_order if job.shuffle is None else f"shuffled with seed {job.shuffle}"
        shard = (
            "one file per split" if job.shard_tokens is None else f"shards of {shards.tokens_per_shard(job):,} tokens"
        )
        say("")
        say(f"export       {spec.name} ({spec.trainer}) to {self.folder.root}")
        for number, directory in enumerate(stores if len(stores) > 1 else [], 1):
            say(f"{f'store {number}':<12} {directory}")
        say("documents    as text" if spec.is_text else f"tokens       {job.dtype}; eot {end}")
        say(f"order        {order}; {shard}; val {job.val or 'none'}")
        if self.rank_share is not None:
            say(f"share        {self.rank_share}, then shards that other ranks have not written")
        elif (advice := ranks.advice()) is not None:
            say(f"note: {advice}")
        for notice in self.notices:
            say(f"note: {notice}")

    def run(self) -> None:
        """Plan, write the missing shards, publish the manifest, and erase what was erased from the stores meanwhile.

        Work of earlier calls is kept if it is intact. Ranks do not compare a complete export with its checksums.
        """
        ordering = Ordering(self.context, self.manifest, self.fan_out, self.rank_share)
        plan = self._plan(ordering)
        self.skipped = shards.skipped_tokens(plan)
        listed = self._read_manifest()
        if self.rank_share is None:
            self._write_missing(plan, ordering, np.ones(len(plan), bool), listed)
        elif listed is None:
            self._write_missing(plan, ordering, self.rank_share.stripes(len(plan)))
        with self._in_turn(FINISHING):
            if self.rank_share is not None:
                listed = self._take_others(plan, ordering)
            self.records.sort(key=lambda record: record.shard)
            splits = by_split(self.records)
            for notice in split_notices(self.job, splits, self.skipped, self._store_tokens(), self._val_advice):
                self._note(notice)
            if (self.written and self.rank_share is None) or not self._is_complete(listed):
                self.others = []
                started = time.monotonic()
                self._finish(listed)
                self.write_seconds += (time.monotonic() - started) if self.written else 0.0
            self.folder.remove(names.RUNS)
            converge(self.folder, self.context.frozen, self.fan_out)

    def _in_turn(self, name: str, is_done: Callable[[], bool] = lambda: False) -> AbstractContextManager[object]:
        """Hold the lease of this name among ranks, or wait until its work is done."""
        if self.rank_share is None:
            return nullcontext()
        state = folder_at(self.folder.path(names.STATE))  # trainers may read every file beside the shards
        return run_once(
            state.locks, name, is_done, lambda: self.fan_out.report.pending(f"{name:<12} another rank is at it")
        )

    def _write_missing(
        self,
        plan: pa.Table,
        ordering: Ordering,
        is_own: npt.NDArray[np.bool_],
        listed: ExportManifest | None = None,
        *,
        is_turn: bool = False,
    ) -> None:
        """Take the records of the own shards that are intact, and write all shards that are missing or damaged.

        In its turn to finish the export, a rank leaves no shard to other ranks, and compares only the sizes of theirs.
        """
        is_committed = records.committed(self.folder, len(plan))
        committed = self._read_records(np.flatnonzero(is_committed & is_own))
        if listed is not None:  # an erasure gives a shard other files, and leaves its record
            files = listed.files
            committed = [msgspec.structs.replace(one, files=files.get(one.shard, one.files)) for one in committed]
        intact = self._intact(plan, committed, compare=not is_turn)
        self.records = [*(record for record in self.records if is_committed[record.shard]), *intact]
        is_missing = is_own | ~is_committed
        is_missing[[record.shard for record in intact]] = False
        if is_missing.any():
            ordering.sort()  # a complete export has removed the sorted runs of its shuffle
            self._write(plan, np.flatnonzero(is_missing), None if is_turn else self.rank_share)

    def _take_others(self, plan: pa.Table, ordering: Ordering) -> ExportManifest | None:
        """Take the records of the shards that other ranks have written, or of all shards from their manifest."""
        listed = self._read_manifest()
        if listed is not None:
            self.records = listed.records(self.job.digest())
        else:
            is_other = np.ones(len(plan), bool)
            is_other[[record.shard for record in self.records]] = False
            self._write_missing(plan, ordering, is_other, is_turn=True)
        return listed

    def _read_manifest(self) -> ExportManifest | None:
        """Read the last manifest of an export that was complete. A damaged one is discarded, with a notice."""
        for number in reversed(names.manifest_numbers(self.folder)):
            try:
                return records.read_manifest(self.folder, self.job.digest())
            except CorruptStore:
                self._note("the manifest is damaged; it is written again")
                self.folder.discard(names.manifest_file(number))
        return None

    def _is_complete(self, listed: ExportManifest | None) -> bool:
        """Return whether the manifest lists these shards, and all files are finalized and as it describes them."""
        if listed is None:
            return False
        is_region = self.job.shard_tokens is None
        regions = {file.name for record in self.records for file in record.files} if is_region else set()
        if not all(map(self.folder.exists, regions)):
            return False
        if listed.rows.to_pylist() != records.manifest_rows(self.records).to_pylist():
            self._note("the manifest is damaged; it is written again")
            return False
        self.others = listed.others
        files = {index: (_byte_range(file, 0, file.bytes),) for index, file in enumerate(self.others)}
        as_written = self._as_written(files, compare=self.rank_share is None)
        wrong = [self.others[index].name for index in sorted(files.keys() - as_written)]
        for name in wrong:
            self._note(f"{name} is damaged; it is written again")
        return not wrong

    def _plan(self, ordering: Ordering) -> pa.Table:
        """Read the plan of the export, or make and publish it. Ranks sort together, and one of them plans."""
        if self.rank_share is not None and not self.folder.exists(names.PLAN):
            ordering.sort()
        with self._in_turn(PLANNING, lambda: self.folder.exists(names.PLAN)):
            return _read_or_make_plan(self.context, self.folder, ordering, self._store_tokens())

    def _store_tokens(self) -> int:
        selection = self.job.selection
        return int(self.manifest["tokens"].to_numpy().sum()) if selection is None else selection.tokens

    def _val_advice(self) -> str:
        """Return what gives documents to both splits. Of few documents, it is computed from their hashes."""
        documents = int(self.manifest["documents"].to_numpy().sum())
        if self.job.selection is not None or documents > MAX_DOCUMENTS or len(self.manifest) > MAX_PARTS:
            return larger_val(self.job, self._store_tokens())
        contents = list(self.context.contents(range(len(self.manifest)), check_content=False))
        identities = self.context.parts.source_columns()[1]
        positions = [document_hash.val_positions(identities, part.source, part.row) for part in contents]
        lengths = [np.diff(part.offsets) for part in contents]
        folder = folder_at(self.context.parts.directories[0])
        return val_advice(folder, np.concatenate(positions), np.concatenate(lengths))

    def _write(self, plan: pa.Table, numbers: Counts, rank_share: RankShare | None) -> None:
        """Write the shards of these numbers, without those that other ranks write meanwhile."""
        tokens = plan["stop"].to_numpy() - plan["start"].to_numpy()
        total = int(tokens.sum())
        self.fan_out.begin(f"export {self.job.format}", total, total - int(tokens[numbers].sum()))
        order: Iterable[int] = numbers
        if rank_share is not None:
            list_done = functools.partial(records.committed, self.folder, len(plan))
            order = rank_share.order(
                numbers, list_done(), list_done, lambda shard: self.fan_out.skip(int(tokens[shard]))
            )
        started = None
        for done in self.fan_out.run(WriteShard(self.context), shards.tasks(plan, order), _describe):
            # The clock starts with the first shard, because workers may have to be started before.
            started = started or time.monotonic() - done.seconds
            self.write_seconds = time.monotonic() - started
            self.written.append(done.value)
            self.records.append(done.value)
            self.fan_out.advance(done.value.tokens + done.value.long_tokens)

    def _read_records(self, numbers: Counts) -> list[ShardRecord]:
        """Read the records of committed shards. Damaged records are discarded, with a notice."""
        items = [tuple(chunk) for chunk in chunks(numbers.tolist())]
        outcomes = self.fan_out.run(ReadRecords(self.folder.root), items, lambda _: "the records of shards")
        valid = [record for done in outcomes for record in done.value]
        for shard in np.setdiff1d(numbers, [record.shard for record in valid]).tolist():
            self._note(f"the record of shard {shard} is damaged; the shard is written again")
            records.discard(self.folder, shard)
        return valid

    def _intact(self, plan: pa.Table, committed: list[ShardRecord], *, compare: bool) -> list[ShardRecord]:
        """Return the shards whose files are as written. The records of the others are discarded, with a notice."""
        starts, sizes = (plan[name].to_numpy().tolist() for name in ("position", "file_tokens"))
        if self.job.shard_tokens is None:  # each shard is a byte range of the files of its split
            files = {
                one.shard: tuple(
                    _byte_range(file, starts[one.shard] * size, sizes[one.shard] * size)
                    for file, size in zip(one.files, self.job.region_token_bytes, strict=False)
                )
                for one in committed
            }
        else:
            files = {one.shard: tuple(_byte_range(file, 0, file.bytes) for file in one.files) for one in committed}
        as_written, digest = self._as_written(files, compare=compare), self.job.digest()
        intact = []
        for record, task in zip(committed, shards.tasks(plan, np.array([r.shard for r in committed])), strict=True):
            planned = (task.split, task.number, task.start, task.stop)
            stop = record.start + record.tokens + record.long_tokens
            is_planned = (record.split, record.number, record.start, stop) == planned
            if record.export == digest and is_planned and record.shard in as_written:
                intact.append(record)
            else:
                self._note(f"{record.files[0].name} is damaged; it is written again")
                records.discard(self.folder, record.shard)
        return intact

    def _as_written(self, files: Mapping[int, tuple[ByteRange, ...]], *, compare: bool) -> set[int]:
        """Return the keys whose files are all as they were written.

        With `compare`, checksums are compared on a disk, also of a file that is not finalized yet. Otherwise, and in an
        object store, only sizes are compared.
        """

        def is_there(number: int) -> bool:
            return all(
                self.folder.regions.exists(file.name, file.file_bytes, file.start, file.bytes) for file in files[number]
            )

        there = zip(files, prefetch_map(self.folder, is_there, files, PREFETCH_CHECKS), strict=True)
        intact = {number for number, is_right in there if is_right}
        if self.folder.is_remote or not compare:
            return intact
        items = [(number, files[number]) for number in sorted(intact)]
        token_bytes = np.dtype(self.job.dtype).itemsize
        self.fan_out.begin("compare", sum(file.bytes for _, ranges in items for file in ranges) // token_bytes)
        for done in self.fan_out.run(IsAsWritten(self.folder.root), items, lambda item: item[1][0].name):
            self.fan_out.advance(sum(file.bytes for file in done.item[1]) // token_bytes)
            if not done.value:
                intact.discard(done.item[0])
        return intact

    def _note(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)
        self.fan_out.report.say(f"note: {notice}")

    def _finish(self, listed: ExportManifest | None) -> None:
        """Write the files that need every shard, then a manifest, unless the last one lists these files."""
        self.folder.sync_directory(names.RECORDS)
        for split, of_split in by_split(self.records).items():
            file = of_split[0].files[0].name if self.job.shard_tokens is None else None
            for index, one in enumerate(() if file is None else of_split[0].files):
                size = sum(record.files[index].bytes for record in of_split)
                _finalize(self.folder, one.name, size, self.job, self.fan_out)
            folder = split_folder(self.job, split)
            read = functools.partial(records.read_lengths, self.folder)
            lengths = functools.partial(prefetch_map, self.folder, read, [record.shard for record in of_split])
            job = self.job
            completed = CompletedSplit(folder, job.dtype, of_split, lengths, job.sequence_tokens, file, job.mask)
            self.others += self.format.finish(self.folder, completed)
            self.folder.sync_directory(folder)
        versions = tuple(store.version for store in self.context.frozen.stores)  # later erasures may be in shards, too
        rows, number = records.manifest_rows(self.records), 0 if listed is None else listed.number + 1
        if listed is None or (rows.to_pylist(), self.others) != (listed.rows.to_pylist(), listed.others):
            records.publish_next(self.folder, ExportManifest(number, rows, self.others, versions), self.job.digest())

    def result(self, seconds: float) -> ExportResult:
        """Return the result of the export, which took this long."""
        splits = by_split(self.records)
        files = [*(file for record in self.records for file in record.files), *self.others]
        return ExportResult(
            directory=self.folder.root,
            format=self.job.format,
            trainer=self.format.SPEC.trainer,
            dtype=self.job.dtype,
            end_token=self.job.end,
            shuffle=self.job.shuffle,
            files=len({file.name for file in files}),
            bytes=sum(file.bytes for file in files),
            splits={split: exported_split(splits.get(split, []), count) for split, count in self.skipped.items()},
            shards_done_now=len(self.written),
            deaths=self.fan_out.deaths,
            seconds=round(seconds, 3),
            tokens_per_second=round(sum(record.tokens for record in self.written) / max(self.write_seconds, 1e-9)),
            notices=self.notices,
            use=trainer_usage(self.job, self.folder, splits),
            stores=self.context.parts.directories,
        )


def _byte_range(file: WrittenFile, start: int, file_bytes: int) -> ByteRange:
    return ByteRange(file.name, start, file.bytes, file.xxh3, file_bytes)


def _describe(task: ShardTask) -> str:
    return f"{task.split} shard {task.number} (tokens {task.start:,} to {task.stop:,})"


def _read_or_make_plan(context: ExportContext, folder: Folder, ordering: Ordering, tokens: int) -> pa.Table:
    """Read the plan of an export, or make and publish it. Its shards must have this number of tokens."""
    job, digest = context.frozen.job, context.frozen.work_digest()
    if folder.exists(names.PLAN):
        count = len(ordering.manifest) if job.shuffle is None else context.frozen.bins
        plan = shards.read_plan(folder, digest, tokens, count)
        planned = int((plan["stop"].to_numpy() - plan["start"].to_numpy()).sum())
        if planned + sum(shards.skipped_tokens(plan).values()) != tokens:
            raise damaged(folder, names.PLAN, "its shards do not have all tokens of the store")
        _refuse_other_files(folder, job, plan, begun=True)
        return plan
    blocks = ordering.blocks()
    counted = int(blocks.tokens.sum())
    if counted != tokens:
        raise CorruptStore(
            "the documents of an export are not those of its store",
            f"export       {folder.root}",
            f"expected     {tokens:,} tokens",
            f"found        {counted:,}",
            "Remove the directory and export again, from one machine at a time.",
        )
    resolve = functools.partial(ordering.resolve, blocks)
    store_parts = [store.parts for store in context.parts.stores]
    plan = shards.plan(job, find_format(job.format).SPEC, blocks, resolve, store_parts)
    _refuse_other_files(folder, job, plan, begun=bool(records.committed(folder, len(plan)).any()))
    shards.publish_plan(folder, plan, digest)
    return plan


def _refuse_other_files(folder: Folder, job: ExportJob, plan: pa.Table, *, begun: bool) -> None:
    """Raise for a file with a shard's kind of name that the plan does not list, or that predates the export."""
    planned = planned_files(job, plan)
    for name in unlisted(folder, planned) + ([] if begun else sorted(filter(folder.exists, planned))):
        raise UsageError(
            f"{folder.path(name)} is there, and not from this export", "Remove it, or choose another --out."
        )


def _finalize(folder: Folder, file: str, size: int, job: ExportJob, fan_out: FanOut) -> None:
    """Make one file of its regions. An object store has to join them, which takes a while."""
    token_bytes = np.dtype(job.dtype).itemsize
    if folder.is_remote:
        fan_out.begin(f"join {file}", size // token_bytes)
    folder.regions.finalize(file, size, lambda joined: fan_out.advance(joined // token_bytes))
