"""Sources to store: freeze the run, do the units that are missing, write the manifest."""

from __future__ import annotations

import time
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.api.export import ExportLimits, export_store
from tokenmill.errors import StorageError, StoreError, UsageError
from tokenmill.executors import progress
from tokenmill.executors.messages import out_of
from tokenmill.executors.session import LOCAL, check_executor, open_executor
from tokenmill.exports.exporter import ExportResult
from tokenmill.exports.request import ExportOptions, make_export_request, refuse_unused
from tokenmill.humanize import count, size
from tokenmill.pipeline import plan, ranks, worker_modules
from tokenmill.pipeline.adoption import adopt, refuse_for_ranks
from tokenmill.pipeline.driver import Driver
from tokenmill.pipeline.freeze import freeze
from tokenmill.pipeline.heartbeat import Heartbeat
from tokenmill.pipeline.position import DEFAULT_SECONDS
from tokenmill.pipeline.preflight import check_room, export_token_bytes
from tokenmill.pipeline.request import (
    BadDocumentPolicy,
    PrepareOptions,
    PrepareRequest,
    find_sources,
    make_request,
    total_bytes,
)
from tokenmill.pipeline.resources import plan_resources
from tokenmill.pipeline.run_end import recorded
from tokenmill.pipeline.run_once import FINISHING, PLANNING, run_once
from tokenmill.sources import Ignored
from tokenmill.sources.named_datasets import resolve_sources
from tokenmill.storage import folder_at
from tokenmill.store import layout, quarantine
from tokenmill.tokenizers.spec import TokenizerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from tokenmill.executors.outcomes import Pool
    from tokenmill.exports.request import ExportRequest
    from tokenmill.pipeline.freeze import FrozenRun
    from tokenmill.pipeline.ranks import RankShare
    from tokenmill.sources.named_datasets import ResolvedSources
    from tokenmill.storage import Folder

ANY_TOKENIZER = TokenizerSpec("any", "", "", "", vocabulary_size=1, special_tokens={})
"""A stand-in for a tokenizer that is not known yet: what was said about exports is checked with it."""

FROZEN = (layout.PARTS, layout.TOKENIZER, layout.SOURCES, layout.PLAN)
"""What a run that was stopped while it was frozen may have left, besides hidden files."""


class PrepareResult(msgspec.Struct, frozen=True):
    """What a run came to. Counts are of the whole store; rates, deaths and memory are of this call."""

    directory: str
    tokenizer: str
    engine: str
    begin_token: int | None
    end_token: int | None
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


