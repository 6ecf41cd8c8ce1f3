"""The command `formats`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import tokenmill
from tokenmill.cli import options
from tokenmill.executors import terminal
from tokenmill.humanize import number

if TYPE_CHECKING:
    from tokenmill.api.formats import FormatSpec


@options.command("List the export formats and their trainers.", "tokenmill formats", common=options.GENERAL)
def formats(as_json: bool) -> None:
    """List the export formats with the trainer of each."""
    specs = tokenmill.formats()
    if as_json:
        terminal.echo_json([_flat(spec) for spec in specs])
        return
    for spec in specs:
        tokens = spec.defaults.shard_tokens
        shards = "one file per split" if tokens is None else f"{number(tokens)} tokens per shard"
        documents = "documents may be cut" if spec.cuts else "whole documents"
        terminal.echo(f"{spec.name:<14} {spec.trainer}")
        terminal.echo(f"{'':<14} {spec.files}")
        content = "text" if spec.is_text else f"{'/'.join(spec.dtypes)}; eot {spec.defaults.end}"
        terminal.echo(f"{'':<14} {content}; val {spec.defaults.val or 'none'}")
        terminal.echo(f"{'':<14} {shards}; {documents}")


def _flat(spec: FormatSpec) -> dict[str, object]:
    """All values of a description in one object: how Python groups them is not part of the output."""
    values = asdict(spec)
    for group in ("defaults", "layout", "limits"):
        values |= values.pop(group)
    return values
