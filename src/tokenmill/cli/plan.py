"""The command `plan`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, workers
from tokenmill.humanize import count, duration, number, size

if TYPE_CHECKING:
    from tokenmill.results import ClusterEstimate, PlanResult


@options.command(
    "Estimate what `prepare` will do and need.",
    "tokenmill plan data/*.parquet --tokenizer gpt2 --to nanogpt",
    "tokenmill plan s3://bucket/text --tokenizer gpt2 --nodes 16 --cores 16",
    declared=None,
    record="PlanOptions",
    common=options.OF_SOURCES,
)
@click.argument("sources", nargs=-1, metavar="SOURCE...")
def plan(print_job: bool, as_json: bool, **given: Any) -> None:
    """Estimate the units, bytes, tokens, disk space and time of `prepare`. Nothing is written.

    It takes the options of `prepare`. Those that change nothing in the estimate are accepted.
    """
    arguments = options.with_job(given, print_job, needed=("sources",))
    result = tokenmill.plan(**arguments, reporter=workers.reporter())
    output.show(result, as_json, _lines)


def _lines(result: PlanResult) -> Iterable[output.Line]:
    yield "sources", f"{count(result.sources, 'file')}, {size(result.source_bytes)}"
    for notice in result.notices:
        yield "note", notice
    rows = f" in {count(result.rows, 'row')}" if result.rows is not None else ""
    yield "text", f"{output.between(result.text_bytes, size)}{rows}"
    yield "units", f"{result.units:,} of about {size(result.text_bytes.high / max(result.units, 1))}"
    for store in (result, *result.others):
        yield from _store(store)
        if store.cluster is not None:
            yield from _cluster(store.cluster)


def _store(result: PlanResult) -> Iterable[output.Line]:
    yield "tokenizer", f"{result.tokenizer}, engine {result.engine}"
    yield "bos", output.token_id(result.begin_token)
    yield "eot", output.token_id(result.end_token)
    yield "tokens", f"{output.between(result.tokens, number)} ({result.bytes_per_token:.2f} bytes each)"
    exports = f", and {output.between(result.export_bytes, size)} for --to" if result.export_bytes.high else ""
    yield "disk", f"{output.between(result.disk_bytes, size)}{exports}"
    yield "time", f"{output.between(result.seconds, duration)} with {count(result.workers, 'worker')}"


_LIMITS = {
    "cores": "the cores",
    "units": "units: fewer than cores",
    "reads": "the reads that S3 takes in a second",
    "writes": "the writes that S3 takes in a second",
}


def _cluster(cluster: ClusterEstimate) -> Iterable[output.Line]:
    yield "cluster", f"{count(cluster.nodes, 'node')} of {count(cluster.cores, 'core')}"
    yield "- time", f"{output.between(cluster.seconds, duration)}, limited by {_LIMITS[cluster.limit]}"
    if cluster.nodes > 1:
        yield "- one node", output.between(cluster.one_node_seconds, duration)
    yield "- cores", f"{output.between(cluster.core_hours, '{:,.3g}'.format)} core-hours"
    requests = f"{number(cluster.reads)} reads, {number(cluster.writes)} writes, {number(cluster.listings)} listings"
    yield "- requests", f"{requests}, {cluster.dollars:,.2f} dollars on S3"
    yield "- network", f"{number(cluster.read_bits)}bit/s in, {number(cluster.written_bits)}bit/s out, each node"
