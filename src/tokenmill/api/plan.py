"""`tokenmill.plan`: a dry run. It estimates a job from the sizes of the sources and samples of their text."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenmill.api.parameters import EngineName, StrPath, path_text, path_texts
from tokenmill.executors import progress, progress_bar
from tokenmill.executors.local import LocalExecutor
from tokenmill.humanize import Readable
from tokenmill.pipeline import plan as plans
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.estimate import CorpusEstimate, Estimate, Footprint
from tokenmill.pipeline.freeze import plan_step
from tokenmill.pipeline.like import text_options
from tokenmill.pipeline.request import PrepareOptions, find_sources, make_request, refuse_without_effect
from tokenmill.pipeline.resources import plan_resources
from tokenmill.pipeline.sample import estimate_request
from tokenmill.pipeline.split_sources import plan_units
from tokenmill.sources import Ignored
from tokenmill.sources.named_datasets import resolve_sources
from tokenmill.sources.splits import SplitChoice
from tokenmill.system.arguments import checked
from tokenmill.tokenizers.objects import TokenizerObject

# The time before the first unit starts.
START_SECONDS = 1.5

# The estimate for sources without text.
NOTHING = Estimate(0, 0)


class PlanResult(Readable, msgspec.Struct, frozen=True):
    """What a run would read, write and take. Text, tokens, disk and time are ranges, from samples; the rest is counted.

    `bytes_per_token` is that of the samples.
    """

    tokenizer: str
    engine: str
    begin_token: int | None
    end_token: int | None
    sources: int
    source_bytes: int
    units: int
    unit_bytes: int
    text_bytes: Estimate
    rows: int | None
    tokens: Estimate
    bytes_per_token: float
    disk_bytes: Estimate
    workers: int
    seconds: Estimate
    ignored: Ignored
    notices: list[str]


@checked
def plan(  # noqa: PLR0913 - the options of the command, by their names
    sources: StrPath | Sequence[StrPath],
    *,
    tokenizer: StrPath | TokenizerObject | None = None,
    like: StrPath | None = None,
    version: str | None = None,
    split: str | Sequence[str] = (),
    config: str | None = None,
    column: str | None = None,
    separator: str | None = None,
    engine: EngineName = "auto",
    eot: str | int | None = None,
    bos: str | int | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    unit_bytes: str | int | None = None,
    limit_units: int | None = None,
    reporter: progress.Reporter | None = None,
) -> PlanResult:
    """Estimate what `prepare` would do with the same arguments, without doing it.

    Args:
        sources: Files, directories, globs or addresses, or the name of a dataset; one or several.
        tokenizer: An encoding of OpenAI (`"gpt2"`); a model on the Hub (`"ORG/MODEL"`); a `.tiktoken` file; a
            `tokenizer.json` or its directory; a tokenizer of `tokenizers`, `tiktoken` or `transformers`.
        like: A store whose tokenizer and options are taken, as in `prepare`.
        version: The version of a named dataset. `tokenmill datasets` lists them.
        split: The splits to read of a directory or a Hub dataset that is given as a whole: a name, several, or `"all"`.
            Default: its only split; several splits are refused.
        config: The config to read of such a dataset. Default: the one that its card calls default, or its only one.
        column: The column with the text. Default: `text`, or the column of the named dataset.
        separator: The separator of documents in .txt files. Default: each file is one document.
        engine: The library that encodes. All engines produce the same tokens.
        eot: The end token: an id, its spelling, or `"none"`. Default: the end token of the tokenizer.
        bos: The begin token: an id, its spelling, or `"none"`. Default: none.
        workers: The number of worker processes. Default: one per core.
        memory: The memory budget of a machine, such as `"8GB"`. Default: 70 % of the available memory.
        unit_bytes: The size of a unit of work, in bytes of text. Default: by corpus size, 1 to 64 MiB.
        limit_units: Only do the first units of the plan, to try something out.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
    """
    text = text_options(tokenizer, path_text(like), column=column, separator=separator, eot=eot, bos=bos)
    named = resolve_sources(path_texts(sources), version, text.column, limited=limit_units is not None)
    given = PrepareOptions(
        named.sources,
        text.tokenizer,
        named.column,
        text.separator,
        engine,
        text.eot,
        text.bos,
        unit_bytes,
        limit_units,
        splits=SplitChoice.parse(split, config),
    )
    with (
        # Workers import their modules while this process looks for the sources.
        LocalExecutor((*worker_modules(engine), "tokenmill.pipeline.sample")) as pool,
        reporter if reporter is not None else progress_bar.for_python() as report,
    ):
        discovery = find_sources(given, report.pending)
        refuse_without_effect(discovery, column=column, separator=separator)
        named.notes.extend([*discovery.notes, *discovery.ignored.notes()])
        request = make_request(given, discovery, text.vocabulary, named)
        named = request.named
        most_workers = request.source_bytes // plans.SMALLEST_UNIT_BYTES + 1
        resources = plan_resources(workers, memory, most_workers, job=request.job)
        pool.start(resources.workers, resources.worker_bytes, resources.total_worker_bytes)
        units = plan_units(
            discovery.table,
            request.options,
            request.job.unit_bytes,
            limit_units,
            pool,
            check=named.check_plan,
            on_progress=plan_step(discovery.table, "planned", report.pending),
        )
        working = max(1, min(resources.workers, len(units)))
        expected = estimate_request(request, units, resources.limits(), pool, working)
    rows = None if units["rows"].null_count else int(units["rows"].to_numpy().sum())
    expected = expected or CorpusEstimate(NOTHING, NOTHING, NOTHING, NOTHING)
    if not (expected.documents.high if rows is None else rows):
        named.notes.append("the sources have no rows: the store would hold no documents")
    tokens, text_bytes, seconds = expected.tokens, expected.text_bytes, expected.seconds
    return PlanResult(
        tokenizer=request.job.tokenizer.name,
        engine=request.choice.engine,
        begin_token=request.job.begin,
        end_token=request.job.end,
        sources=len(discovery.table),
        source_bytes=request.source_bytes,
        units=len(units),
        unit_bytes=request.job.unit_bytes,
        text_bytes=text_bytes,
        rows=rows,
        tokens=tokens,
        bytes_per_token=round((text_bytes.low + text_bytes.high) / max(tokens.low + tokens.high, 1), 2),
        disk_bytes=expected.disk_bytes([Footprint.of_store(request.job.tokenizer.dtype)]),
        workers=working,
        seconds=Estimate(*(round(START_SECONDS + each / working, 1) for each in (seconds.low, seconds.high))),
        ignored=discovery.ignored,
        notices=named.notes,
    )
