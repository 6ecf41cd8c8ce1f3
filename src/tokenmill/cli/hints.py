"""Hints for users who type an option of another tool: click says that it does not exist, a hint names ours."""

from __future__ import annotations

import click

# For each unknown option: an option that the command must have for the hint to apply, and the hint.
HINTS = {
    "--seed": ("--shuffle", "Use --shuffle SEED."),
    "--format": ("--to", "Use --to FORMAT."),
    "--subset": ("--config", "Use --config NAME."),
    "--split": ("--val", "Use --val FRACTION, such as --val 0.01, or --val split:NAME."),
    "--test-size": ("--val", "Use --val FRACTION, such as --val 0.01."),
    "--val-size": ("--val", "Use --val FRACTION, such as --val 0.01."),
    "--num-proc": ("--workers", "Use --workers N."),
    "--processes": ("--workers", "Use --workers N."),
    "--num-workers": ("--workers", "Use --workers N."),
    "--output": ("--out", "Use --out DIR."),
    "--output-dir": ("--out", "Use --out DIR."),
    "--output-prefix": ("--out", "Use --out DIR."),
    "--text-column": ("--column", "Use --column NAME."),
    "--key": ("--column", "Use --column NAME."),
    "--json-keys": ("--column", "Use --column NAME."),
    "--append-eod": ("--eot", "The eot token follows each document unless --eot none is given."),
    **dict.fromkeys(
        ("--max-length", "--max-seq-len", "--seq-length", "--block-size"),
        (
            "--max-tokens",
            "Documents are stored whole, and trainers cut them into sequences. --max-tokens would skip documents.",
        ),
    ),
    "--model": ("--tokenizer", "Use --tokenizer T."),
    **dict.fromkeys(
        ("--dtype", "--eot-position", "--name", "--columns", "--sequence-tokens"),
        ("--to", "`tokenmill export` has it."),
    ),
    "--input": ("--tokenizer", "Sources are given without an option: tokenmill prepare data/*.jsonl ..."),
}

# What people call our commands.
COMMANDS = {"tokenize": "prepare", "encode": "prepare", "convert": "export", "merge": "export", "check": "verify"}
COMMANDS |= {"show": "inspect", "info": "inspect", "delete": "erase", "remove": "erase", "train": "loader"}

MISSING_VALUES = {"--shuffle": "Give a seed: --shuffle 1337."}


def with_hint(error: click.ClickException) -> click.ClickException:
    """The same error, with a hint at the end of its message if there is one."""
    if isinstance(error, click.NoSuchOption):
        needed, hint = HINTS.get(error.option_name.replace("_", "-"), ("", ""))
        existing = {name for param in error.ctx.command.params for name in param.opts} if error.ctx else set()
        if hint and needed in existing:
            return click.NoSuchOption(error.option_name, f"{error.message} {hint}", ctx=error.ctx)
    elif isinstance(error, click.BadOptionUsage) and error.option_name in MISSING_VALUES:
        hint = MISSING_VALUES[error.option_name]
        return click.BadOptionUsage(error.option_name, f"{error.message} {hint}", ctx=error.ctx)
    return error
