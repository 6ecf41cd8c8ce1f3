"""The command `status`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from tokenmill.cli import options, output
from tokenmill.executors import terminal
from tokenmill.humanize import count, duration, number, size

if TYPE_CHECKING:
    from tokenmill.api.status import StatusResult


@click.command(
    cls=options.Command,
    short_help="Show how far a run is, here or on other machines.",
    epilog=options.example("tokenmill status tokens", "tokenmill status s3://bucket/run --endpoint https://host:9000"),
)
@click.argument("directory", metavar="DIR")
@click.option("--watch", is_flag=True, help="Look again every second, in a bucket every five, until the run ends.")
@options.storage
@options.general
def status(directory: str, watch: bool, as_json: bool) -> None:
    """Show how far a run is; it may be running in another process or on other machines."""
    from tokenmill.api.status import StatusWatch  # noqa: PLC0415 - heavy

    run = StatusWatch(directory)
    state = run.read()
    is_watched = watch and state.state == "running"
    while watch and state.state == "running":
        terminal.replace_line(_one_line(state))
        time.sleep(run.interval_seconds)
        state = run.read()
    if is_watched and sys.stderr.isatty():
        terminal.echo(err=True)  # keep the last line
    output.show(state, as_json, _lines)


def _one_line(state: StatusResult) -> str:
    fraction = state.planned_bytes_done / max(state.planned_bytes, 1)
    left = f"  {duration(state.seconds_left)} left" if state.seconds_left is not None else ""
    rates = f"{number(state.tokens_per_second or 0)} tok/s  {size(state.bytes_per_second or 0)}/s"
    workers = f"{count(state.workers, 'worker')} on {count(state.nodes, 'node')}"
    counts = ((state.retries, "retries"), (state.deaths, "deaths"))
    trouble = "".join(f"  {total:,} {what}" for total, what in counts if total)
    return f"{fraction:6.1%}  {state.units_done:,} of {state.units:,} units  {rates}{left}  {workers}{trouble}"


def _lines(state: StatusResult) -> Iterable[output.Line]:
    yield "store", state.directory
    yield from _state(state)
    fraction = state.planned_bytes_done / state.planned_bytes if state.planned_bytes else 1.0
    limited = f", all that --limit-units {state.limit_units:,} left" if state.limit_units is not None else ""
    yield "units", f"{state.units_done:,} of {state.units:,} committed ({fraction:.1%} of the bytes){limited}"
    begin, end = output.token_id(state.begin_token), output.token_id(state.end_token)
    yield "tokenizer", f"{state.tokenizer}, begin token {begin}, end token {end}"
    if state.tokens is not None and state.documents is not None:
        yield "holds", f"{state.documents:,} documents, {state.tokens:,} tokens"
    yield from output.skipped_lines(state.skipped_rows, state.quarantined)
    yield from _activity(state)
    for name, export in state.exports.items():
        yield "export", f"{name}: {export}"
    if state.state == "stopped":
        yield "next", "run the same `tokenmill prepare` again to finish it"


def _state(state: StatusResult) -> Iterable[output.Line]:
    process = f"process {state.process}" if isinstance(state.process, int) else f"on {state.process}"
    yield "state", state.state + (f" ({process})" if state.state == "running" else "")
    if state.end is not None:
        code = f" (exit code {state.end.exit_code})" if state.end.exit_code is not None else ""
        yield "stopped", f"{state.end.outcome}: {state.end.headline}{code}"
    if state.state == "damaged":
        yield "note", "parts that the manifest lists are gone; the same `tokenmill prepare` makes them again"


def _activity(state: StatusResult) -> Iterable[output.Line]:
    """Speed, workers, deaths and failures."""
    if state.bytes_per_second and state.seconds_left is not None:
        rate = f"{number(state.tokens_per_second or 0)} tokens/s, {size(state.bytes_per_second)}/s"
        yield "speed", f"{rate}, {duration(state.seconds_left)} left"
    if state.workers:
        drivers = f", {count(state.drivers, 'driver')}" if state.drivers > 1 else ""
        yield "at work", f"{count(state.workers, 'worker')} on {count(state.nodes, 'node')}{drivers}"
    counts = ((state.deaths, "worker death"), (state.failures, "failed unit"))
    if trouble := [count(total, what) for total, what in counts if total]:
        retried = f", {state.retries:,} tried again" if state.retries else ""
        yield "trouble", " and ".join(trouble) + f" since it was last started{retried}"
