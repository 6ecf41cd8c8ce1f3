"""The command `export`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, workers
from tokenmill.humanize import count, duration, number, size

if TYPE_CHECKING:
    from tokenmill.results import ExportResult


@options.command(
    "Write a store's tokens as the files a trainer reads.",
    "tokenmill export tokens --to nanogpt --val 0.0005 --shuffle 1337",
    "tokenmill export tokens-2025 tokens-2026 --to megatron --out megatron",
    record="ExportOptions",
    declared=None,
)
@click.argument("directory", metavar="DIR...|RECIPE", nargs=-1, required=True)
def export(directory: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Write a store's tokens as the files that a trainer reads.

    RECIPE is a file of sources and stages: the tokens that its stages read are exported, shuffled, to --out.

    Several stores are exported as one, in the order given, with one split and one shuffle. They need the same
    tokenizer, bos and eot: `tokenmill prepare --like` makes such stores.

    After an interruption, run the same command again: it writes only the missing shards.
    """
    from tokenmill.exports import PRELOAD  # noqa: PLC0415 - after click has checked the options

    with workers.start_workers(PRELOAD, arguments.get("on", "local")) as executor:
        result = tokenmill.export(directory, **arguments, reporter=workers.reporter(), executor=executor)
    output.show_groups(result, as_json, lambda result: [(heading(result), lines(result))], after_progress=True)


def heading(result: ExportResult) -> str:
    """The heading of an export's lines."""
    return f"export {result.format}"


def lines(result: ExportResult) -> Iterable[output.Line]:
    """The lines of one export; `prepare` prints them for each of its exports."""
    yield "directory", result.directory
    if len(result.stores) > 1:
        yield from ((f"store {index}", store) for index, store in enumerate(result.stores, 1))
    yield "trainer", result.trainer
    tokens = sum(split.tokens for split in result.splits.values())
    yield from (("source", f"{name}: {count(own, 'token')}") for name, own in result.sources.items())
    for name, split in result.splits.items():
        content = f"{count(split.tokens, 'token')}, {count(split.documents, 'document')}"
        content += f", {count(split.shards, 'shard')}" if split.shards > 1 else ""
        yield name, f"{content} ({_percent(split.tokens / max(tokens, 1))} of the tokens)" if name == "val" else content
        if split.tokens_left_out:
            last = "sequence" if result.format == "mds" else "shard"
            yield "skipped", f"{count(split.tokens_left_out, 'token')} of an incomplete {last} at the end (--tail drop)"
        if split.long_documents:
            documents = f"{count(split.long_documents, 'document')} of {count(split.long_tokens, 'token')}"
            yield "left out", f"{documents}, longer than a row"
    yield "files", f"{result.files:,}, {size(result.bytes)}, {result.dtype}"
    if result.shards_done_now:
        yield "speed", f"{number(result.tokens_per_second)} tokens/s"
    elif result.files:
        yield "unchanged", "all shards were written already"
    for notice in result.notices if options.quiet() else []:  # without --quiet, the export has printed them
        yield "note", notice
    yield "took", duration(result.seconds)
    if result.use:
        yield "use", result.use


def _percent(fraction: float) -> str:
    """Two digits: 12 %, 1.2 %, 0.051 %."""
    if 0 < fraction < 1e-4:
        return "less than 0.01 %"
    return f"{fraction * 100:.0f} %" if fraction >= 0.1 else f"{fraction * 100:.2g} %"
