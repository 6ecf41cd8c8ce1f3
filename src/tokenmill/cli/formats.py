"""The command `formats`."""

from __future__ import annotations

import click

from tokenmill.cli import options
from tokenmill.executors import terminal
from tokenmill.humanize import number


@click.command(
    cls=options.Command,
    short_help="List the export formats and their trainers.",
    epilog=options.example("tokenmill formats"),
)
@options.general
def formats(as_json: bool) -> None:
    """List the export formats with the trainer of each."""
    from tokenmill.exports.formats import FORMATS  # noqa: PLC0415 - heavy

    specs = [format_.SPEC for format_ in FORMATS.values()]
    if as_json:
        terminal.echo_json(specs)
        return
    for spec in specs:
        shards = "one file per split" if spec.shard_tokens is None else f"{number(spec.shard_tokens)} tokens per shard"
        documents = "documents may be cut" if spec.cuts else "whole documents"
        terminal.echo(f"{spec.name:<14} {spec.trainer}")
        for line in (spec.files, f"{'/'.join(spec.dtypes)}; eot {spec.end}; val {spec.val or 'none'}"):
            terminal.echo(f"{'':<14} {line}")
        terminal.echo(f"{'':<14} {shards}; {documents}")
