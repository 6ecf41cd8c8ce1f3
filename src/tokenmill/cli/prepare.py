"""The command `prepare`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import export, options, output, workers
from tokenmill.humanize import count, duration, number, size

if TYPE_CHECKING:
    from tokenmill.results import PrepareResult

# A run of less text shows no speed: it would measure the start of the workers.
MIN_MEASURED_BYTES = 100_000
# How much of the reason of a row in quarantine is shown.
SHOWN_DETAIL = 200


@options.command(
    "Tokenize sources into a store, and export it.",
    "tokenmill prepare data/*.parquet --tokenizer gpt2 --out tokens",
    "tokenmill prepare data/*.jsonl -t gpt2 --to nanogpt --val 0.01 --out tokens",
    "tokenmill prepare fineweb-edu --version 10B -t gpt2 --out s3://bucket/run",
    declared=None,
    common=options.OF_SOURCES,
)
@click.argument("sources", nargs=-1, metavar="SOURCE...")
def prepare(print_job: bool, as_json: bool, **given: Any) -> None:
    """Tokenize sources into a store. With --to, also export the store.

    A SOURCE is a file, a directory or a glob, local or at s3://, gs://, az:// or hf://datasets/. The files are Parquet,
    Arrow (as datasets saves it), JSON Lines, JSON, CSV or text (also .gz, .zst). Or it is a store, or the name of a
    dataset, with --version. DIR is a local path, or at s3://, gs:// or az://.

    After an interruption, run the same command again: it does only what is missing.
    """
    from tokenmill.pipeline import worker_modules  # noqa: PLC0415 - after click has checked the options

    arguments = options.with_job(given, print_job, needed=("sources", "out"))
    engine, on = arguments.get("engine", "auto"), arguments.get("on", "local")
    with workers.start_workers(worker_modules(engine, arguments.get("tokenizer", ())), on) as executor:
        result = tokenmill.prepare(**arguments, reporter=workers.reporter(), executor=executor)
    output.show_groups(result, as_json, _groups, after_progress=True)


def _groups(result: PrepareResult) -> Iterable[output.Group]:
    for store in (result, *result.others):
        yield f"store {store.tokenizer}" if result.others else "store", _lines(store)
        for exported in store.exports:
            yield export.heading(exported), export.lines(exported)


def _lines(result: PrepareResult) -> Iterable[output.Line]:
    yield "directory", result.directory
    yield "documents", f"{result.documents:,}"
    if result.expected_rows is not None:
        yield "rows", f"{result.expected_rows:,}, equal to the Hub's count"
    yield "tokens", f"{result.tokens:,}"
    yield from output.trained_lines(result.trained_tokens, result.tokens)
    yield "eot", output.token_id(result.end_token, result.end_token_text)
    if result.text_bytes:  # a store of tokens does not know it
        yield "text", size(result.text_bytes)
    yield from output.control_lines(result.control_tokens)
    yield from _skipped(result)
    if result.deaths:
        yield "retried", f"after {count(result.deaths, 'worker death')}"
    if not result.units_done_now:
        yield "unchanged", "all units were done already"
    elif result.text_bytes >= MIN_MEASURED_BYTES:
        yield "speed", f"{number(result.tokens_per_second)} tokens/s, {result.bytes_per_second / 1e6:.1f} MB/s of text"
    for notice in result.notices if options.quiet() else []:  # without --quiet, the run has printed them
        yield "note", notice
    yield "took", f"{duration(result.seconds)} ({result.units_done_now:,} of {count(result.units, 'unit')} in this run)"


def _skipped(result: PrepareResult) -> Iterable[output.Line]:
    from tokenmill.store.part import DENIED, DUPLICATE, ERASED, FILTERED, LENGTH, MISSING, NULL  # noqa: PLC0415 - heavy
    from tokenmill.store.quarantine import QUARANTINE_FILE  # noqa: PLC0415

    reasons = dict(sorted(result.skipped_reasons.items()))
    without_text = {reason: reasons.pop(reason) for reason in (MISSING, NULL) if reason in reasons}
    if without_text:
        rows = count(sum(without_text.values()), "row")
        counts = ", ".join(f"{number:,} {reason}" for reason, number in without_text.items())
        command = f"`tokenmill inspect {result.directory} --skipped`"
        yield "skipped", f"{rows} without text ({counts}); {command} lists them"
    if denied := reasons.pop(DENIED, 0):
        yield "denied", f"{count(denied, 'row')} left out (--deny)"
    if erased := reasons.pop(ERASED, 0):
        yield "erased", f"{count(erased, 'row')} left out, which were erased in the source"
    if duplicates := reasons.pop(DUPLICATE, 0):
        yield "duplicates", f"{count(duplicates, 'row')} left out (--dedup)"
    if others := reasons.pop(LENGTH, 0):
        yield "length", f"{count(others, 'row')} left out (--min-tokens, --max-tokens)"
    if filtered := reasons.pop(FILTERED, 0):
        unread = f"; the text of {count(result.unread_row_groups, 'row group')} was not read"
        yield "filtered", f"{count(filtered, 'row')} (--where){unread if result.unread_row_groups else ''}"
    if result.quarantined:
        counts = ", ".join(f"{rows:,} {reason}" for reason, rows in reasons.items())
        file = f"{result.directory}/{QUARANTINE_FILE}"
        yield "quarantine", f"{count(result.quarantined, 'document')}, listed in {file}: {counts}"
        for detail, number_of_rows in result.bad_details.items():
            yield "", f"{number_of_rows:,} {detail[:SHOWN_DETAIL]}"
