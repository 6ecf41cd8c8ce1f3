"""Sources to store: freeze the run, do the units that are missing, write the manifest."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill import layout, planning, quarantine
from tokenmill.api import progress
from tokenmill.api.export_request import ExportWords, make_export_request, refuse_unused
from tokenmill.api.exporter import Exported
from tokenmill.api.exporting import Limits, export_store
from tokenmill.api.freeze import freeze
from tokenmill.api.mill import Mill
from tokenmill.api.naming import name_sources
from tokenmill.api.request import BadWords, Request, Words, choose_means, find_sources, make_request, total_bytes
from tokenmill.errors import StorageError, StoreError
from tokenmill.executors.local import LocalExecutor
from tokenmill.places import USUAL_SECONDS
from tokenmill.storage import folder_at
from tokenmill.tokenizers import engine_modules
from tokenmill.wording import count, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from tokenmill.api.naming import Named
    from tokenmill.job import TokenizerSpec


class Prepared(msgspec.Struct, frozen=True):
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
    exports: list[Exported]
    datasets: list[str]
    expected_rows: int | None


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
    document_timeout: str | float = USUAL_SECONDS,
    quarantine_text: bool = False,
    to: str | Sequence[str] = (),
    val: str | float | None = None,
    shuffle: int | None = None,
    shard_tokens: str | int | None = None,
    tail: str | None = None,
    reporter: progress.Reporter | None = None,
    executor: LocalExecutor | None = None,
) -> Prepared:
    """Turn text into a token store at `out`, and export it to the formats of `to`, each in a directory of its name.

    Call it again after any interruption: only what is missing is done.
    """
    formats = [to] if isinstance(to, str) else list(dict.fromkeys(to))
    export_words = ExportWords(val, shuffle, shard_tokens, tail)
    refuse_unused(export_words, formats)
    bad = BadWords(on_bad, max_bad, document_timeout, quarantine_text)
    bad.check()
    named = name_sources(sources, version, column, limited=limit_units is not None)
    words = Words(named.sources, tokenizer, named.column, separator, engine, eot, bos, unit_bytes, limit_units)
    started = time.monotonic()
    # Workers take over a second to load their libraries; meanwhile, what is to be done is found out.
    with (
        nullcontext(executor) if executor is not None else LocalExecutor(engine_modules(engine)) as pool,
        reporter if reporter is not None else progress.for_python() as report,
    ):
        discovery = find_sources(words, report.pending)
        means = choose_means(workers, memory, most_workers=total_bytes(discovery) // planning.SMALLEST_UNIT_BYTES + 1)
        request = make_request(words, discovery, named=named)
        exports = [make_export_request(each, export_words, request.job.tokenizer) for each in formats]
        folder = folder_at(out)
        folder.create()
        with folder.lock(layout.LOCK):
            for directory in (".", layout.TOKENIZER, layout.PARTS, quarantine.PIECES):
                folder.remove_temporaries(directory)
            pool.start(means.workers, means.worker_bytes, means.crew_bytes)
            frozen = freeze(folder, request, pool, report.pending)
            mill = Mill(folder, frozen, request.choice.engine, means, means.limits(bad), bad.share(), report)
            _announce(report, mill, request)
            manifest = _mill(mill, pool, named)
            seconds = time.monotonic() - started
            exported = [export_store(out, None, each, Limits(workers, memory), report, pool) for each in exports]
            return _prepared(mill, manifest, seconds, exported, named)


def _mill(mill: Mill, pool: LocalExecutor, named: Named) -> pa.Table:
    """Do what is missing and publish the manifest. What is in quarantine is told in any case."""
    try:
        mill.run(pool)
        mill.manifest.add_from_parts(pool, mill.earlier)
        mill.check_bad()
        named.check_end(mill.manifest.rows)
    except BaseException:
        with suppress(StoreError, StorageError):  # there is something more important to tell
            if not mill.folder.exists(layout.MANIFEST):  # else another machine has come to the end, and has seen all
                quarantine.gather(mill.folder, layout.committed_units(mill.folder, mill.frozen.run.units))
        raise
    quarantine.gather(mill.folder, mill.committed)
    return mill.manifest.publish()


def _announce(report: progress.Reporter, mill: Mill, request: Request) -> None:
    """Say, before any work, what is about to be done to which text."""
    run, spec, means = mill.frozen.run, request.job.tokenizer, mill.means
    ignored = request.discovery.ignored
    report.say(f"sources      {count(run.sources, 'file')}, {size(run.source_bytes)}, {count(run.units, 'unit')}")
    if ignored:
        report.say(f"ignored      {count(len(ignored), 'file')} with other endings, such as {ignored[0]}")
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
    if means.notice:
        report.say(f"note: {means.notice}")
    if len(mill.earlier):
        report.say(f"resuming     {len(mill.earlier):,} of {count(run.units, 'unit')} are there already")


def _spelled(spec: TokenizerSpec, token: int | None) -> str:
    if token is None:
        return "none"
    spelling = next((text for text, number in spec.special_tokens.items() if number == token), "")
    return f"{token} {spelling}".rstrip()


def _prepared(mill: Mill, manifest: pa.Table, seconds: float, exports: list[Exported], named: Named) -> Prepared:
    run, step = mill.frozen.run, mill.chronicle.step
    totals = {name: int(np.sum(manifest[name].to_numpy())) for name in ("documents", "tokens", "text_bytes", "skipped")}
    worked = max(mill.seconds, 1e-9)
    return Prepared(
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
    )
