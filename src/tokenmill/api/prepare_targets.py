"""The stores of one `prepare` call, one for each tokenizer, and the result of the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import UsageError
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.progress import Reporter
from tokenmill.executors.ranks import RankShare
from tokenmill.exports.request import ExportRequest
from tokenmill.exports.result import ExportResult
from tokenmill.humanize import Readable, count, size
from tokenmill.options import StrPath
from tokenmill.pipeline.driving.complete import RunCompletion
from tokenmill.pipeline.driving.context import RunContext, make_events
from tokenmill.pipeline.driving.preflight import DiskNeeds
from tokenmill.pipeline.planning.estimate import Footprint
from tokenmill.pipeline.planning.freeze import FrozenRun
from tokenmill.pipeline.planning.request import PrepareRequest
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.sources import Discovery, Ignored
from tokenmill.sources.named_datasets import ResolvedSources
from tokenmill.storage import Folder, folder_at
from tokenmill.store import layout, quarantine
from tokenmill.store.manifest import ControlTokens, trained_tokens
from tokenmill.store.tables import manifest_totals
from tokenmill.tokenization.objects import TokenizerObject
from tokenmill.tokenization.resolve import directory_name

# A text file that is larger is rarely meant to be one document.
LARGE_TEXT_BYTES = 1_000_000

# How many reasons of rows in quarantine the result has.
SHOWN_REASONS = 10

# What a run that was stopped while it was frozen may have left, besides hidden files.
FROZEN = (layout.PARTS, layout.KEPT, layout.DENY, layout.TOKENIZER, layout.SOURCES, layout.PLAN, layout.SPOOL)


class PrepareResult(Readable, msgspec.Struct, frozen=True):
    """The result of a run. Counts are of the whole store; rates, deaths and memory are of this call.

    `end_token_text` is the spelling of the end token, if it is an added token. With several tokenizers it is the result
    of the first one, and `others` are those of the others. `bad_details` are the most common reasons why conversations
    are in quarantine, with the words of the template.
    """

    directory: str
    tokenizer: str
    engine: str
    begin_token: int | None
    end_token: int | None
    end_token_text: str | None
    sources: int
    units: int
    units_done_now: int
    documents: int
    tokens: int
    text_bytes: int
    skipped_rows: int
    skipped_reasons: dict[str, int]
    quarantined: int
    deaths: int
    seconds: float
    tokens_per_second: float
    bytes_per_second: float
    peak_worker_bytes: int
    notices: list[str]
    exports: list[ExportResult]
    datasets: list[str]
    expected_rows: int | None
    ignored: Ignored
    others: list[PrepareResult] = []
    unread_row_groups: int = 0
    control_tokens: ControlTokens = ControlTokens(0, 0)
    trained_tokens: int | None = None
    bad_details: dict[str, int] = {}

    def __fspath__(self) -> str:
        """The directory, so that functions that take its path take the result."""
        return self.directory


@dataclass
class PrepareTarget:
    """The store of one tokenizer, what is to be done, and its run once it is open."""

    folder: Folder
    request: PrepareRequest
    exports: list[ExportRequest] = field(default_factory=list)
    context: RunContext = field(init=False)

    @property
    def named(self) -> ResolvedSources:
        """The sources of the call, with the notes of this store."""
        return self.request.named

    def disk_needs(self, later: Sequence[PrepareTarget], shuffle: int | None) -> DiskNeeds:
        """What this store, each store that is made beside it, and the exports of this store take on the disk."""
        stores = (Footprint.of_store(store.request.job.tokenizer.dtype) for store in (self, *later))
        return DiskNeeds(tuple(stores), tuple(Footprint.of_export(export.dtype, shuffle) for export in self.exports))

    def open(  # noqa: PLR0913, PLR0917 - the run, and what it may use
        self,
        frozen: FrozenRun,
        limits: WorkerLimits,
        workers: int,
        pool: Pool,
        report: Reporter,
        rank_share: RankShare | None,
    ) -> None:
        """Begin the log of the run. Workers without a unit lend their cores to the others."""
        trial = frozen.run.trial
        self.named.notes.extend([*frozen.notes, *([f"this store is a trial: {trial}"] if trial else [])])
        events = make_events(self.folder, frozen.run, report, pool, workers, rank_share)
        limits = limits.for_units(frozen.run.units, workers)
        self.context = RunContext(self.folder, frozen, limits, workers, report, events, rank_share)

    def result(
        self,
        run: RunCompletion,
        manifest: pa.Table,
        seconds: float,
        unit_seconds: float,
        exports: list[ExportResult],
    ) -> PrepareResult:
        """The result of this store."""
        context, named = self.context, self.named
        job, events = context.frozen.run.job, context.events
        totals = manifest_totals(manifest)
        if not totals["documents"]:
            _note_empty(context, totals["skipped"], named.notes)
        elif _is_never_separated(context.frozen, totals["documents"] + totals["skipped"]):
            _note(context, f"--separator {job.separator!r} divides no file: each file is one document", named.notes)
        trained = trained_tokens(manifest)
        trainable = totals["tokens"] - totals["documents"] * (job.begin is not None)
        if job.segments and trained in {0, trainable}:
            segments = f'no segment has text and "train": {"false" if trained else "true"}'
            _note(context, f"{'all' if trained else 'no'} tokens are trained on: {segments}", named.notes)
        unit_seconds = max(unit_seconds, 1e-9)
        return PrepareResult(
            directory=context.folder.root,
            tokenizer=job.tokenizer.name,
            engine=run.driver.engine,
            begin_token=job.begin,
            end_token=job.end,
            end_token_text=None if job.end is None else job.tokenizer.spelling(job.end),
            sources=context.frozen.run.sources,
            units=context.frozen.run.units,
            units_done_now=events.step.units,
            documents=totals["documents"],
            tokens=totals["tokens"],
            text_bytes=totals["text_bytes"],
            skipped_rows=totals["skipped"],
            skipped_reasons=dict(+run.manifest.skipped_reasons),
            quarantined=totals["quarantined"],
            deaths=events.step.deaths,
            seconds=round(seconds, 3),
            tokens_per_second=round(events.step.tokens / unit_seconds),
            bytes_per_second=round(events.step.text_bytes / unit_seconds),
            peak_worker_bytes=events.peak_worker_bytes,
            notices=[*named.notes, *events.notices],
            exports=exports,
            datasets=[dataset.title for dataset in named.datasets],
            expected_rows=named.expected_rows(),
            ignored=self.request.discovery.ignored,
            unread_row_groups=events.unread_groups,
            control_tokens=ControlTokens.of(manifest),
            trained_tokens=trained,
            bad_details=_bad_details(context) if job.messages and totals["quarantined"] else {},
        )


def _bad_details(context: RunContext) -> dict[str, int]:
    """The most common reasons of rows in quarantine, in detail."""
    found = Counter(f"{bad.reason}: {bad.detail}" for bad in quarantine.read(context.folder, context.frozen.head))
    return dict(found.most_common(SHOWN_REASONS))


def store_folders(out: str, tokenizers: Sequence[StrPath | TokenizerObject]) -> list[Folder]:
    """The directory of each tokenizer's store: `out`, or with several tokenizers a directory in it for each."""
    if len(tokenizers) == 1:
        return [folder_at(out)]
    names = [directory_name(tokenizer) for tokenizer in tokenizers]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two tokenizers would have the same store: {out}/{twice}", "Prepare them one by one.")
    return [folder_at(f"{out.rstrip('/')}/{name}") for name in names]


