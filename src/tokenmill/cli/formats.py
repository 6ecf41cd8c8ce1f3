"""The command `formats`."""

from __future__ import annotations

import click

from tokenmill.cli import options
from tokenmill.executors import terminal
from tokenmill.humanize import number


@click.command(
    cls=options.Command,
    short_help="List the formats, and the trainer each is for.",
    epilog=options.example("tokenmill formats"),
)
@options.general
def formats(as_json: bool) -> None:
    """List the formats that a store can be exported to, and the trainer each is for."""
    from tokenmill.exports.formats import FORMATS  # noqa: PLC0415 - heavy

    specs = [format_.SPEC for format_ in FORMATS.values()]
    if as_json:
        terminal.echo_json(specs)
        return
    for spec in specs:
        shards = "one file a split" if spec.shard_tokens is None else f"{number(spec.shard_tokens)} tokens a shard"
        documents = "cuts documents" if spec.cuts else "whole documents"
        terminal.echo(f"{spec.name:<14} {spec.trainer}")
        terminal.echo(f"{'':<14} {spec.files}; {'/'.join(spec.dtypes)}, end token {spec.end}")
        terminal.echo(f"{'':<14} {shards}, {documents}; val {spec.val or 'none'}")