def prepare(  # noqa: PLR0913 - the options of the command, by their names
    sources: str | Sequence[str],
    *,
    tokenizer: str,
    out: str,
    version: str | None = None,
    column: str | None = None,
    separator: str | None = None,
    engine: str = "auto",
    eot: str | int | None = None,
    bos: str | int | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    unit_bytes: str | int | None = None,
    limit_units: int | None = None,
    on_bad: str = "quarantine",
    max_bad: str | float = 0.001,
    document_timeout: str | float = DEFAULT_SECONDS,
    quarantine_text: bool = False,
    max_document_bytes: str | int | None = None,
    moved: str | Sequence[str] = (),
    repair: bool = False,
    retry_quarantine: bool = False,
    to: str | Sequence[str] = (),
    val: str | float | None = None,
    shuffle: int | None = None,
    shard_tokens: str | int | None = None,
    tail: str | None = None,
    reporter: progress.Reporter | None = None,
    on: str = "local",
    rank: int | None = None,
    of: int | None = None,
    executor: Pool | None = None,
    force: bool = False,
) -> PrepareResult:
    """Turn text into a token store at `out`, and export it to the formats of `to`, each in a directory of its name.

    Call it again after any interruption: only what is missing is done. With `on="ray"`, or a cluster's address, it is
    done there. Several processes that are rank 0, 1, ... `of` n share the work, wherever they are; each of them returns
    when the store is complete. A disk that is too small for all of it is refused first, unless `force` is set.
    `repair` checks the content of every part and makes damaged ones again; `retry_quarantine` does the units again that
    have rows in quarantine; `moved` names sources that have another path now, as `OLD=NEW`.
    """
    check_executor(on)
    formats = [to] if isinstance(to, str) else list(dict.fromkeys(to))
    export_words = ExportOptions(val, shuffle, shard_tokens, tail)
    refuse_unused(export_words, formats)
    share = ranks.choose_rank_share(rank, of, look=on == LOCAL)
    _refuse_exports(share, formats, out)
    _refuse_redoing(share, {"--repair": repair, "--retry-quarantine": retry_quarantine, "--moved": bool(moved)})
    bad = BadDocumentPolicy(on_bad, max_bad, document_timeout, quarantine_text)
    bad.check()
    named = resolve_sources(sources, version, column, limited=limit_units is not None)
    words = PrepareOptions(
        named.sources,
        tokenizer,
        named.column,
        separator,
        engine,
        eot,
        bos,
        unit_bytes,
        limit_units,
        max_document_bytes,
    )
    words.check()
    for each in formats:  # before anything is loaded or looked for
        make_export_request(each, export_words, ANY_TOKENIZER)
    started = time.monotonic()
    with open_executor(on, worker_modules(engine), executor, reporter) as (pool, report):
        discovery = find_sources(words, report.pending, out)
        named.notes.extend(discovery.ignored.notes())
        most_workers = total_bytes(discovery) // plan.SMALLEST_UNIT_BYTES + 1
        request = make_request(words, discovery, named=named)
        means = plan_resources(workers, memory, most_workers, room=pool.room, job=request.job)
        exports = [make_export_request(each, export_words, request.job.tokenizer) for each in formats]
        folder = folder_at(out)
        with _locked(folder, share):
            named.notes.extend(_other_files_note(folder))
            pool.start(means.workers, means.worker_bytes, means.crew_bytes, means.most_workers)
            frozen = _frozen(folder, request, pool, report, share, [moved] if isinstance(moved, str) else moved)
            limits = means.limits(bad)
            named.notes.extend(frozen.notes)
            frozen = adopt(folder, frozen, limits, pool, report)
            mill = Driver(
                folder,
                frozen,
                request.choice.engine,
                means,
                limits,
                bad.share(),
                report,
                share,
                repair=repair,
                retry_quarantine=retry_quarantine,
            )
            _announce(report, mill, request)
            _log_ignored(mill, discovery.ignored)
            _announce_cluster(report, mill, pool)
            manifest = _mill(mill, pool, named, None if force else exports)
            seconds = time.monotonic() - started
            exported = [
                export_store(out, None, each, ExportLimits(workers, memory, force), report, pool) for each in exports
            ]
            return _prepared(mill, manifest, seconds, exported, request)


def _refuse_exports(share: RankShare | None, formats: list[str], out: str) -> None:
    if share is not None and formats:
        raise UsageError(
            f"--to cannot be done by {share}",
            "It needs the whole store. When that is complete, run",
            *(f"tokenmill export {out} --to {name}" for name in formats),
        )


def _refuse_redoing(share: RankShare | None, options: dict[str, bool]) -> None:
    for option, is_given in options.items():
        if share is not None and is_given:
            raise UsageError(f"{option} cannot be used by {share}", "Run it once without --rank.")


@contextmanager
def _locked(folder: Folder, share: RankShare | None) -> Iterator[None]:
    """Hold the store, alone or with other ranks; nobody else's temporary files are touched.

    A directory that is made here and stays empty, because nothing could be planned, is gone when the block ends.
    """
    is_new = folder.create()
    if share is None:
        with folder.lock(layout.LOCK):
            layout.remove_temporaries(folder)
            try:
                yield
            finally:
                if is_new:
                    folder.remove_if_empty(layout.LOCK)
        return
    with folder.shared_lock(layout.LOCK):
        yield
    layout.remove_stale_temporaries(folder)