def other_files_note(folder: Folder) -> list[str]:
    """The note that a new run goes into a directory with other files."""
    if folder.is_remote or folder.exists(layout.RUN):
        return []
    others = [name for name in folder.names(".") if name not in FROZEN and not name.startswith(".")]
    return [f"{folder.root} holds other files; they are left alone"] if others else []


def one_document_notes(discovery: Discovery, separator: str | None) -> list[str]:
    """The note that a large text file becomes one document, which is rarely intended."""
    if separator is not None:
        return []
    is_large = pc.and_(
        pc.equal(discovery.table["kind"].cast("string"), "text"),
        pc.greater(discovery.table["size"], LARGE_TEXT_BYTES),
    )
    large = discovery.table.filter(is_large)
    if not len(large):
        return []
    others = f" and {count(len(large) - 1, 'other large file')}" if len(large) > 1 else ""
    path, file_bytes = large["path"][0].as_py(), large["size"][0].as_py()
    return [f"{path} ({size(file_bytes)}){others}: one document each. --separator '\\n\\n' divides them into documents"]


def _note_empty(context: RunContext, skipped: int, notes: list[str]) -> None:
    """Note that a complete store holds nothing, which is rarely intended."""
    rows = f"all {count(skipped, 'row')} of the sources are skipped" if skipped else "the sources have no rows"
    _note(context, f"the store holds no documents: {rows}", notes)


def _is_never_separated(frozen: FrozenRun, rows: int) -> bool:
    """Whether all sources are text with a separator, and none of them has two documents."""
    job, sources = frozen.run.job, frozen.sources
    if job.separator is None or frozen.run.trial:
        return False
    files = int(np.count_nonzero(sources["size"].to_numpy()))
    return rows <= files and bool(pc.all(pc.equal(sources["kind"].cast("string"), "text")).as_py())


def _note(context: RunContext, note: str, notes: list[str]) -> None:
    """Show a note at the end of a run, and record it."""
    notes.append(note)
    context.events.log.add("notice", message=note)
    context.report.say(f"note: {note}")
