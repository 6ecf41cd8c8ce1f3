"""The doctor's command: examine a function, or watch a command; and how both results look."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli import options
from tokenmill.errors import INTERRUPTED, UsageError
from tokenmill.system import terminal

if TYPE_CHECKING:
    from tokenmill.doctor.examining.examination import Examination
    from tokenmill.doctor.watching.command import Watched

FUNCTION = re.compile(r".+\.py:[A-Za-z_][\w.]*")


class _Doctor(options.Command):
    """Options may follow FILE.py:FUNCTION, but everything that follows a command is the command's.

    The command's limits and environment are its own, so they are not looked at.
    """

    is_checked = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = args[: args.index("--")] if "--" in args else args
        ctx.allow_interspersed_args = any(FUNCTION.fullmatch(word) for word in before)
        return super().parse_args(ctx, args)


@click.command(
    cls=_Doctor,
    short_help="Say why work over many processes dies.",
    epilog="\b\nExample:\n  tokenmill doctor prepare.py:tokenize --num-proc 8\n  tokenmill doctor -- python prepare.py",
)
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="FILE.py:FUNCTION | -- COMMAND...")
@click.option("--num-proc", type=click.IntRange(1), metavar="N", help="Processes that will run the function.")
@click.option("--column", default="text", show_default=True, metavar="NAME", help="What the function reads of a row.")
@click.option(
    "--hang-seconds",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="A command in which nothing moves for so long is said to hang.",
)
@click.option("--stop-hung", is_flag=True, help="End a command that hangs, and say where each process was.")
@options.everywhere
def doctor(words: tuple[str, ...], as_json: bool, **chosen: Any) -> None:
    """Say why work over many processes dies, before it does or when it has.

    With FILE.py:FUNCTION, the function is tried out in processes of its own: can it be sent to others, does it need
    the network, how much memory does it take, does it hang after a fork. Exit code 1 means that there is a problem.

    With a COMMAND, the command is run and its processes are watched. When one dies, the doctor says which, of what, and
    what to change first. The report goes to stderr and the exit code is the command's own. On Linux only.
    """
    context = click.get_current_context()
    _refuse_bare_file(words)
    if len(words) == 1 and FUNCTION.fullmatch(words[0]):
        _refuse(context, "hang_seconds", "stop_hung", instead="a COMMAND")
        context.exit(_examine(words[0], chosen["num_proc"], chosen["column"], as_json))
    _refuse(context, "num_proc", "column", instead="FILE.py:FUNCTION")
    context.exit(_watch(words, chosen["hang_seconds"], chosen["stop_hung"], as_json))


def _refuse_bare_file(words: tuple[str, ...]) -> None:
    """A script is no command, unless it is one; what was meant can be guessed."""
    file = words[0].partition(":")[0]
    if (
        file.endswith(".py")
        and os.path.isfile(file)
        and not FUNCTION.fullmatch(words[0])
        and not os.access(file, os.X_OK)
    ):
        raise UsageError(
            f"what is to be done with {file}?",
            f"Examine a function of it:    tokenmill doctor {file}:FUNCTION",
            f"Watch it run:                tokenmill doctor -- python {' '.join(words)}",
        )
    if len(words) > 1 and FUNCTION.fullmatch(words[0]):
        raise UsageError("it is either FILE.py:FUNCTION or a COMMAND, not both")


def _refuse(context: click.Context, *names: str, instead: str) -> None:
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise UsageError(f"--{name.replace('_', '-')} goes with {instead}")


def _examine(target: str, num_proc: int | None, column: str, as_json: bool) -> int:
    from tokenmill.cli import doctor_output  # noqa: PLC0415 - after the options are known to be right
    from tokenmill.doctor.examining.examination import examine  # noqa: PLC0415

    try:
        examined: Examination = examine(target, num_proc=num_proc, column=column)
    except KeyboardInterrupt:
        terminal.echo("interrupted", err=True)
        return INTERRUPTED
    if as_json:
        doctor_output.as_json(examined)
    else:
        doctor_output.examined(examined)
    return int(any(found.level == "problem" for found in examined.findings))


def _watch(words: tuple[str, ...], hang_seconds: float, stop_hung: bool, as_json: bool) -> int:
    from tokenmill.cli import doctor_output  # noqa: PLC0415
    from tokenmill.doctor.watching.command import watch  # noqa: PLC0415

    seen: Watched = watch(
        words,
        hang_seconds=hang_seconds,
        stop_hung=stop_hung,
        on_message=_nothing if options.quiet() else None,
        output=sys.stderr.fileno() if as_json else None,
    )
    if as_json:
        doctor_output.as_json(seen)
    else:
        doctor_output.watched(seen)
    return seen.exit_code


def _nothing(_line: str) -> None:
    """Say nothing."""
