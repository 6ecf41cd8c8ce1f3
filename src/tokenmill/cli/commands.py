"""One function per command: read the options, call the library, show the result."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options
from tokenmill.cli.bench import bench
from tokenmill.cli.datasets import datasets
from tokenmill.cli.doctor import doctor
from tokenmill.cli.locate import locate
from tokenmill.cli.report import report, stats

if TYPE_CHECKING:
    from tokenmill.api.status import StatusResult
    from tokenmill.executors.local import LocalExecutor


def _early_workers(on: str, modules: tuple[str, ...]) -> AbstractContextManager[LocalExecutor | None]:
    """Workers of this machine that load what they need while we do; none if the work is done elsewhere."""
    from tokenmill.executors.local import LocalExecutor  # noqa: PLC0415 - after the options are known to be right

    return LocalExecutor(modules) if on == "local" else nullcontext()


def _example(*commands: str) -> str:
    return "\n  ".join(["\b\nExample:", *commands])


@click.command(
    cls=options.Command,
    short_help="Tokenize sources into a store, and export it if asked.",
    epilog=_example(
        "tokenmill prepare data/*.parquet --tokenizer gpt2 --out tokens",
        "tokenmill prepare chunks/*.jsonl --column content --tokenizer gpt2 --to megatron --out tokens",
        "tokenmill prepare data/*.jsonl --tokenizer gpt2 --to nanogpt --val 0.01 --shuffle 1337 --out tokens",
        "tokenmill prepare fineweb-edu --version 10B --tokenizer gpt2 --to nanogpt --out s3://bucket/run",
    ),
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options.what
@click.option("--out", "-o", required=True, metavar="DIR", help="The store: made, or resumed if it is there.")
@options.limits
@options.force
@options.on
@options.rank
@options.how
@options.bad
@options.resuming
@click.option(
    "--to",
    multiple=True,
    metavar="FORMAT",
    help="Also export, to DIR/FORMAT; can be given several times. `tokenmill export` has more options.",
)
@options.exports
@options.storage
@options.cache
@options.everywhere
def prepare(sources: tuple[str, ...], as_json: bool, **words: Any) -> None:
    """Tokenize sources into a store, and export it if asked.

    A SOURCE is a file, a directory or a glob, here or at s3://, gs://, az:// or hf://datasets/: Parquet, Arrow (as
    datasets saves it), JSON Lines (also .gz, .zst) or text; or the name of a dataset, with --version. DIR may be at
    s3://, gs:// or az://, too. Run the same command again after any interruption: only what is missing is done.
    """
    from tokenmill.pipeline import worker_modules  # noqa: PLC0415 - after the options are known to be right

    words["separator"] = options.unescape_separator(words["separator"])
    with _early_workers(words["on"], worker_modules(words["engine"])) as executor:
        from tokenmill.cli import output  # noqa: PLC0415
        from tokenmill.executors import progress  # noqa: PLC0415

        reporter = progress.for_command(options.quiet())
        result = tokenmill.prepare(sources, **words, reporter=reporter, executor=executor)
    output.result(result, as_json, output.prepared)


@click.command(
    cls=options.Command,
    short_help="Say what `prepare` would do and need, without doing it.",
    epilog=_example("tokenmill plan data/*.parquet --tokenizer gpt2"),
)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@options.what
@options.limits
@options.how
@options.storage
@options.cache
@options.everywhere
def plan(sources: tuple[str, ...], as_json: bool, **words: Any) -> None:
    """Say what `prepare` would do, without doing it: units, bytes, tokens, disk and time."""
    from tokenmill.cli import output  # noqa: PLC0415
    from tokenmill.executors import progress  # noqa: PLC0415

    words["separator"] = options.unescape_separator(words["separator"])
    reporter = progress.for_command(options.quiet())
    output.result(tokenmill.plan(sources, **words, reporter=reporter), as_json, output.estimate)


@click.command(
    cls=options.Command,
    short_help="Write a store's tokens as the files a trainer reads.",
    epilog=_example("tokenmill export tokens --to nanogpt --val 0.0005 --shuffle 1337"),
)
@click.argument("directory", metavar="DIR")
@click.option("--to", required=True, metavar="FORMAT", help="The format: `tokenmill formats` lists them.")
@click.option("--out", "-o", metavar="DIR2", help="Where the files go. [default: DIR/FORMAT]")
@options.exports
@options.export_details
@options.limits
@options.force
@options.on
@options.storage
@options.everywhere
def export(directory: str, as_json: bool, **words: Any) -> None:
    """Write a store's tokens as the files a trainer reads.

    Run the same command again after any interruption: only the shards that are missing are written.
    """
    from tokenmill.exports import PRELOAD  # noqa: PLC0415 - after the options are known to be right

    with _early_workers(words["on"], PRELOAD) as executor:
        from tokenmill.cli import output  # noqa: PLC0415
        from tokenmill.executors import progress  # noqa: PLC0415

        reporter = progress.for_command(options.quiet())
        result = tokenmill.export(directory, **words, reporter=reporter, executor=executor)
    output.result(result, as_json, output.exported)


@click.command(
    cls=options.Command,
    short_help="List the formats, and the trainer each is for.",
    epilog=_example("tokenmill formats"),
)
@options.everywhere
def formats(as_json: bool) -> None:
    """List the formats that a store can be exported to, and the trainer each is for."""
    from tokenmill.cli import output  # noqa: PLC0415

    output.formats(as_json)


@click.command(
    cls=options.Command,
    short_help="Show how far a run is, here or on other machines.",
    epilog=_example("tokenmill status tokens", "tokenmill status s3://bucket/run --endpoint https://host:9000"),
)
@click.argument("directory", metavar="DIR")
@click.option("--watch", is_flag=True, help="Look again every second, in a bucket every five, until the run ends.")
@options.storage
@options.everywhere
def status(directory: str, watch: bool, as_json: bool) -> None:
    """Show how far a run is; it may be running in another process or on other machines."""
    from tokenmill.api.status import StatusWatch  # noqa: PLC0415
    from tokenmill.cli import output  # noqa: PLC0415

    run = StatusWatch(directory)
    state = run.look()
    watched = watch and state.state == "running"
    while watch and state.state == "running":
        output.line(_one_line(state))
        time.sleep(run.seconds)
        state = run.look()
    if watched:
        output.end_lines()
    output.result(state, as_json, output.status)


def _one_line(state: StatusResult) -> str:
    from tokenmill import humanize  # noqa: PLC0415

    share = state.planned_bytes_done / max(state.planned_bytes, 1)
    left = f"  {humanize.duration(state.seconds_left)} left" if state.seconds_left is not None else ""
    rates = f"{humanize.number(state.tokens_per_second or 0)} tok/s  {humanize.size(state.bytes_per_second or 0)}/s"
    crew = f"{humanize.count(state.workers, 'worker')} on {humanize.count(state.nodes, 'node')}"
    troubles = ((state.retries, "retries"), (state.deaths, "deaths"))
    trouble = "".join(f"  {number:,} {what}" for number, what in troubles if number)
    return f"{share:6.1%}  {state.units_done:,} of {state.units:,} units  {rates}{left}  {crew}{trouble}"


@click.command(
    cls=options.Command,
    short_help="Check a store or an export, byte by byte.",
    epilog=_example("tokenmill verify tokens --sample 0.01"),
)
@click.argument("directory", metavar="DIR")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1),
    default=0.0,
    metavar="F",
    help="Also encode this share of the documents again, with the reference engine, and compare.",
)
@click.option("--all", "every", is_flag=True, help="Also encode every document again and compare.")
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes. [default: one per core]")
@options.on
@options.storage
@options.everywhere
def verify(directory: str, every: bool, as_json: bool, **words: Any) -> None:
    """Check a store or an export: every checksum, and with --sample or --all a store's tokens against the sources.

    DIR is a store, which is checked with the exports inside it, or the directory of an export. Exit code 3 means that
    something is wrong.
    """
    from tokenmill.cli import output  # noqa: PLC0415
    from tokenmill.executors import progress  # noqa: PLC0415

    reporter = progress.for_command(options.quiet())
    result = tokenmill.verify(directory, all=every, **words, reporter=reporter)
    output.result(result, as_json, output.verification)


@click.command(
    cls=options.Command,
    short_help="Complete a store whose parts are all there.",
    epilog=_example("tokenmill finish s3://bucket/run"),
)
@click.argument("directory", metavar="DIR")
@click.option(
    "--max-bad", default="0.1%", show_default=True, metavar="SHARE", help="More bad documents than this are an error."
)
@click.option("--workers", type=click.IntRange(1), metavar="N", help="Processes. [default: one per core]")
@options.on
@options.storage
@options.everywhere
def finish(directory: str, as_json: bool, **words: Any) -> None:
    """Complete a store whose parts are all there: write its manifest.

    The last of several ranks does this by itself; it is for a run whose ranks have died at the very end. Exit code 1
    means that units are missing.
    """
    from tokenmill.cli import output  # noqa: PLC0415
    from tokenmill.executors import progress  # noqa: PLC0415

    result = tokenmill.finish(directory, **words, reporter=progress.for_command(options.quiet()))
    output.result(result, as_json, output.finished)


@click.command(
    cls=options.Command,
    short_help="Look into a store, or at one document of it.",
    epilog=_example("tokenmill inspect tokens --doc 7"),
)
@click.argument("directory", metavar="DIR")
@click.option("--doc", type=int, metavar="N", help="Show document N: its tokens as text, its source and row.")
@click.option("--skipped", is_flag=True, help="List the rows that are not in the store, with the reason.")
@options.storage
@options.everywhere
def inspect(directory: str, doc: int | None, skipped: bool, as_json: bool) -> None:
    """Look into a store: what it holds, one document token by token, or what was skipped."""
    from tokenmill.cli import output  # noqa: PLC0415

    store = tokenmill.open(directory)
    if doc is not None:
        output.document(store, doc, as_json)
    elif skipped:
        output.skipped(store, as_json)
    else:
        output.overview(store, as_json)


COMMANDS = (
    prepare,
    plan,
    status,
    export,
    verify,
    finish,
    inspect,
    locate,
    stats,
    report,
    formats,
    datasets,
    bench,
    doctor,
)
