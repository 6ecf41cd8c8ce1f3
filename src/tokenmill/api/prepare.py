"""Sources to store: freeze the run, do the units that are missing, publish the manifest."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from tokenmill.api.export import export_stores
from tokenmill.api.job_file import with_job
from tokenmill.api.parameters import output_text, path_text, path_texts
from tokenmill.api.prepare_rows import GivenRows, rows_of_call
from tokenmill.api.prepare_targets import (
    PrepareResult,
    PrepareTarget,
    one_document_notes,
    other_files_note,
    store_folders,
)
from tokenmill.errors import UsageError
from tokenmill.executors import progress, ranks
from tokenmill.executors.fan_out import LOCAL, check_executor, open_executor
from tokenmill.executors.ranks import RankShare
from tokenmill.exports.request import ExportRequest, choose_mask, make_export_request
from tokenmill.options import ExportOptions, PrepareOptions, ShardOptions, StrPath
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.driving.announce import announce, announce_store
from tokenmill.pipeline.driving.complete import CompletionOptions, RunCompletion
from tokenmill.pipeline.driving.context import make_companions
from tokenmill.pipeline.driving.metrics import check_metrics
from tokenmill.pipeline.driving.row_limits import RowLimits
from tokenmill.pipeline.planning.like import OFF, StoreText, stored_chat, stored_rules, stored_vocabulary, with_store
from tokenmill.pipeline.planning.open_run import hold_store, open_run
from tokenmill.pipeline.planning.request import (
    NO_SOURCES,
    BadDocumentPolicy,
    PrepareRequest,
    find_sources,
    job_options,
    make_request,
    refuse_without_effect,
)
from tokenmill.pipeline.planning.resources import SMALLEST_WORKER_BYTES, TOKENIZER_BYTES, plan_resources
from tokenmill.pipeline.planning.store_sources import refuse_files
from tokenmill.pipeline.unit import plan
from tokenmill.sources import Discovery, Ignored, splits_of
from tokenmill.sources.named_datasets import ResolvedSources, resolve_sources
from tokenmill.sources.splits import SplitChoice
from tokenmill.storage import Folder, absolute, folder_at
from tokenmill.store.deny import canonical_list
from tokenmill.store.held_out import require_split
from tokenmill.store.job import PARSE, REFUSE
from tokenmill.store.layout import RUN
from tokenmill.store.source_store import find_source_store
from tokenmill.store.spool import drop_spool
from tokenmill.system.arguments import options_of, takes
from tokenmill.token_files import find_format
from tokenmill.tokenization.objects import TokenizerObject
from tokenmill.tokenization.spec import TokenizerSpec

# Stands for a tokenizer that is not resolved yet, to check the options of exports before any work.
ANY_TOKENIZER = TokenizerSpec("any", "", "", "", vocabulary_size=1, special_tokens={})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareCall:
    """The options of a call of `prepare` or `plan`, read and checked. Nothing is looked for yet.

    `given` are the options as they were given, `options` those of the job, `tokenizers` all tokenizers of the call.
    """

    given: PrepareOptions
    options: PrepareOptions
    store: StoreText
    out: str | None
    named: ResolvedSources
    rows: GivenRows | None
    splits: SplitChoice
    tokenizers: list[StrPath | TokenizerObject]
    policy: BadDocumentPolicy
    formats: list[str]
    rank_share: RankShare | None
    metrics: str | None

    def find_sources(self, report: progress.Reporter, folder: Folder | None = None) -> Discovery:
        """The sources. Raises UsageError for an option without effect, and if no source has the split to hold out.

        Rows that are in no file are copied to the spool of the store in `folder`.
        """
        given = self.given
        if self.store.source is not None:
            self.named.notes.extend(self.store.notes)
            discovery = Discovery(self.store.source.sources, Ignored())
        else:
            discovery = self._find_files(report, folder)
        val = given.val if self.formats else None
        require_split(None if val is None else str(val), splits_of(discovery.table))
        return discovery

    def _find_files(self, report: progress.Reporter, folder: Folder | None) -> Discovery:
        given, sources = self.given, self.named.sources
        if self.rows is not None:
            discovery = self.rows.discover(folder, report, force=given.force)
        else:
            discovery = find_sources(sources, report.pending, self.out, self.splits)
        refuse_without_effect(
            discovery,
            column=given.column,
            segments=given.segments,
            messages=given.messages,
            tokens_column=given.tokens_column,
            separator=given.separator,
            join=given.join,
        )
        self.named.notes.extend([*self.store.notes, *discovery.notes, *discovery.ignored.notes()])
        self.named.notes.extend(one_document_notes(discovery, self.options.separator))
        return discovery

    def request(
        self, tokenizer: StrPath | TokenizerObject, discovery: Discovery, folder: Folder | None
    ) -> PrepareRequest:
        """What is to be done with one of the tokenizers. The store in `folder` may have its vocabulary."""
        vocabulary = self.store.vocabulary or (None if folder is None else stored_vocabulary(folder, tokenizer))
        former = self.store.chat
        if former is None and folder is not None and self.options.messages:
            former = stored_chat(folder)
        options, store = replace(self.options, tokenizer=tokenizer), replace(self.store, chat=former)
        return make_request(options, discovery, vocabulary, self.named, store)

    @property
    def worker_modules(self) -> tuple[str | tuple[str, ...], ...]:
        """What workers load first."""
        return worker_modules(self.given.engine, self.tokenizers)

    def exports(self, tokenizer: TokenizerSpec) -> list[ExportRequest]:
        """The exports of a store with this tokenizer."""
        return [make_export_request(each, tokenizer) for each in _export_options(self.given, self.formats)]


def read_call(given: PrepareOptions) -> PrepareCall:
    """Read the options of a call, and raise UsageError for what is wrong with them before any work."""
    out = None if given.out is None else output_text(given.out)
    check_executor(given.on)
    metrics = check_metrics(path_text(given.metrics))
    formats = _checked_formats(given)
    rank_share = ranks.choose_rank_share(given.rank, given.of, look=given.on == LOCAL)
    policy = BadDocumentPolicy.parse(given)
    tokenizers: list[Any] = list(given.tokenizer) if isinstance(given.tokenizer, list | tuple) else [given.tokenizer]
    splits = SplitChoice.parse(given.split, given.config)
    rows = rows_of_call(given.sources, given.stdin, splits)
    sources = [] if rows is not None else path_texts(cast("Sequence[StrPath]", given.sources))
    if rows is not None:
        is_shared = rank_share is not None or given.on != LOCAL
        rows.require_one_store(tokenizers=len(tokenizers), is_shared=is_shared)
    source = find_source_store(sources, out)
    if source is not None:
        refuse_files(given)
    options, store = with_store(
        replace(given, tokenizer=next(iter(tokenizers), None)),
        None if given.deny is None else _read_deny_list(os.fspath(given.deny)),
        source,
    )
    job_options(options)
    has_mask = bool(options.segments or options.messages) or (source is not None and source.input.has_spans)
    for name in formats:
        choose_mask(find_format(name).SPEC, given.mask, has_mask=has_mask)
    named = resolve_sources(sources, given.version, options.column, limited=given.limit_units is not None)
    return PrepareCall(
        given=given,
        options=replace(options, column=named.column),
        store=store,
        out=out,
        named=named,
        rows=rows,
        splits=splits,
        tokenizers=_all_tokenizers(options, tokenizers[1:]),
        policy=policy,
        formats=formats,
        rank_share=rank_share,
        metrics=metrics,
    )


@takes(PrepareOptions, with_job)
def prepare(options: PrepareOptions) -> PrepareResult:
    """Tokenize text into a store, and export the store if formats are given.

    Call it again after any interruption: only what is missing is done. A disk that is too small raises before any
    work, unless `force` is set.
    """
    call = read_call(options)
    if call.out is None:
        raise UsageError("no output is given", "Give --out DIR, the directory of the store.")
    out, rank_share, tokenizers, policy = call.out, call.rank_share, call.tokenizers, call.policy
    workers, memory, shuffle, force = options.workers, options.memory, options.shuffle, options.force
    moves = [options.moved] if isinstance(options.moved, str) else options.moved
    if rank_share is not None:
        _refuse_for_rank(rank_share, options)
    started = time.monotonic()
    with (
        open_executor(options.on, call.worker_modules, options.executor, options.reporter) as (pool, report),
        ExitStack() as held,
    ):
        stores = _find_stores(call, store_folders(out, tokenizers), held, report)
        first = stores[0].request
        worker_bytes = SMALLEST_WORKER_BYTES + (len(stores) - 1) * TOKENIZER_BYTES
        most_workers = first.source_bytes // plan.SMALLEST_UNIT_BYTES + 1
        resources = plan_resources(workers, memory, most_workers, worker_bytes, pool.room, first.job)
        pool.start(resources.workers, resources.worker_bytes, resources.total_worker_bytes, resources.most_workers)
        limits = resources.limits(policy)
        for store in stores:
            frozen = open_run(store.folder, store.request, limits, pool, report, rank_share, moves)
            store.open(frozen, limits, resources.workers, pool, report, rank_share)
        row_limits = RowLimits(policy.max_bad, policy.max_skipped)
        completion = CompletionOptions(row_limits, options.repair, options.retry_quarantine, call.metrics)
        results: list[PrepareResult] = []
        unit_seconds = 0.0
        for number, store in enumerate(stores):
            later = stores[number + 1 :]
            companions = make_companions(store.context, ((each.context, each.request.choice.engine) for each in later))
            run = RunCompletion(store.context, store.request.choice.engine, completion, companions)
            if number == 0:
                announce(store.context, store.request, resources, pool)
            if len(stores) > 1:
                report.say(f"\nstore        {store.folder.root}")
            announce_store(store.context, store.request, len(run.committed.earlier()) - store.context.events.step.units)
            manifest = run.complete(pool, store.named.check_end, None if force else store.disk_needs(later, shuffle))
            seconds = time.monotonic() - started
            unit_seconds += run.driver.seconds
            exported = [
                export_stores([store.folder.root], None, each, report, pool, rank_share=rank_share)
                for each in store.exports
            ]
            results.append(store.result(run, manifest, seconds, unit_seconds, exported))
        if options.drop_spool and not stores[0].context.frozen.run.trial:
            drop_spool(stores[0].folder)
        return msgspec.structs.replace(results[0], others=results[1:])


def _find_stores(
    call: PrepareCall, folders: Sequence[Folder], held: ExitStack, report: progress.Reporter
) -> list[PrepareTarget]:
    """The stores of a call, each with its sources and exports. `held` has their locks."""
    copies_rows = call.rows is not None and call.rows.needs_spool
    if copies_rows:
        held.enter_context(hold_store(folders[0], call.rank_share))
        call.request(call.tokenizers[0], NO_SOURCES, folders[0])  # what is wrong is refused before any row is copied
    discovery = call.find_sources(report, folders[0])
    stores = []
    for folder, tokenizer in zip(folders, call.tokenizers, strict=True):
        request = call.request(tokenizer, discovery, folder)
        stores.append(PrepareTarget(folder, request, call.exports(request.job.tokenizer)))
    for store in stores:
        if not copies_rows:
            held.enter_context(hold_store(store.folder, call.rank_share))
        store.named.notes.extend(other_files_note(store.folder))
    return stores


def _all_tokenizers(
    options: PrepareOptions, others: Sequence[StrPath | TokenizerObject]
) -> list[StrPath | TokenizerObject]:
    """The tokenizers of a call. Raises UsageError if their stores would hold different documents."""
    if others and options.template_special == PARSE and options.special != PARSE:
        raise UsageError(
            "--template-special parse cannot be used with several tokenizers",
            "They have different special tokens. Prepare a store with each tokenizer, or use --special parse.",
        )
    if others and options.messages:
        raise UsageError(
            "--messages cannot be used with several tokenizers",
            "Each model has a chat template of its own. Prepare a store with each tokenizer.",
        )
    has_limits = (options.min_tokens, options.max_tokens) != (None, None)
    if others and (has_limits or options.special == REFUSE):
        raise UsageError(
            f"{'--min-tokens and --max-tokens' if has_limits else '--special refuse'} cannot be used with several "
            "tokenizers",
            "The stores would hold different documents. Prepare a store with each tokenizer.",
        )
    return [options.tokenizer, *others]


def _read_deny_list(path: str) -> bytes:
    """The rows that a file names, or that were erased in a store or denied there; none for the value `none`."""
    if path == OFF:
        return b""
    folder = folder_at(path)
    if folder.exists(RUN):
        return canonical_list(stored_rules(folder), path)
    parent, _, name = absolute(path).rpartition("/")
    return canonical_list(folder_at(parent).read(name), path)


def _export_options(options: PrepareOptions, formats: Sequence[str]) -> list[ExportOptions]:
    """The options of the exports to these formats."""
    shared = {name: getattr(options, name) for name in (*options_of(ShardOptions), "workers", "memory", "force")}
    return [ExportOptions((), to=name, **shared) for name in formats]


def _checked_formats(options: PrepareOptions) -> list[str]:
    """The formats to export to. Raises UsageError before anything is loaded or looked for."""
    formats = [options.to] if isinstance(options.to, str) else list(dict.fromkeys(options.to))
    given = [name for name in options_of(ShardOptions) if getattr(options, name) is not None]
    if given and not formats:
        raise UsageError(f"--{given[0].replace('_', '-')} needs an export", "Add --to FORMAT, such as nanogpt.")
    for each in _export_options(options, formats):
        make_export_request(each, ANY_TOKENIZER)
    return formats


def _refuse_for_rank(rank_share: RankShare, options: PrepareOptions) -> None:
    """Refuse what cannot be done by one of several ranks."""
    for name in ("repair", "retry_quarantine", "moved"):
        if getattr(options, name):
            raise UsageError(
                f"--{name.replace('_', '-')} cannot be used by {rank_share}", "Run it once without --rank."
            )
