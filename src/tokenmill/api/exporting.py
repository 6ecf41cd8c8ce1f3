"""Store to shards: freeze the export, bring the documents into order, write the shards that are missing, finish."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill import layout
from tokenmill.api import progress
from tokenmill.api.errands import Crew
from tokenmill.api.export_request import ExportRequest, ExportWords, make_export_request, make_job
from tokenmill.api.ordering import Ordering, chunks
from tokenmill.api.request import Means, choose_means
from tokenmill.api.wording import size
from tokenmill.executors.local import LocalExecutor
from tokenmill.exports import PRELOAD, records, shards
from tokenmill.exports import job as names
from tokenmill.exports.job import ExportJob, FrozenExport, freeze
from tokenmill.exports.shards import Counts, ShardTask
from tokenmill.exports.work import Collect, Site, WriteShard, split_folder
from tokenmill.formats import find_format
from tokenmill.formats.format import Finished, ShardRecord, Written
from tokenmill.storage import Folder

TOKENS_PER_WORKER = 4_000_000
"""With less to write for each, another worker is not worth its start."""

WORKER_OWN_BYTES = 150 << 20
"""What a worker of an export needs for its libraries."""

SMALLEST_WORKER_BYTES = 300 << 20
"""What such a worker needs to do anything: it holds no engine."""

LEAST_BATCH_BYTES = 8 << 20
MOST_BATCH_BYTES = 1 << 30
RUNS_PER_WORKER = 4
BINS_PER_SHARD = 32
MOST_BINS = 1 << 22


class ExportedSplit(msgspec.Struct, frozen=True):
    """What a split holds, and how many tokens are in no shard because of `--tail drop`."""

    shards: int
    documents: int
    tokens: int
    tokens_left_out: int


class Exported(msgspec.Struct, frozen=True):
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


def export(  # noqa: PLR0913 - the options of the command, by their names
    directory: str,
    *,
    to: str,
    out: str | None = None,
    val: str | float | None = None,
    shuffle: int | None = None,
    shard_tokens: str | int | None = None,
    tail: str | None = None,
    end_token: str | None = None,
    dtype: str | None = None,
    sequence_tokens: str | int | None = None,
    name: str | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    reporter: progress.Reporter | None = None,
    executor: LocalExecutor | None = None,
) -> Exported:
    """Write a store's tokens as the files a trainer reads: to `out`, or into the store under the format's name.

    Call it again after any interruption: only the shards that are missing are written.
    """
    words = ExportWords(val, shuffle, shard_tokens, tail, end_token, dtype, sequence_tokens, name)
    request = make_export_request(to, words, layout.require_run(Folder(directory)).job.tokenizer)
    with (
        nullcontext(executor) if executor is not None else LocalExecutor(PRELOAD) as pool,
        reporter if reporter is not None else progress.for_python() as report,
    ):
        return export_store(directory, out, request, Limits(workers, memory), report, pool)


@dataclass(frozen=True, slots=True)
class Limits:
    """The workers and the memory that were asked for, if any."""

    workers: int | None
    memory: str | int | None


def export_store(  # noqa: PLR0913, PLR0917 - what, where to, how, by whom
    directory: str,
    out: str | None,
    request: ExportRequest,
    limits: Limits,
    report: progress.Reporter,
    pool: LocalExecutor,
) -> Exported:
    """Export a store as asked."""
    started = time.monotonic()
    store = Folder(directory)
    run = layout.require_run(store)
    manifest = layout.require_manifest(store, run)
    job, notices = make_job(request, run, manifest)
    tokens = int(manifest["tokens"].to_numpy().sum())
    means = choose_means(limits.workers, limits.memory, tokens // TOKENS_PER_WORKER + 1, SMALLEST_WORKER_BYTES)
    if means.notice is not None:
        notices.append(means.notice)
    folder = Folder(out if out is not None else store.path(job.format))
    directories = {".", names.STATE, names.RECORDS, *(split_folder(job, split) for split in ("train", "val"))}
    for each in directories:
        folder.create(each)
    with folder.lock(names.LOCK):
        for each in directories:
            folder.remove_temporaries(each)
        frozen = freeze(folder, _frozen(job, means, tokens, np.dtype(run.job.tokenizer.dtype).itemsize))
        if not folder.exists(names.PLAN):
            notices += _lack_of_space(folder, tokens * np.dtype(job.dtype).itemsize, job)
        site = Site(store.root, folder.root, frozen, _batch_bytes(means))
        crew = Crew(pool, report, means.workers, np.dtype(job.dtype).itemsize)
        exporter = _Exporter(site, folder, manifest, crew, notices)
        exporter.announce()
        pool.start(means.workers, means.worker_bytes)
        exporter.run()
        return exporter.exported(time.monotonic() - started)


def _lack_of_space(folder: Folder, export_bytes: int, job: ExportJob) -> list[str]:
    """A word of warning if the disk does not hold the export, and the runs of its shuffle."""
    needed, free = export_bytes * (1 if job.shuffle is None else 2), folder.free_bytes()
    if needed <= free:
        return []
    return [f"about {size(needed)} are needed{' for a while' * (job.shuffle is not None)}, and {size(free)} are free"]


def _batch_bytes(means: Means) -> int:
    return min(max((means.worker_bytes - WORKER_OWN_BYTES) // 6, LEAST_BATCH_BYTES), MOST_BATCH_BYTES)


def _frozen(job: ExportJob, means: Means, tokens: int, token_bytes: int) -> FrozenExport:
    """How the work of a shuffle is cut: runs that a worker can sort, bins that are small beside a shard and a batch."""
    run_bytes = max((means.worker_bytes - WORKER_OWN_BYTES) // 3, LEAST_BATCH_BYTES)
    run_bytes = min(run_bytes, tokens * token_bytes // (RUNS_PER_WORKER * means.workers) + 1)
    wanted = max(BINS_PER_SHARD * tokens // shards.step(job), 8 * tokens * token_bytes // _batch_bytes(means), 2)
    return FrozenExport(job, bins=min(1 << wanted.bit_length(), MOST_BINS), run_tokens=run_bytes // token_bytes + 1)


@dataclass
class _Exporter:
    """The shards of an export on their way."""

    site: Site
    folder: Folder
    manifest: pa.Table
    crew: Crew
    notices: list[str]
    records: list[ShardRecord] = field(default_factory=list)
    others: list[Written] = field(default_factory=list)
    written: list[ShardRecord] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.job = self.site.frozen.job
        self.format = find_format(self.job.format)
        self.traits = self.format.TRAITS

    def announce(self) -> None:
        """Say what is about to be written."""
        job, say = self.job, self.crew.report.say
        end = "none" if job.end_token is None else f"{job.end_token}, {job.end}"
        order = "in the order of the store" if job.shuffle is None else f"shuffled with seed {job.shuffle}"
        shard = "one file for each split" if job.shard_tokens is None else f"shards of {job.shard_tokens:,} tokens"
        say(f"export       {self.traits.name} ({self.traits.trainer}) to {self.folder.root}")
        say(f"tokens       {job.dtype}; end token {end}")
        say(f"order        {order}; {shard}; val {job.val or 'none'}")
        for notice in self.notices:
            say(f"note: {notice}")

    def run(self) -> None:
        """Everything from counting to the manifest; what is there already is not done again."""
        plan = self._plan()
        self.left_out = shards.left_out(plan)
        there = records.committed(self.folder, len(plan))
        self._write(plan, np.flatnonzero(~there))
        self.records = sorted([*self._earlier(np.flatnonzero(there)), *self.written], key=lambda each: each.shard)
        self._remark()
        if self.folder.exists(names.MANIFEST):
            self.others = records.read_others(layout.read_table(self.folder, names.MANIFEST))
        else:
            self._finish()

    def _plan(self) -> pa.Table:
        if self.folder.exists(names.PLAN):
            return layout.read_table(self.folder, names.PLAN)
        ordering = Ordering(self.site, self.manifest, self.crew)
        blocks = ordering.blocks()
        plan = shards.plan(self.job, self.traits, blocks, functools.partial(ordering.resolve, blocks))
        layout.publish_table(self.folder, names.PLAN, plan)
        return plan

    def _write(self, plan: pa.Table, numbers: Counts) -> None:
        tokens = plan["stop"].to_numpy() - plan["start"].to_numpy()
        if not len(numbers):
            return
        self.crew.begin(f"export {self.job.format}", int(tokens.sum()), int(tokens.sum() - tokens[numbers].sum()))
        started = None
        for done in self.crew.each(WriteShard(self.site), shards.tasks(plan, numbers), _describe):
            started = started or time.monotonic() - done.seconds  # workers may have had to be started first
            self.seconds = time.monotonic() - started
            self.written.append(done.value)
            self.crew.advance(done.value.tokens)

    def _earlier(self, numbers: Counts) -> list[ShardRecord]:
        items = [tuple(chunk) for chunk in chunks(numbers.tolist())]
        found = self.crew.each(Collect(self.folder.root), items, lambda _: "the records of shards")
        return [record for done in found for record in done.value]

    def _remark(self) -> None:
        """Say what may surprise whoever trains on the export."""
        splits = self._splits()
        for split, found in splits.items():
            last = found[-1].tokens
            if self.traits.shortest_shard and len(found) > 1 and last < shards.step(self.job):
                self._note(
                    f"the last {split} shard has {last:,} tokens; the trainer stops at one of less than "
                    f"{self.traits.shortest_shard}. --tail merge or drop avoids it"
                )
        for split in self.left_out.keys() - splits.keys():
            self._note(f"{split} is empty: its {self.left_out[split]:,} tokens fill no sequence of this length")
        if self.job.val is not None and "val" not in self.left_out:
            self._note(f"no document fell into val: --val {self.job.val} is too small a share of this store")

    def _note(self, notice: str) -> None:
        self.notices.append(notice)
        self.crew.report.say(f"note: {notice}")

    def _finish(self) -> None:
        """Write what needs every shard, then the manifest: from now on the export is complete."""
        for split, found in self._splits().items():
            file = found[0].files[0].name if self.job.shard_tokens is None else None
            if file is not None:
                self.folder.seal(file)
            folder = split_folder(self.job, split)
            length = self.job.sequence_tokens
            finished = Finished(folder, self.job.dtype, found, self._lengths(found), length, file)
            self.others += self.format.finish(self.folder, finished)
            self.folder.settle(folder)
        self.folder.settle(names.RECORDS)
        layout.publish_table(self.folder, names.MANIFEST, records.manifest(self.records, self.others))
        self.folder.remove(names.RUNS)

    def _lengths(self, found: Sequence[ShardRecord]) -> Callable[[], Iterator[Counts]]:
        return lambda: (records.read_lengths(self.folder, record.shard) for record in found)

    def _splits(self) -> dict[str, list[ShardRecord]]:
        found: dict[str, list[ShardRecord]] = {}
        for record in self.records:
            found.setdefault(record.split, []).append(record)
        return found

    def exported(self, seconds: float) -> Exported:
        """What it came to."""
        found = self._splits()
        splits = {split: _exported_split(found.get(split, []), left) for split, left in self.left_out.items()}
        written = [*(file for record in self.records for file in record.files), *self.others]
        return Exported(
            directory=self.folder.root,
            format=self.job.format,
            trainer=self.traits.trainer,
            dtype=self.job.dtype,
            end_token=self.job.end,
            shuffle=self.job.shuffle,
            files=len({file.name for file in written}),
            bytes=sum(file.bytes for file in written),
            splits=splits,
            shards_done_now=len(self.written),
            deaths=self.crew.deaths,
            seconds=round(seconds, 3),
            tokens_per_second=round(sum(record.tokens for record in self.written) / max(self.seconds, 1e-9)),
            notices=self.notices,
        )


def _exported_split(found: Sequence[ShardRecord], tokens_left_out: int) -> ExportedSplit:
    return ExportedSplit(
        shards=len({record.files[0].name for record in found}),
        documents=sum(record.begun for record in found),
        tokens=sum(record.tokens for record in found),
        tokens_left_out=tokens_left_out,
    )


def _describe(task: ShardTask) -> str:
    return f"{task.split} shard {task.number} (tokens {task.start:,} to {task.stop:,})"
