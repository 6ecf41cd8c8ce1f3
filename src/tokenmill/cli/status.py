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
    from tokenmill.results import StatusResult


@options.command(
    "Show the progress of a run.",
    "tokenmill status tokens",
    "tokenmill status s3://bucket/run --endpoint https://host:9000",
)
@click.argument("directory", metavar="DIR")
@click.option("--watch", is_flag=True, help="Update every second (in a bucket: every five) until the run ends.")
def status(directory: str, watch: bool, as_json: bool) -> None:
    """Show the progress of a run, which may be in another process or on other machines."""
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
    output.show_groups(state, as_json, _groups)


def _one_line(state: StatusResult) -> str:
    fraction = state.planned_bytes_done / max(state.planned_bytes, 1)
    left = f"  {duration(state.seconds_left)} left" if state.seconds_left is not None else ""
    tokens = f"  {number(state.tokens_per_second)} tok/s" if state.tokens_per_second else ""
    text = f"  {size(state.bytes_per_second)}/s" if state.bytes_per_second else ""
    workers = f"{count(state.workers, 'worker')} on {count(state.nodes, 'node')}"
    counts = ((state.waiting, "waiting"), (state.retries, "retries"), (state.deaths, "deaths"))
    trouble = "".join(f"  {total:,} {what}" for total, what in counts if total)
    return f"{fraction:6.1%}  {state.units_done:,} of {state.units:,} units{tokens}{text}{left}  {workers}{trouble}"


def _groups(state: StatusResult) -> Iterable[output.Group]:
    yield "store", _lines(state)
    if state.exports:
        yield "exports", state.exports.items()


def _lines(state: StatusResult) -> Iterable[output.Line]:
    yield "directory", state.directory
    yield from _state(state)
    fraction = state.planned_bytes_done / state.planned_bytes if state.planned_bytes else 1.0
    yield "units", f"{state.units_done:,} of {state.units:,} committed ({fraction:.1%} of the bytes)"
    yield "tokenizer", state.tokenizer
    yield "bos", output.token_id(state.begin_token)
    yield "eot", output.token_id(state.end_token)
    if state.tokens is not None and state.documents is not None:
        yield "documents", f"{state.documents:,}"
        yield "tokens", f"{state.tokens:,}"
    yield from output.skipped_lines(state.skipped_rows, state.quarantined)
    yield from _activity(state)
    if state.state == "stopped":
        yield from (("next" if not number else "", line) for number, line in enumerate(state.next))
    for notice in state.notices:
        yield "note", notice


def _state(state: StatusResult) -> Iterable[output.Line]:
    process = f"process {state.process}" if isinstance(state.process, int) else f"on {state.process}"
    yield "state", state.state + (f" ({process})" if state.state == "running" else "")
    if state.trial is not None:
        yield "trial", state.trial
    if state.end is not None:
        code = f" (exit code {state.end.exit_code})" if state.end.exit_code is not None else ""
        yield "stopped", f"{state.end.outcome}: {state.end.headline}{code}"
    if state.state == "damaged":
        yield "note", "parts of the manifest are missing; run the same `tokenmill prepare` to make them again"


def _activity(state: StatusResult) -> Iterable[output.Line]:
    """Speed, workers, deaths and failures."""
    if state.bytes_per_second and state.seconds_left is not None:
        tokens = f"{number(state.tokens_per_second)} tokens/s, " if state.tokens_per_second else ""
        yield "speed", f"{tokens}{size(state.bytes_per_second)}/s, {duration(state.seconds_left)} left"
    if state.workers:
        drivers = f", {count(state.drivers, 'driver')}" if state.drivers > 1 else ""
        yield "workers", f"{count(state.workers, 'worker')} on {count(state.nodes, 'node')}{drivers}"
    if state.waiting:
        yield "waiting", f"{count(state.waiting, 'worker')}: the object store answers that there are too many requests"
    counts = ((state.deaths, "worker death"), (state.failures, "failed unit"))
    if trouble := [count(total, what) for total, what in counts if total]:
        retried = f", {state.retries:,} retried" if state.retries else ""
        yield "trouble", " and ".join(trouble) + f" since the last start{retried}"
