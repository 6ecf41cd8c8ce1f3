"""The command `upgrade`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, workers
from tokenmill.humanize import count, duration

if TYPE_CHECKING:
    from tokenmill.api.upgrade import UpgradeResult


@click.command(
    cls=options.Command,
    short_help="Bring an old store to the current format.",
    epilog=options.example("tokenmill upgrade tokens-2025"),
)
@click.argument("directory", metavar="DIR")
@options.resources
@options.executor
@options.storage
@options.general
def upgrade(directory: str, as_json: bool, **arguments: Any) -> None:
    """Bring the complete store DIR of an older format to the current one. Tokens and exports stay as they are.

    Old stores can be read, exported and verified without it. `erase` and `prepare --repair` need it. Run the same
    command again after an interruption. Until it has finished, other commands refuse the store.
    """
    output.show(tokenmill.upgrade(directory, **arguments, reporter=workers.reporter()), as_json, _lines)


def _lines(result: UpgradeResult) -> Iterable[output.Line]:
    yield "store", result.directory
    yield "holds", f"{result.documents:,} documents, {result.tokens:,} tokens in {count(result.units, 'part')}"
    yield "format", f"{result.format}, {'upgraded' if result.upgraded else 'unchanged: it is current'}"
    yield "took", duration(result.seconds)
