"""Reports what a run is about to do, before its first unit."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from tokenmill.executors import ranks
from tokenmill.executors.messages import out_of
from tokenmill.executors.outcomes import Pool
from tokenmill.humanize import count, size
from tokenmill.pipeline.driving.context import RunContext
from tokenmill.pipeline.planning.request import PrepareRequest
from tokenmill.pipeline.planning.resources import Resources


def announce(context: RunContext, request: PrepareRequest, resources: Resources, pool: Pool) -> None:
    """Show the sources and the workers of a call."""
    run, say = context.frozen.run, context.report.say
    say(f"sources      {count(run.sources, 'file')}, {size(run.source_bytes)}, {count(run.units, 'unit')}")
    if request.source is not None:
        say(f"read from    {request.source.input.directory}, a store of these files")
    for dataset in request.named.datasets:
        say(f"dataset      {dataset.title}, {dataset.address}")
    for note in request.named.notes:
        say(f"note: {note}")
    say(f"workers      {resources.workers}, {size(resources.memory_bytes)} of memory")
    if context.rank_share is not None:
        say(f"share        {context.rank_share}, then units that other ranks have not done")
    elif (advice := ranks.advice()) is not None:
        say(f"note: {advice}")
    if resources.notice:
        say(f"note: {resources.notice}")
    if request.discovery.ignored:
        context.events.log.add("ignored", **msgspec.structs.asdict(request.discovery.ignored))
    if pool.room.machine_bytes is None:
        _announce_cluster(context, pool)


def announce_store(context: RunContext, request: PrepareRequest, units_done: int) -> None:
    """Show the tokenizer of a store, of which `units_done` units are done already."""
    spec, say = request.job.tokenizer, context.report.say
    for line in _tokenizer_lines(request):
        say(line)
    for name, token in (("bos", request.job.begin), ("eot", request.job.end)):
        say(f"{name:<12} {'none' if token is None else spec.shown(token)}")
    if units_done:
        say(f"resuming     {out_of(units_done, context.frozen.run.units, 'unit')} already done")


def _tokenizer_lines(request: PrepareRequest) -> Iterator[str]:
    spec, choice = request.job.tokenizer, request.choice
    yield f"tokenizer    {spec.name} ({spec.vocabulary_size:,} ids, {spec.dtype}), engine {choice.engine}"
    if spec.commit:
        yield f"model        {spec.source}, commit {spec.commit}"
    if choice.reason:
        yield f"note: {choice.reason}"


def _announce_cluster(context: RunContext, pool: Pool) -> None:
    capacity = pool.room
    nodes, processors = count(capacity.machines, "node"), count(capacity.processors, "processor")
    context.report.say(f"cluster      {nodes}, {processors}")
    if capacity.machines > 1 and not (context.folder.is_remote and context.has_remote_sources):
        context.report.say("note: every node must have the same files at the same paths")
