"""Write docs/commands.md from the commands themselves: `python scripts/write_command_reference.py [--check]`.

With --check nothing is written, and the exit code is 1 if the file is not what it would be.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import click

from tokenmill.cli import CONTEXT, cli

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
HEAD = """# Commands

Written by `scripts/write_command_reference.py` from the commands themselves; CI fails when it is out of date.

Results go to stdout, progress to stderr. Exit codes: 0 done, 1 failed or incomplete, 2 usage, 3 verification failed,
130 interrupted. Sizes take the suffixes k, M, G, T and B (billion).
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
    """One command: its help, as the command prints it in 100 columns."""
    context = click.Context(command, info_name=f"tokenmill {name}", terminal_width=100, **CONTEXT)
    return f"\n## tokenmill {name}\n\n```text\n{command.get_help(context)}\n```\n"


if __name__ == "__main__":
    sys.exit(main())
