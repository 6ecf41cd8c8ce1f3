"""Sources to store: freeze the run, do the units that are missing, publish the manifest."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

import msgspec

from tokenmill.api.export import ExportLimits, export_stores
from tokenmill.api.parameters import (
    BadDocumentAction,
    Dedup,
    EngineName,
    Null,
    Special,
    StrPath,
    Tail,
    TemplateSpecial,
    column_names,
    output_text,
    path_text,
    path_texts,
)
from tokenmill.api.prepare_targets import (
    PrepareResult,
    PrepareTarget,
    one_document_notes,
    other_files_note,
    store_folders,
)
from tokenmill.errors import UsageError
from tokenmill.executors import progress
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.session import LOCAL, check_executor, open_executor
from tokenmill.exports.request import ExportOptions, ExportRequest, make_export_request, refuse_unused
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.driving.announce import announce, announce_store
from tokenmill.pipeline.driving.companions import make_companions
from tokenmill.pipeline.driving.complete import CompletionOptions, RunCompletion
from tokenmill.pipeline.driving.metrics import check_metrics
from tokenmill.pipeline.driving.row_limits import RowLimits
from tokenmill.pipeline.planning import ranks
from tokenmill.pipeline.planning.like import OFF, TextOptions, text_options
from tokenmill.pipeline.planning.open_run import hold_store, open_run
from tokenmill.pipeline.planning.ranks import RankShare
from tokenmill.pipeline.planning.request import (
    BadDocumentPolicy,
    PrepareOptions,
    PrepareRequest,
    find_sources,
    make_request,
    refuse_without_effect,
)
from tokenmill.pipeline.planning.resources import SMALLEST_WORKER_BYTES, TOKENIZER_BYTES, plan_resources
from tokenmill.pipeline.planning.stored_tokenizer import stored_vocabulary
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.position import DEFAULT_SECONDS
from tokenmill.sources import Discovery, splits_of
from tokenmill.sources.named_datasets import ResolvedSources, resolve_sources
from tokenmill.sources.splits import SplitChoice
from tokenmill.storage import Folder, absolute, folder_at
from tokenmill.store.deny import canonical_list
from tokenmill.store.held_out import require_split
from tokenmill.store.job import PARSE, REFUSE
from tokenmill.system.arguments import takes
from tokenmill.tokenizers.objects import TokenizerObject
from tokenmill.tokenizers.spec import TokenizerSpec

# Stands for a tokenizer that is not resolved yet, to check the options of exports before any work.
ANY_TOKENIZER = TokenizerSpec("any", "", "", "", vocabulary_size=1, special_tokens={})


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareCall:
    """The options of a call of `prepare` or `plan`, read and checked. Nothing is looked for yet.

    `without_effect` are the options that may have no effect on the sources, `tokenizers` all tokenizers of the call.
    """

    out: str | None
    text: TextOptions
    named: ResolvedSources
    options: PrepareOptions
    tokenizers: list[StrPath | TokenizerObject]
    without_effect: dict[str, str | None]
    policy: BadDocumentPolicy
    workers: int | None
    memory: str | int | None
    formats: list[str]
    export_options: ExportOptions
    moves: Sequence[str]
    repair: bool
    retry_quarantine: bool
    on: str
    rank_share: RankShare | None
    executor: Pool | None
    reporter: progress.Reporter | None
    force: bool
    metrics: str | None

    def find_sources(self, report: progress.Reporter) -> Discovery:
        """The sources. Raises UsageError for an option without effect, and if no source has the split to hold out."""
        discovery = find_sources(self.options, report.pending, self.out)
        val = self.export_options.val if self.formats else None
        require_split(None if val is None else str(val), splits_of(discovery.table))
        refuse_without_effect(discovery, **self.without_effect)
        self.named.notes.extend([*self.text.notes, *_notes(discovery, self.text)])
        return discovery

    def request(
        self, tokenizer: StrPath | TokenizerObject, discovery: Discovery, folder: Folder | None
    ) -> PrepareRequest:
        """What is to be done with one of the tokenizers. The store in `folder` may have its vocabulary."""
        vocabulary = self.text.vocabulary or (None if folder is None else stored_vocabulary(folder, tokenizer))
        return make_request(replace(self.options, tokenizer=tokenizer), discovery, vocabulary, self.named)

    @property
    def worker_modules(self) -> tuple[str | tuple[str, ...], ...]:
        """What workers load first."""
        return worker_modules(self.options.engine, self.tokenizers)

    def exports(self, tokenizer: TokenizerSpec) -> list[ExportRequest]:
        """The exports of a store with this tokenizer."""
        return [make_export_request(name, self.export_options, tokenizer) for name in self.formats]


def read_call(  # noqa: PLR0913 - the options of the commands, by their names
    sources: StrPath | Sequence[StrPath],
    *,
    tokenizer: StrPath | TokenizerObject | Sequence[StrPath | TokenizerObject] | None = None,
    out: StrPath | None = None,
    like: StrPath | None = None,
    version: str | None = None,
    split: str | Sequence[str] = (),
    config: str | None = None,
    column: str | None = None,
    separator: str | None = None,
    join: str | None = None,
    template: str | None = None,
    null: Null | None = None,
    special: Special | None = None,
    template_special: TemplateSpecial | None = None,
    engine: EngineName = "auto",
    eot: str | int | None = None,
    bos: str | int | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    keep: str | Sequence[str] | None = None,
    deny: StrPath | None = None,
    where: str | None = None,
    dedup: Dedup | None = None,
    min_tokens: str | int | None = None,
    max_tokens: str | int | None = None,
    unit_bytes: str | int | None = None,
    limit_units: int | None = None,
    on_bad: BadDocumentAction = "quarantine",
    max_bad: str | float = 0.001,
    max_skipped: str | float = 0.01,
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
    tail: Tail | None = None,
    reporter: progress.Reporter | None = None,
    on: str = "local",
    rank: int | None = None,
    of: int | None = None,
    executor: Pool | None = None,
    force: bool = False,
    metrics: StrPath | None = None,
) -> PrepareCall:
    """Read the options that `prepare` and `plan` have.

    Args:
        sources: Files, directories, globs or addresses, or the name of a dataset; one or several.
        tokenizer: An encoding of OpenAI (`"gpt2"`); a model on the Hub (`"ORG/MODEL"`); a `.tiktoken` file; a
            `tokenizer.json` or its directory; a tokenizer of `tokenizers`, `tiktoken` or `transformers`. Several
            tokenizers, as a list, are applied in one read of the sources.
        out: The directory of the store: a path, or an address such as `s3://bucket/run`. It is created, or resumed if
            it exists. With several tokenizers, each gets a store in it: `gpt2`, `Qwen--Qwen3-8B`. A plan needs none.
        like: A store. Its tokenizer, begin and end token are taken, and the other options that decide tokens unless
            they are given. `"none"` switches off what it takes: `keep`, `deny`, `where`, `dedup`, `template`, `join`,
            `separator`, `min_tokens` and `max_tokens`. The two stores can be read and exported together.
        version: The version of a named dataset. `tokenmill datasets` lists them.
        split: The splits to read of a directory or a Hub dataset that is given as a whole: a name, several, or `"all"`.
            Default: its only split; several splits are refused.
        config: The config to read of such a dataset. Default: the one that its card calls default, or its only one.
        column: The column with the text, or a path of fields such as `"data.text"`.
            Default: `text`, or the column of the named dataset.
        separator: The separator of documents in .txt files. Default: each file is one document.
        join: What stands between the strings of a column that holds lists. Default: a newline. A list in JSON Lines is
            a bad document unless `join` is given, or the column is a path.
        template: Columns in braces and the text around them, such as `"{title}: {text}"`, in place of `column`.
        null: What a null in a column of the template is: `"skip"` skips the row, `"empty"` makes it empty text. A row
            with nothing but nulls is skipped. Default: `"skip"`.
        special: What the spelling of a special token, such as `<|im_start|>`, in a column is: `"text"`, `"parse"` makes
            it the token, `"refuse"` makes its document bad if it spells any control token. Default: `"text"`.
        template_special: The same for the text of the template: `"parse"` or `"text"`. A template that spells a special
            token needs it.
        engine: The library that encodes. All engines produce the same tokens.
        eot: The end token: an id, its spelling, or `"none"`. Default: the end token of the tokenizer.
        bos: The begin token: an id, its spelling, or `"none"`. Default: none.
        workers: The number of worker processes. Default: one per core.
        memory: The memory budget of a machine, such as `"8GB"`. Default: 70 % of the available memory.
        keep: Columns of the sources to keep in the store, such as `["id", "url"]` or `"id,url"`: text, numbers and
            booleans. Default: none.
        deny: A file of JSON Lines with rows to leave out: by the value of a column, by host, or by source and row.
        where: A filter on columns, such as `"language = 'en' and language_score > 0.8"`. Rows that do not satisfy it
            are skipped. Default: none.
        dedup: `"exact"` leaves out documents whose text is equal to that of an earlier one. The sources are read once
            more for it. Default: all documents are tokenized.
        min_tokens: Leave out documents with fewer tokens, not counting begin and end token. Default: no limit.
        max_tokens: Leave out documents with more tokens, counted in the same way. Default: no limit.
        unit_bytes: The size of a unit of work, in bytes of text. Default: by corpus size, 1 to 64 MiB.
        limit_units: Only do the first units of the plan, to try something out.
        on_bad: What happens on a bad document: `"quarantine"` records it in `quarantine.jsonl`, `"fail"` ends the run.
        max_bad: The maximum fraction of bad documents, such as `0.001` or `"0.1%"`. More end the run.
        max_skipped: The maximum fraction of rows without text, such as `0.01` or `"1%"`: rows whose column is null, and
            lines that lack it. More end the run. `"100%"` allows any.
        document_timeout: The maximum time for one document, in seconds. A document that takes longer is bad.
        quarantine_text: Also record the text of bad documents.
        max_document_bytes: The maximum size of a document. A longer document is bad. Default: 32 MiB.
        moved: Sources or directories that have another path now, as `"OLD=NEW"`; one or several.
        repair: Check the content of every part, and make damaged parts again.
        retry_quarantine: Do the units again that have documents in quarantine.
        to: Formats to export to, each to the directory of its name in the store. `tokenmill.export` has more options.
        val: Validation split: a fraction of documents (`0.01` or `"1%"`), a split of the sources
            (`"split:validation"`), `"first-shard"`, or `"none"`. Default: by format.
        shuffle: A seed, such as 1337: documents are written in the random order of this seed. Default: no shuffle.
        shard_tokens: The number of tokens per shard, such as `"100M"`. Default: by format.
        tail: What happens to a last shard that is not full: it is kept, dropped, or merged into the shard before it.
            Default: by format.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        on: Where workers run: `"local"`, `"ray"` (the cluster of this machine), or `"ray://HOST:PORT"`.
        rank: The number of this process, from 0, if several processes share the work. Each returns when the store is
            complete. Default: from the environment of Slurm or Kubernetes.
        of: The number of processes that share the work.
        executor: Running workers to use instead of new ones.
        force: Start even if the disk seems too small.
        metrics: A file for metrics in the text format of Prometheus, replaced every few seconds; or `"otlp"`, which
            sends them to an OpenTelemetry collector (the extra `otel`). Default: no metrics.
    """
    out = None if out is None else output_text(out)
    check_executor(on)
    metrics = check_metrics(path_text(metrics))
    export_options = ExportOptions(val, shuffle, shard_tokens, tail)
    formats = _checked_formats(to, export_options)
    rank_share = ranks.choose_rank_share(rank, of, look=on == LOCAL)
    moves = [moved] if isinstance(moved, str) else moved
    policy = BadDocumentPolicy.parse(on_bad, max_bad, max_skipped, document_timeout, quarantine_text=quarantine_text)
    given = list(tokenizer) if isinstance(tokenizer, list | tuple) else [] if tokenizer is None else [tokenizer]
    text = text_options(
        given[0] if given else None,
        path_text(like),
        column=column,
        separator=separator,
        eot=eot,
        bos=bos,
        max_document_bytes=max_document_bytes,
        keep=column_names(keep),
        deny=None if deny is None else _read_deny_list(os.fspath(deny)),
        where=where,
        join=join,
        template=template,
        null=null,
        special=special,
        template_special=template_special,
        dedup=dedup,
        min_tokens=min_tokens,
        max_tokens=max_tokens,
    )
    named = resolve_sources(path_texts(sources), version, text.column, limited=limit_units is not None)
    tokenizers = _all_tokenizers(text, given[1:])
    options = PrepareOptions(
        sources=named.sources,
        tokenizer=text.tokenizer,
        column=named.column,
        separator=text.separator,
        engine=engine,
        eot=text.eot,
        bos=text.bos,
        unit_bytes=unit_bytes,
        limit_units=limit_units,
        max_document_bytes=text.max_document_bytes,
        columns=text.columns,
        splits=SplitChoice.parse(split, config),
    )
    return PrepareCall(
        out=out,
        text=text,
        named=named,
        options=options,
        tokenizers=tokenizers,
        without_effect={"column": column, "separator": separator, "join": join},
        policy=policy,
        workers=workers,
        memory=memory,
        formats=formats,
        export_options=export_options,
        moves=moves,
        repair=repair,
        retry_quarantine=retry_quarantine,
        on=on,
        rank_share=rank_share,
        executor=executor,
        reporter=reporter,
        force=force,
        metrics=metrics,
    )


@takes(read_call, "out")
def prepare(call: PrepareCall) -> PrepareResult:
    """Tokenize text into a store, and export the store if formats are given.

    Call it again after any interruption: only what is missing is done. A disk that is too small raises before any
    work, unless `force` is set.
    """
    if call.out is None:
        raise UsageError("no output is given", "Give --out DIR, the directory of the store.")
    out, rank_share, tokenizers, policy = call.out, call.rank_share, call.tokenizers, call.policy
    workers, memory, shuffle, force = call.workers, call.memory, call.export_options.shuffle, call.force
    if rank_share is not None:
        refused = {"repair": call.repair, "retry_quarantine": call.retry_quarantine, "moved": bool(call.moves)}
        _refuse_for_rank(rank_share, call.formats, out, **refused)
    started = time.monotonic()
    with (
        open_executor(call.on, call.worker_modules, call.executor, call.reporter) as (pool, report),
        ExitStack() as held,
    ):
        discovery = call.find_sources(report)
        stores = [
            PrepareTarget(folder, call.request(each, discovery, folder))
            for folder, each in zip(store_folders(out, tokenizers), tokenizers, strict=True)
        ]
        first = stores[0].request
        worker_bytes = SMALLEST_WORKER_BYTES + (len(stores) - 1) * TOKENIZER_BYTES
        most_workers = first.source_bytes // plan.SMALLEST_UNIT_BYTES + 1
        resources = plan_resources(workers, memory, most_workers, worker_bytes, pool.room, first.job)
        for store in stores:
            store.exports = call.exports(store.request.job.tokenizer)
        for store in stores:
            held.enter_context(hold_store(store.folder, rank_share))
            store.named.notes.extend(other_files_note(store.folder))
        pool.start(resources.workers, resources.worker_bytes, resources.total_worker_bytes, resources.most_workers)
        limits = resources.limits(policy)
        for store in stores:
            frozen = open_run(store.folder, store.request, limits, pool, report, rank_share, call.moves)
            store.open(frozen, limits, resources.workers, pool, report, rank_share)
        row_limits = RowLimits(policy.max_bad, policy.max_skipped)
        completion = CompletionOptions(row_limits, call.repair, call.retry_quarantine, call.metrics)
        export_limits = ExportLimits(workers, memory, force)
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
            announce_store(store.context, store.request, run.units_done_before - store.context.events.step.units)
            manifest = run.complete(pool, store.named.check_end, None if force else store.disk_needs(later, shuffle))
            seconds = time.monotonic() - started
            unit_seconds += run.seconds
            exported = [
                export_stores([store.folder.root], None, each, export_limits, report, pool) for each in store.exports
            ]
            results.append(store.result(run, manifest, seconds, unit_seconds, exported))
        return msgspec.structs.replace(results[0], others=results[1:])


def _all_tokenizers(text: TextOptions, others: Sequence[StrPath | TokenizerObject]) -> list[StrPath | TokenizerObject]:
    """The tokenizers of a call. Raises UsageError if their stores would hold different documents."""
    columns = text.columns
    if others and columns.special == REFUSE:
        raise UsageError(
            "--special refuse cannot be used with several tokenizers",
            "The stores would hold different documents. Prepare a store with each tokenizer.",
        )
    if others and columns.template_special == PARSE and columns.special != PARSE:
        raise UsageError(
            "--template-special parse cannot be used with several tokenizers",
            "They have different special tokens. Prepare a store with each tokenizer, or use --special parse.",
        )
    is_limited = text.columns.min_tokens is not None or text.columns.max_tokens is not None
    if others and is_limited:
        raise UsageError(
            "--min-tokens and --max-tokens cannot be used with several tokenizers",
            "The stores would hold different documents. Prepare a store with each tokenizer.",
        )
    return [text.tokenizer, *others]


def _notes(discovery: Discovery, text: TextOptions) -> list[str]:
    """What was found about the sources that a person should know."""
    return [*discovery.notes, *discovery.ignored.notes(), *one_document_notes(discovery, text.separator)]


def _read_deny_list(path: str) -> bytes:
    """The rows that a file names; none for the value `none`."""
    if path == OFF:
        return b""
    parent, _, name = absolute(path).rpartition("/")
    return canonical_list(folder_at(parent).read(name), path)


def _checked_formats(to: str | Sequence[str], options: ExportOptions) -> list[str]:
    """The formats to export to. Raises UsageError before anything is loaded or looked for."""
    formats: list[str] = [to] if isinstance(to, str) else list(dict.fromkeys(to))
    refuse_unused(options, formats)
    for name in formats:
        make_export_request(name, options, ANY_TOKENIZER)
    return formats


def _refuse_for_rank(rank_share: RankShare, formats: list[str], out: str, **options: bool) -> None:
    """Refuse what cannot be done by one of several ranks."""
    if formats:
        raise UsageError(
            f"--to cannot be done by {rank_share}",
            "It needs the whole store. When that is complete, run",
            *(f"tokenmill export {out} --to {name}" for name in formats),
        )
    for name, is_given in options.items():
        if is_given:
            raise UsageError(
                f"--{name.replace('_', '-')} cannot be used by {rank_share}", "Run it once without --rank."
            )
