"""`tokenmill.plan`: a dry run. It estimates a job from the sizes of the sources and samples of their text."""

from __future__ import annotations

from itertools import repeat

import msgspec
import pyarrow as pa

from tokenmill.api.job_file import with_job
from tokenmill.api.prepare import PrepareCall, read_call
from tokenmill.api.prepare_targets import store_folders
from tokenmill.errors import UsageError
from tokenmill.executors.fan_out import LOCAL, open_executor
from tokenmill.executors.outcomes import Pool
from tokenmill.humanize import Readable
from tokenmill.options import PlanOptions
from tokenmill.pipeline.planning.cluster import ClusterEstimate, Workload
from tokenmill.pipeline.planning.estimate import START_SECONDS, CorpusEstimate, Estimate, Footprint
from tokenmill.pipeline.planning.freeze import request_units
from tokenmill.pipeline.planning.request import PrepareRequest
from tokenmill.pipeline.planning.resources import Resources, plan_resources
from tokenmill.pipeline.planning.sample import estimate_request
from tokenmill.pipeline.unit import plan as plans
from tokenmill.sources import Ignored
from tokenmill.system import machine
from tokenmill.system.arguments import takes

# The estimate for sources without text.
NOTHING = Estimate(0, 0)


class PlanResult(Readable, msgspec.Struct, frozen=True):
    """What a run would read, write and take. Text, tokens, disk and time are ranges, from samples; the rest is counted.

    `bytes_per_token` is that of the samples. `disk_bytes` are those of the store, `export_bytes` those of its exports.
    `cluster` is the job on the nodes that were given. With several tokenizers it is the plan of the first one, and
    `others` are those of the others.
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
    export_bytes: Estimate
    workers: int
    seconds: Estimate
    ignored: Ignored
    notices: list[str]
    cluster: ClusterEstimate | None = None
    others: list[PlanResult] = []


@takes(PlanOptions, with_job)
def plan(options: PlanOptions) -> PlanResult:
    """Estimate what `prepare` would do with the same arguments, without doing it.

    Arguments that change nothing in the estimate are accepted.
    """
    if options.cores and not options.nodes:
        raise UsageError("--cores has no effect without --nodes", "Give both: --nodes 16 --cores 16.")
    call = read_call(options)
    modules = (*call.worker_modules, "tokenmill.pipeline.planning.sample")
    with open_executor(LOCAL, modules, options.executor, options.reporter) as (pool, report):
        discovery = call.find_sources(report)
        folders = [None] * len(call.tokenizers) if call.out is None else store_folders(call.out, call.tokenizers)
        requests = [call.request(*each) for each in zip(call.tokenizers, repeat(discovery), folders)]
        first = requests[0]
        most_workers = first.source_bytes // plans.SMALLEST_UNIT_BYTES + 1
        resources = plan_resources(options.workers, options.memory, most_workers, job=first.job)
        pool.start(resources.workers, resources.worker_bytes, resources.total_worker_bytes)
        units = request_units(first, discovery.table, pool, report.pending)
        units = units.slice(0, first.units_of(len(units)))
        results = [_estimate(call, options, each, units, resources, pool) for each in requests]
    return msgspec.structs.replace(results[0], others=results[1:])


def _estimate(  # noqa: PLR0913, PLR0917 - a request, and what is the same for all tokenizers
    call: PrepareCall,
    options: PlanOptions,
    request: PrepareRequest,
    units: pa.Table,
    resources: Resources,
    pool: Pool,
) -> PlanResult:
    """What the store of one tokenizer takes."""
    workers = max(1, min(resources.workers, len(units)))
    expected = estimate_request(request, units, resources.limits(call.policy), pool, workers)
    expected = expected or CorpusEstimate(NOTHING, NOTHING, NOTHING, NOTHING)
    rows = None if units["rows"].null_count else int(units["rows"].to_numpy().sum())
    notices, job = list(request.named.notes), request.job
    if not (expected.documents.high if rows is None else rows):
        notices.append("the sources have no rows: the store would hold no documents")
    if job.deny or job.dedup is not None:
        notices.append("rows that are left out (--deny, --dedup) are not subtracted")
    seconds = expected.seconds
    disk_bytes = expected.disk_bytes([Footprint.of_store(job.tokenizer.dtype)])
    work = Workload(len(request.discovery.table), len(units), request.source_bytes, disk_bytes.high, seconds)
    exports = [Footprint.of_export(each.dtype, call.given.shuffle) for each in call.exports(job.tokenizer)]
    return PlanResult(
        tokenizer=job.tokenizer.name,
        engine=request.choice.engine,
        begin_token=job.begin,
        end_token=job.end,
        sources=len(request.discovery.table),
        source_bytes=request.source_bytes,
        units=len(units),
        unit_bytes=job.unit_bytes,
        text_bytes=expected.text_bytes,
        rows=rows,
        tokens=expected.tokens,
        bytes_per_token=expected.bytes_per_token,
        disk_bytes=disk_bytes,
        export_bytes=expected.disk_bytes(exports),
        workers=workers,
        seconds=Estimate(*(round(START_SECONDS + each / workers, 1) for each in (seconds.low, seconds.high))),
        ignored=request.discovery.ignored,
        notices=notices,
        cluster=work.on(options.nodes, options.cores or machine.cores()) if options.nodes else None,
    )
