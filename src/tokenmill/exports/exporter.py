"""The shards of an export on their way: planned, written where they are missing, finished."""

from __future__ import annotations

import functools
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.errors import CorruptStore, UsageError
from tokenmill.executors.fan_out import FanOut
from tokenmill.exports import job as names
from tokenmill.exports import records, shards
from tokenmill.exports.formats import find_format
from tokenmill.exports.formats.protocol import CompletedSplit, ShardRecord, WrittenFile
from tokenmill.exports.shards import Counts, ShardTask
from tokenmill.exports.sort_documents import Ordering, chunks
from tokenmill.exports.verify import ByteRange, IsAsWritten, unlisted
from tokenmill.exports.write_shard import ExportContext, ReadRecords, WriteShard, shard_of, split_folder
from tokenmill.storage import Folder, prefetch_map


class ExportedSplit(msgspec.Struct, frozen=True):
    """What a split holds, and how many tokens are in no shard because of `--tail drop`."""

    shards: int
    documents: int
    tokens: int
    tokens_left_out: int


class ExportResult(msgspec.Struct, frozen=True):
    """What an export came to. Rates and deaths are of this call."""

    directory: str
    format: str
    trainer: str
    dtype: str
    end_token: str
    shuffle: int | None
    files: int
    bytes: int
    splits: dict[str, ExportedSplit]
    shards_done_now: int
    deaths: int
    seconds: float
    tokens_per_second: float
    notices: list[str]
    use: str = ""
    """How the trainer is told of the files."""


PREFETCH_CHECKS = 16
SHORT_TOKENS = 1 << 20
"""A shard of less may be too short for a trainer: a batch of GPT-2's size is half of it."""

MAX_PREFIXES = 3
TINY_VAL_TOKENS = 2048
"""A val of less tells little of a model: it is one or two windows of a trainer's."""

