"""What people mean who type an option that other tools have: click says that there is none, this adds what there is."""

from __future__ import annotations

import click

HINTS = {
    "--seed": ("--shuffle", "Use --shuffle SEED."),
    "--format": ("--to", "Use --to FORMAT."),
    "--split": ("--val", "Use --val SHARE, such as --val 0.01."),
    "--test-size": ("--val", "Use --val SHARE, such as --val 0.01."),
    "--val-size": ("--val", "Use --val SHARE, such as --val 0.01."),
    "--num-proc": ("--workers", "Use --workers N."),
    "--processes": ("--workers", "Use --workers N."),
    "--num-workers": ("--workers", "Use --workers N."),
    "--output": ("--out", "Use --out DIR."),
    "--output-dir": ("--out", "Use --out DIR."),
    "--output-prefix": ("--out", "Use --out DIR."),
    "--text-column": ("--column", "Use --column NAME."),
    "--key": ("--column", "Use --column NAME."),
    "--json-keys": ("--column", "Use --column NAME."),
    "--append-eod": ("--eot", "The end token is put after each document unless --eot none is given."),
    "--model": ("--tokenizer", "Use --tokenizer T."),
    **dict.fromkeys(("--dtype", "--end-token", "--name", "--sequence-tokens"), ("--to", "`tokenmill export` has it.")),
    "--input": ("--tokenizer", "Sources are given without an option: tokenmill prepare data/*.jsonl ..."),
}
"""For each option that there is not: one that the command must have for the hint to be right, and the hint."""

MISSING_VALUES = {"--shuffle": "Give a seed: --shuffle 1337."}


def hinted(error: click.ClickException) -> click.ClickException:
    """The same error, with a hint at its end if we know one."""
    if isinstance(error, click.NoSuchOption):
        needed, hint = HINTS.get(error.option_name.replace("_", "-"), ("", ""))
        if hint and needed in _options(error.ctx):
            return click.NoSuchOption(error.option_name, f"{error.message} {hint}", ctx=error.ctx)
    elif isinstance(error, click.BadOptionUsage) and error.option_name in MISSING_VALUES:
        hint = MISSING_VALUES[error.option_name]
        return click.BadOptionUsage(error.option_name, f"{error.message} {hint}", ctx=error.ctx)
    return error


def _options(context: click.Context | None) -> set[str]:
    return {name for each in context.command.params for name in each.opts} if context is not None else set()
