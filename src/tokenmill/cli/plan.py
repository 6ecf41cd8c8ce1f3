"""The command `plan`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, workers
from tokenmill.humanize import count, duration, number, size

if TYPE_CHECKING:
    from tokenmill.api.results import PlanResult


@click.command(
    cls=options.Command,
    short_help="Estimate what `prepare` will do and need.",
    epilog=options.example("tokenmill plan data/*.parquet --tokenizer gpt2"),
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options.tokenizer
@options.resources
@options.units
@options.storage
@options.cache
@options.general
def plan(sources: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Estimate the units, bytes, tokens, disk space and time of `prepare`. Nothing is written."""
    output.show(tokenmill.plan(sources, **arguments, reporter=workers.reporter()), as_json, _lines)


def _lines(result: PlanResult) -> Iterable[output.Line]:
    yield "sources", f"{count(result.sources, 'file')}, {size(result.source_bytes)}"
    for notice in result.notices:
        yield "note", notice
    rows = f" in {count(result.rows, 'row')}" if result.rows is not None else ""
    yield "text", f"{output.between(result.text_bytes, size)}{rows}"
    yield "units", f"{result.units:,} of about {size(result.text_bytes.high / max(result.units, 1))}"
    yield "tokenizer", f"{result.tokenizer}, engine {result.engine}"
    yield "bos", output.token_id(result.begin_token)
    yield "eot", output.token_id(result.end_token)
    yield "tokens", f"{output.between(result.tokens, number)} ({result.bytes_per_token:.2f} bytes each)"
    yield "disk", output.between(result.disk_bytes, size)
    yield "time", f"{output.between(result.seconds, duration)} with {count(result.workers, 'worker')}"