def _other_files_note(folder: Folder) -> list[str]:
    """The note that a new run goes into a directory in which there is something else."""
    if folder.is_remote or folder.exists(layout.RUN):
        return []
    others = [name for name in folder.names(".") if name not in FROZEN and not name.startswith(".")]
    return [f"{folder.root} holds other files; they are left alone"] if others else []


def _frozen(  # noqa: PLR0913, PLR0917 - where, what, by whom, and what was moved
    folder: Folder,
    request: PrepareRequest,
    pool: Pool,
    report: progress.Reporter,
    share: RankShare | None,
    moved: Sequence[str],
) -> FrozenRun:
    """The run of this store. Of several ranks one plans it, and the others wait for that."""
    if share is None:
        return freeze(folder, request, pool, report.pending, moved)
    waiting = "plan         another rank is at it"
    with run_once(folder, PLANNING, lambda: folder.exists(layout.RUN), lambda: report.pending(waiting)):
        frozen = freeze(folder, request, pool, report.pending)
    refuse_for_ranks(frozen)
    return frozen


def _mill(mill: Driver, pool: Pool, named: ResolvedSources, exports: Sequence[ExportRequest] | None) -> pa.Table:
    """Do what is missing and publish the manifest. Rows in quarantine are named in any case.

    First, the disk is checked to have room for that and for the exports, if they are given.
    """
    folder, manifest = mill.folder, None
    beating = Heartbeat(folder, mill.chronicle, pool, mill.share, mill.progress)
    with beating as heart, recorded(mill.chronicle, heart):
        try:
            mill.take_stock(pool)
            if exports is not None:
                check_room(mill, pool, [export_token_bytes(each.dtype, each.words.shuffle) for each in exports])
            while manifest is None:
                mill.run(pool)
                manifest = _complete(mill, pool, named)
        except BaseException:
            with suppress(StoreError, StorageError):  # there is something more important to report
                _tell_quarantine(mill)
            raise
    return manifest


def _complete(mill: Driver, pool: Pool, named: ResolvedSources) -> pa.Table | None:
    """Publish the manifest, unless it is there; None if some units have to be done again first."""
    folder = mill.folder
    with _manifest_turn(mill) as is_ours:
        if not is_ours:
            manifest = layout.require_manifest(folder, mill.frozen.run)
            mill.manifest.adopt(manifest)
        elif not mill.collect(pool):
            return None
        mill.check_bad()
        named.check_end(mill.manifest.rows)
        if not is_ours:
            return manifest
        quarantine.gather(folder, mill.committed)
        return mill.manifest.publish(mill.sizes)


def _tell_quarantine(mill: Driver) -> None:
    """Name the rows that are in quarantine so far, unless another machine is about to name all of them, or has."""
    folder, claim = mill.folder, mill.folder.lease(FINISHING)
    try:
        if (not mill.is_shared or claim.take()) and not folder.exists(layout.MANIFEST):
            quarantine.gather(folder, layout.committed_units(folder, mill.frozen.run.units))
    finally:
        claim.release()


def _manifest_turn(mill: Driver) -> AbstractContextManager[bool]:
    """Whether the manifest is to be written by this process; if not, it is there."""
    if not mill.is_shared:
        return nullcontext(not mill.folder.exists(layout.MANIFEST))
    folder, told = mill.folder, "manifest     another machine is writing it"
    return run_once(folder, FINISHING, lambda: folder.exists(layout.MANIFEST), lambda: mill.report.pending(told))


