"""Write docs/commands.md from the commands themselves: `python scripts/write_command_reference.py [--check]`.

With --check nothing is written, and the exit code is 1 if the file is not what it would be.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from pathlib import Path

import click

from tokenmill.cli import CONTEXT, cli, options

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
HEAD = """# Commands

Written by `scripts/write_command_reference.py` from the commands themselves; CI fails when it is out of date.

Results go to stdout, progress to stderr. Exit codes: 0 done, 1 failed for good, 2 usage, 3 corrupt or verification
failed, 75 failed for now (run it again), 130 interrupted: [what they mean](prepare.md#from-scripts).
Sizes take the suffixes k, M, G, T and B (billion). [Screens](screens.md) shows what each command prints.

| argument | what it is |
| --- | --- |
| `SOURCE` | a file, a directory, a glob, an address such as `s3://bucket/path`, or the name of a dataset |
| `DIR` | a store: a path, or an address such as `s3://bucket/run` |
| `FORMAT` | a trainer's format, as `tokenmill formats` lists them |
"""


def main() -> int:
    """Write the page, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args().check
    page = HEAD + "".join(section(name, command) for name, command in cli.commands.items())
    if not check:
        PAGE.write_text(page)
        return 0
    if PAGE.read_text() == page:
        return 0
    print(f"{PAGE} is out of date: run python scripts/write_command_reference.py", file=sys.stderr)
    return 1


def section(name: str, command: click.Command) -> str:
    """One command: how it is called, what it does, its arguments and options, and an example that works."""
    context = click.Context(command, info_name=f"tokenmill {name}", terminal_width=100, **CONTEXT)  # type: ignore[arg-type]
    usage = command.get_usage(context).removeprefix("Usage: ")
    tables = [table(heading, found, context) for heading, found in options.sections(command, context).items()]
    parts = [f"## tokenmill {name}", fence(usage), inspect.cleandoc(command.help or ""), *tables, examples(command)]
    return "".join(f"\n{part}\n" for part in parts)


def table(heading: str, found: list[click.Option], context: click.Context) -> str:
    """The options of a heading, which is told where there are several."""
    rows = [row(option, context) for option in found]
    head = [] if heading == options.REST else [f"{heading}:", ""]
    return "\n".join([*head, "| option | value | meaning |", "| --- | --- | --- |", *rows])


def row(option: click.Option, context: click.Context) -> str:
    """One option: its names, what follows it, and its help with default and limits as the command prints them."""
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    meaning = (option.get_help_record(context) or ("", ""))[1]
    return f"| {names} | {value(option, context)} | {escape(' '.join(meaning.split()))} |"


def value(option: click.Option, context: click.Context) -> str:
    """What follows an option: one of some words, or something that has a name; nothing if it is a flag."""
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return ", ".join(f"`{choice}`" for choice in option.type.choices)
    return f"`{option.make_metavar(context)}`"


def examples(command: click.Command) -> str:
    """The commands of the epilogue."""
    lines = inspect.cleandoc((command.epilog or "").replace("\b\n", "")).splitlines()
    return fence("\n".join(line.strip() for line in lines[1:]))


def fence(code: str) -> str:
    """Lines for a shell."""
    return f"```sh\n{code}\n```"


def escape(text: str) -> str:
    """Text in a table of Markdown."""
    return text.replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


if __name__ == "__main__":
    sys.exit(main())