VAL_FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass
class Exporter:
    """One call's work on a frozen export."""

    context: ExportContext
    folder: Folder
    manifest: pa.Table
    fan_out: FanOut
    notices: list[str]
    records: list[ShardRecord] = field(default_factory=list)
    others: list[WrittenFile] = field(default_factory=list)
    written: list[ShardRecord] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.job = self.context.frozen.job
        self.format = find_format(self.job.format)
        self.spec = self.format.SPEC

    def announce(self) -> None:
        """Say what is about to be written."""
        job, say = self.job, self.fan_out.report.say
        end = "none" if job.end_token is None else f"{job.end_token}, {job.end}"
        order = "in the order of the store" if job.shuffle is None else f"shuffled with seed {job.shuffle}"
        shard = (
            "one file for each split"
            if job.shard_tokens is None
            else f"shards of {shards.tokens_per_shard(job):,} tokens"
        )
        say(f"export       {self.spec.name} ({self.spec.trainer}) to {self.folder.root}")
        say(f"tokens       {job.dtype}; end token {end}")
        say(f"order        {order}; {shard}; val {job.val or 'none'}")
        for notice in self.notices:
            say(f"note: {notice}")

    def run(self) -> None:
        """Everything from counting to the manifest; what is there already is not done again."""
        ordering = Ordering(self.context, self.manifest, self.fan_out)
        plan = self._plan(ordering)
        self.left_out = shards.skipped_tokens(plan)
        earlier = self._intact(plan, self._earlier(np.flatnonzero(records.committed(self.folder, len(plan)))))
        missing = np.setdiff1d(np.arange(len(plan)), [record.shard for record in earlier])
        if len(missing):
            self.folder.discard(names.MANIFEST)
            ordering.sort()  # the runs of a shuffle are gone if it was complete before
            self._write(plan, missing)
        self.records = sorted([*earlier, *self.written], key=lambda each: each.shard)
        self._remark()
        if not self._is_complete():
            self.others = []
            self.folder.discard(names.MANIFEST)
            started = time.monotonic()
            self._finish()
            self.seconds += (time.monotonic() - started) if self.written else 0.0
        self.folder.remove(names.RUNS)

    def _is_complete(self) -> bool:
        """Whether the manifest lists these shards, and the files beside them, such as indexes, are as it says."""
        if not self.folder.exists(names.MANIFEST):
            return False
        try:
            manifest = records.read_manifest(self.folder, self.job.digest())
            self.others = records.read_others(manifest)
            is_listed = manifest.to_pylist() == records.manifest(self.records, self.others).to_pylist()
        except CorruptStore:
            is_listed = False
        if not is_listed:
            self._note(f"{names.MANIFEST} is not as it was written; it is written again")
            return False
        files: dict[int, tuple[ByteRange, ...]] = {place: (_whole(file),) for place, file in enumerate(self.others)}
        wrong = [self.others[place].name for place in sorted(files.keys() - self._as_written(files))]
        for name in wrong:
            self._note(f"{name} is not as it was written; it is written again")
        return not wrong

    def _plan(self, ordering: Ordering) -> pa.Table:
        if self.folder.exists(names.PLAN):
            tokens = int(self.manifest["tokens"].to_numpy().sum())
            count = len(self.manifest) if self.job.shuffle is None else self.context.frozen.bins
            plan = shards.read_plan(self.folder, self.context.frozen.work_digest(), tokens, count)
            self._refuse_others(plan, begun=True)
            return plan
        blocks = ordering.blocks()
        found, expected = int(blocks.tokens.sum()), int(self.manifest["tokens"].to_numpy().sum())
        if found != expected:
            raise CorruptStore(
                "the documents of an export are not those of its store",
                f"export       {self.folder.root}",
                f"expected     {expected:,} tokens",
                f"found        {found:,}",
                "Remove the directory and export again, from one machine at a time.",
            )
        plan = shards.plan(self.job, self.spec, blocks, functools.partial(ordering.resolve, blocks))
        self._refuse_others(plan, begun=bool(records.committed(self.folder, len(plan)).any()))
        shards.publish_plan(self.folder, plan, self.context.frozen.work_digest())
        return plan

    def _refuse_others(self, plan: pa.Table, *, begun: bool) -> None:
        """Refuse a file that is called like a shard, if it is none of the plan or this export has not begun."""
        tasks = shards.tasks(plan, np.arange(len(plan)))
        planned = {name for task in tasks for name in self.format.files(shard_of(self.context, task))}
        for name in unlisted(self.folder, planned) + ([] if begun else sorted(filter(self.folder.exists, planned))):
            raise UsageError(
                f"{self.folder.path(name)} is there, and not from this export", "Remove it, or choose another --out."
            )

    def _write(self, plan: pa.Table, numbers: Counts) -> None:
        tokens = plan["stop"].to_numpy() - plan["start"].to_numpy()
        self.fan_out.begin(f"export {self.job.format}", int(tokens.sum()), int(tokens.sum() - tokens[numbers].sum()))
        started = None
        for done in self.fan_out.run(WriteShard(self.context), shards.tasks(plan, numbers), _describe):
            started = started or time.monotonic() - done.seconds  # workers may have had to be started first
            self.seconds = time.monotonic() - started
            self.written.append(done.value)
            self.fan_out.advance(done.value.tokens)

    def _earlier(self, numbers: Counts) -> list[ShardRecord]:
        items = [tuple(chunk) for chunk in chunks(numbers.tolist())]
        found = self.fan_out.run(ReadRecords(self.folder.root), items, lambda _: "the records of shards")
        sound = [record for done in found for record in done.value]
        for shard in np.setdiff1d(numbers, [record.shard for record in sound]).tolist():
            self._note(f"the record of shard {shard} is not as it was written; the shard is written again")
            records.discard(self.folder, shard)
        return sound

    def _intact(self, plan: pa.Table, earlier: list[ShardRecord]) -> list[ShardRecord]:
        """The shards whose files are as they were written; the records of the others are discarded, with a note."""
        places, sizes = (
            plan[name].to_numpy() * np.dtype(self.job.dtype).itemsize for name in ("position", "file_tokens")
        )
        files = {record.shard: tuple(map(_whole, record.files)) for record in earlier}
        if self.job.shard_tokens is None:
            files = {
                record.shard: tuple(
                    _piece(file, int(places[record.shard]), int(sizes[record.shard])) for file in record.files
                )
                for record in earlier
            }
        as_written, digest = self._as_written(files), self.job.digest()
        intact = []
        for record in earlier:
            if record.export == digest and record.shard in as_written:
                intact.append(record)
            else:
                self._note(f"{record.files[0].name} is not as it was written; it is written again")
                records.discard(self.folder, record.shard)
        return intact

    def _as_written(self, files: dict[int, tuple[ByteRange, ...]]) -> set[int]:
        """The numbers of the files that are as they were written.

        On a disk their checksums are compared. In an object store, and while a file is being filled, only sizes are.
        """

        def is_there(number: int) -> bool:
            return all(
                self.folder.region_exists(file.name, file.file_bytes, file.start, file.bytes) for file in files[number]
            )

        there = zip(files, prefetch_map(self.folder, is_there, files, PREFETCH_CHECKS), strict=True)
        found = {number for number, is_right in there if is_right}
        if self.folder.is_remote:
            return found
        items = [(number, files[number]) for number in sorted(found)]
        items = [item for item in items if all(self.folder.exists(file.name) for file in item[1])]
        item_bytes = np.dtype(self.job.dtype).itemsize
        self.fan_out.begin("compare", sum(file.bytes for _, some in items for file in some) // item_bytes)
        for done in self.fan_out.run(IsAsWritten(self.folder.root), items, lambda item: item[1][0].name):
            self.fan_out.advance(sum(file.bytes for file in done.item[1]) // item_bytes)
            if not done.value:
                found.discard(done.item[0])
        return found

    def _remark(self) -> None:
        """Say what may surprise whoever trains on the export."""
        splits = self._splits()
        for split, found in splits.items():
            last = found[-1].tokens
            if self.spec.shortest_shard and last < min(SHORT_TOKENS, shards.tokens_per_shard(self.job)):
                remedy = "A larger --val" if split == "val" else "--tail merge or drop"
                self._note(
                    f"the last {split} shard has {last:,} tokens; the trainer stops at one of less than "
                    f"{self.spec.shortest_shard}. {remedy} avoids it"
                )
        if not int(self.manifest["tokens"].to_numpy().sum()):
            self._note("the store holds no tokens: no file is written")
            return
        for split in ["train"] if self.job.val is None else ["train", "val"]:
            if split not in self.left_out:
                remedy = f"; hold out more: {self._larger_val()}" if split == "val" else ""
                self._note(f"no document fell into {split}: it has no file{remedy}")
            elif split not in splits:
                self._note(f"{split} has no file: its {self.left_out[split]:,} tokens fill no sequence or shard")
        train, val = (sum(record.tokens for record in splits.get(split, [])) for split in ("train", "val"))
        if 0 < val < TINY_VAL_TOKENS and train > 10 * val and not self.spec.shortest_shard:
            self._note(f"val has only {val:,} tokens; hold out more: {self._larger_val()}")

    def _larger_val(self) -> str:
        """A share that gives a val of some use, if the store is large enough for one."""
        tokens = int(self.manifest["tokens"].to_numpy().sum())
        enough = (share for share in VAL_FRACTIONS if share * tokens > 2 * TINY_VAL_TOKENS)
        return f"--val {next(enough, VAL_FRACTIONS[-1])}, or larger"

    def _note(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)
        self.fan_out.report.say(f"note: {notice}")

    def _finish(self) -> None:
        """Write what needs every shard, then the manifest: from now on the export is complete."""
        self.folder.sync_directory(names.RECORDS)
        for split, found in self._splits().items():
            file = found[0].files[0].name if self.job.shard_tokens is None else None
            if file is not None:
                self._seal(file, sum(record.files[0].bytes for record in found))
            folder = split_folder(self.job, split)
            length = self.job.sequence_tokens
            finished = CompletedSplit(folder, self.job.dtype, found, self._lengths(found), length, file)
            self.others += self.format.finish(self.folder, finished)
            self.folder.sync_directory(folder)
        records.publish_manifest(self.folder, records.manifest(self.records, self.others), self.job.digest())

    def _seal(self, file: str, size: int) -> None:
        """Make one file of the stretches; in an object store they have to be joined, which takes a while."""
        item = np.dtype(self.job.dtype).itemsize
        if self.folder.is_remote:
            self.fan_out.begin(f"join {file}", size // item)
        self.folder.finalize(file, size, lambda joined: self.fan_out.advance(joined // item))

    def _lengths(self, found: Sequence[ShardRecord]) -> Callable[[], Iterator[Counts]]:
        read = functools.partial(records.read_lengths, self.folder)
        return lambda: prefetch_map(self.folder, read, [record.shard for record in found])

    def _splits(self) -> dict[str, list[ShardRecord]]:
        found: dict[str, list[ShardRecord]] = {}
        for record in self.records:
            found.setdefault(record.split, []).append(record)
        return found

    def exported(self, seconds: float) -> ExportResult:
        """What it came to."""
        found = self._splits()
        splits = {split: _exported_split(found.get(split, []), left) for split, left in self.left_out.items()}
        written = [*(file for record in self.records for file in record.files), *self.others]
        return ExportResult(
            directory=self.folder.root,
            format=self.job.format,
            trainer=self.spec.trainer,
            dtype=self.job.dtype,
            end_token=self.job.end,
            shuffle=self.job.shuffle,
            files=len({file.name for file in written}),
            bytes=sum(file.bytes for file in written),
            splits=splits,
            shards_done_now=len(self.written),
            deaths=self.fan_out.deaths,
            seconds=round(seconds, 3),
            tokens_per_second=round(sum(record.tokens for record in self.written) / max(self.seconds, 1e-9)),
            notices=self.notices,
            use=self._use(found),
        )

    def _use(self, splits: dict[str, list[ShardRecord]]) -> str:
        """How the trainer is told of the files; nothing if there is nothing to train on."""
        if "train" not in splits:
            return ""
        files = {split: sorted({each.files[0].name for each in found}) for split, found in splits.items()}
        template = self.spec.use_val if "val" in splits and self.spec.use_val else self.spec.use
        return template.format(
            directory=self.folder.root,
            train_folder=self.folder.path(split_folder(self.job, "train") or "."),
            token_bytes=np.dtype(self.job.dtype).itemsize,
            **{split: self.folder.path(_pattern(found)) for split, found in files.items()},
            **{f"{split}_prefix": _prefixes([*map(self.folder.path, found)]) for split, found in files.items()},
        )


def _whole(file: WrittenFile) -> ByteRange:
    return _piece(file, 0, file.bytes)


def _piece(file: WrittenFile, start: int, file_bytes: int) -> ByteRange:
    return ByteRange(file.name, start, file.bytes, file.xxh3, file_bytes)


def _pattern(files: Sequence[str]) -> str:
    """The file of a split, or a pattern for several: what differs is the number in their names."""
    return files[0] if len(files) == 1 else re.sub(r"\d+(?=\D*$)", "*", files[0])


def _prefixes(paths: Sequence[str]) -> str:
    """The paths without their endings; of many, the first and the last."""
    stems = [os.path.splitext(path)[0] for path in paths]
    return " ".join(stems if len(stems) <= MAX_PREFIXES else [stems[0], "...", stems[-1]])


def _exported_split(found: Sequence[ShardRecord], tokens_left_out: int) -> ExportedSplit:
    return ExportedSplit(
        shards=len({record.files[0].name for record in found}),
        documents=sum(record.begun for record in found),
        tokens=sum(record.tokens for record in found),
        tokens_left_out=tokens_left_out,
    )


def _describe(task: ShardTask) -> str:
    return f"{task.split} shard {task.number} (tokens {task.start:,} to {task.stop:,})"