def _announce(report: progress.Reporter, mill: Driver, request: PrepareRequest) -> None:
    """Say, before any work, what is about to be done to which text."""
    run, spec, means = mill.frozen.run, request.job.tokenizer, mill.means
    report.say(f"sources      {count(run.sources, 'file')}, {size(run.source_bytes)}, {count(run.units, 'unit')}")
    for dataset in request.named.datasets:
        report.say(f"dataset      {dataset.title}, {dataset.address}")
    for note in request.named.notes:
        report.say(f"note: {note}")
    report.say(f"tokenizer    {spec.name} ({spec.vocabulary_size:,} ids, {spec.dtype}), engine {mill.engine}")
    if request.choice.reason:
        report.say(f"note: {request.choice.reason}")
    report.say(f"begin token  {_spelled(spec, request.job.begin)}")
    report.say(f"end token    {_spelled(spec, request.job.end)}")
    report.say(f"workers      {means.workers}, {size(means.memory_bytes)} of memory")
    if mill.share is not None:
        report.say(f"share        {mill.share}; then what others have not done")
    elif (half := ranks.advice()) is not None:
        report.say(f"note: {half}")
    if means.notice:
        report.say(f"note: {means.notice}")
    if len(mill.earlier):
        report.say(f"resuming     {out_of(len(mill.earlier), run.units, 'unit')} there already")


def _log_ignored(mill: Driver, ignored: Ignored) -> None:
    """Write what is not read into the log, once a call."""
    if ignored:
        mill.chronicle.log("ignored", **msgspec.structs.asdict(ignored))


def _announce_cluster(report: progress.Reporter, mill: Driver, pool: Pool) -> None:
    """Say what is different on a cluster, and let the number of workers be told as it changes."""
    room, folder = pool.room, mill.folder
    if room.machine_bytes is not None:
        return
    mill.chronicle.crew = lambda: f"{count(pool.workers, 'worker')} on {count(len(pool.nodes), 'node')}"
    report.say(f"cluster      {count(room.machines, 'node')}, {count(room.processors, 'processor')}")
    if room.machines > 1 and not (folder.is_remote and mill.is_far):
        report.say("note: every node has to see the same files at the same paths")


def _spelled(spec: TokenizerSpec, token: int | None) -> str:
    if token is None:
        return "none"
    spelling = next((text for text, number in spec.special_tokens.items() if number == token), "")
    return f"{token} {spelling}".rstrip()


def _note_empty(mill: Driver, skipped: int, named: ResolvedSources) -> None:
    """Note that a complete store holds nothing, which is rarely meant."""
    rows = f"all {count(skipped, 'row')} of the sources are skipped" if skipped else "the sources have no rows"
    note = f"the store holds no documents: {rows}"
    named.notes.append(note)
    mill.chronicle.log("notice", message=note)
    mill.report.say(f"note: {note}")


def _prepared(
    mill: Driver, manifest: pa.Table, seconds: float, exports: list[ExportResult], request: PrepareRequest
) -> PrepareResult:
    run, step, named = mill.frozen.run, mill.chronicle.step, request.named
    totals = {name: int(np.sum(manifest[name].to_numpy())) for name in ("documents", "tokens", "text_bytes", "skipped")}
    if not totals["documents"]:
        _note_empty(mill, totals["skipped"], named)
    worked = max(mill.seconds, 1e-9)
    return PrepareResult(
        directory=mill.folder.root,
        tokenizer=run.job.tokenizer.name,
        engine=mill.engine,
        begin_token=run.job.begin,
        end_token=run.job.end,
        sources=run.sources,
        units=run.units,
        units_done_now=step.units,
        documents=totals["documents"],
        tokens=totals["tokens"],
        text_bytes=totals["text_bytes"],
        skipped_rows=totals["skipped"],
        skipped_reasons=dict(mill.manifest.skipped_reasons),
        quarantined=mill.manifest.quarantined,
        deaths=step.deaths,
        seconds=round(seconds, 3),
        tokens_per_second=round(step.tokens / worked),
        bytes_per_second=round(step.text_bytes / worked),
        peak_worker_bytes=mill.chronicle.peak_worker_bytes,
        notices=[*named.notes, *mill.chronicle.notices],
        exports=exports,
        datasets=[dataset.title for dataset in named.datasets],
        expected_rows=named.expected_rows(),
        ignored=request.discovery.ignored,
    )
