"""The command `doctor`: it examines a function or watches a command, and reports what is wrong and what to change."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli import options
from tokenmill.errors import INTERRUPTED, UsageError
from tokenmill.executors import terminal
from tokenmill.executors.terminal import Styled
from tokenmill.humanize import duration, size

if TYPE_CHECKING:
    from tokenmill.diagnosis.causes import Finding
    from tokenmill.diagnosis.examining.examination import Examination
    from tokenmill.diagnosis.watching.command import Watched
    from tokenmill.diagnosis.watching.deaths import Death

FUNCTION = re.compile(r".+\.py:[A-Za-z_][\w.]*")
LABEL_COLUMNS = 13
LEVEL_COLUMNS = 9
MAX_COLUMNS = 120
MIN_TEXT_COLUMNS = 20
SHOWN_COMMAND_CHARACTERS = 200
SHOWN_DEATHS = 3
SHOWN_LEFT = 5
# These end processes on purpose, so such a death explains nothing.
EXPECTED_KILLERS = ("parent", "doctor")
BOLD = {"bold": True}
STYLES: dict[str, dict[str, Any]] = {
    "ok": {"fg": "green"},
    "warning": {"fg": "yellow", "bold": True},
    "problem": {"fg": "red", "bold": True},
    "first": {"fg": "cyan", "bold": True},
    "died": {"fg": "red"},
}


class _DoctorCommand(options.Command):
    """Accepts options after FILE.py:FUNCTION. After a COMMAND, everything belongs to the COMMAND.

    The watched command has its own limits and environment, so the doctor checks none.
    """

    checks_limits = False

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before = args[: args.index("--")] if "--" in args else args
        ctx.allow_interspersed_args = any(FUNCTION.fullmatch(argument) for argument in before)
        return super().parse_args(ctx, args)


@options.command(
    "Find out why work in many processes dies.",
    "tokenmill doctor prepare.py:tokenize --num-proc 8",
    "tokenmill doctor -- python prepare.py",
    cls=_DoctorCommand,
    common=options.GENERAL,
)
@click.argument("target", nargs=-1, required=True, type=click.UNPROCESSED, metavar="FILE.py:FUNCTION | -- COMMAND...")
@click.option("--num-proc", type=click.IntRange(1), metavar="N", help="Number of processes that will run the function.")
@click.option("--column", default="text", show_default=True, metavar="NAME", help="Column that the function reads.")
@click.option(
    "--hang-seconds",
    type=click.FloatRange(1),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Seconds without any progress after which a command counts as hung.",
)
@click.option("--stop-hung", is_flag=True, help="Stop a hung command, and show where each process was.")
def doctor(target: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Find out why work in many processes dies, before or after it happens.

    With FILE.py:FUNCTION, the doctor runs the function in separate processes. It checks whether the function can be
    pickled, needs the network, fits into memory, and hangs after a fork. Exit code 1 means that there is a problem.

    With a COMMAND, the doctor runs the command and watches its processes. When one dies, the report names the process,
    the cause and the first thing to change. The report goes to stderr; the exit code is the command's. Linux only.
    """
    context = click.get_current_context()
    _refuse_bare_file(target)
    if len(target) == 1 and FUNCTION.fullmatch(target[0]):
        _refuse_options(context, "hang_seconds", "stop_hung", needs="a COMMAND")
        context.exit(_examine(target[0], arguments["num_proc"], arguments["column"], as_json))
    _refuse_options(context, "num_proc", "column", needs="FILE.py:FUNCTION")
    context.exit(_watch(target, arguments["hang_seconds"], arguments["stop_hung"], as_json))


def _refuse_bare_file(target: tuple[str, ...]) -> None:
    """Raise UsageError for a script that is not executable, and suggest what the user may have meant."""
    file = target[0].partition(":")[0]
    is_function = FUNCTION.fullmatch(target[0])
    if file.endswith(".py") and os.path.isfile(file) and not is_function and not os.access(file, os.X_OK):
        raise UsageError(
            f"name a function ({file}:FUNCTION) or a command (-- python {file})",
            f"Examine a function:    tokenmill doctor {file}:FUNCTION",
            f"Watch the script run:  tokenmill doctor -- python {' '.join(target)}",
        )
    if len(target) > 1 and is_function:
        raise UsageError("give either FILE.py:FUNCTION or a COMMAND, not both")


def _refuse_options(context: click.Context, *names: str, needs: str) -> None:
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise UsageError(f"--{name.replace('_', '-')} needs {needs}")


def _examine(function: str, num_proc: int | None, column: str, as_json: bool) -> int:
    from tokenmill.diagnosis.examining.examination import examine  # noqa: PLC0415 - after click has checked the options

    try:
        examination = examine(function, num_proc=num_proc, column=column)
    except KeyboardInterrupt:
        terminal.echo("interrupted", err=True)
        return INTERRUPTED
    if as_json:
        terminal.echo_json(examination)
    else:
        _print_examination(examination)
    return int(any(finding.level == "problem" for finding in examination.findings))


def _print_examination(examination: Examination) -> None:
    page = _Page(err=False)
    page.line("doctor", f"{examination.target}  (num_proc={examination.num_proc}, {examination.start_method})")
    for check in examination.checks:
        page.check(check.name, check.level, check.seen)
    if not examination.findings:
        page.blank()
        page.line("ok", "no known problem found", "ok")
    page.findings(examination.findings)


def _watch(command: tuple[str, ...], hang_seconds: float, stop_hung: bool, as_json: bool) -> int:
    from tokenmill.diagnosis.watching.command import watch  # noqa: PLC0415 - after click has checked the options

    watched = watch(
        command,
        hang_seconds=hang_seconds,
        stop_hung=stop_hung,
        on_message=(lambda _line: None) if options.quiet() else None,
        output=sys.stderr.fileno() if as_json else None,
    )
    if as_json:
        terminal.echo_json(watched)
    else:
        _print_watched(watched)
    return watched.exit_code


def _print_watched(watched: Watched) -> None:
    """Print the report on stderr, because stdout belongs to the command."""
    import shlex  # noqa: PLC0415 - only here

    page = _Page(err=True)
    command = textwrap.shorten(shlex.join(watched.command), SHOWN_COMMAND_CHARACTERS, placeholder=" ...")
    if not watched.findings and watched.exit_code == 0:
        page.line("doctor", f"{_survival(watched)}: {_processes(watched)}, {duration(watched.seconds)}", "ok")
    else:
        page.blank()
        page.line("doctor", f"{command}  ({_end(watched)})")
        page.line("processes", _processes(watched))
    page.rows(_deaths(watched))
    if watched.left_behind:
        names = [f"{process.pid} ({process.name})" for process in watched.left_behind[:SHOWN_LEFT]]
        more = len(watched.left_behind) - len(names)
        page.line("left behind", f"{', '.join(names)}{f' and {more} more' if more else ''}: still running", "warning")
    page.findings(watched.findings)


def _survival(watched: Watched) -> str:
    """How many processes of a successful command died."""
    died = sum(death.matters for death in watched.deaths)
    is_all = sum(watched.deaths_by_killer.values()) == len(watched.deaths)
    processes = f"{'' if is_all else 'at least '}{died:,} process{'es' * (died != 1)}"
    return f"{processes} died, and the command continued" if died else "nothing died"


def _processes(watched: Watched) -> str:
    processes = f"{watched.processes:,} processes" if watched.processes != 1 else "1 process"
    at_once = f", {watched.most_at_once:,} at once" if watched.most_at_once != watched.processes else ""
    together = " together" * (watched.processes > 1)
    memory = f", {size(watched.peak_bytes)} at most{together}" if watched.peak_bytes else ""
    return f"{processes}{at_once}{memory}"


def _end(watched: Watched) -> str:
    end = f"exit code {watched.exit_code}"
    if "doctor" in watched.deaths_by_killer:
        end = "stopped by the doctor"
    elif watched.interrupted:
        end = f"interrupted, {end}"
    return f"{end} after {duration(watched.seconds)}"


def _deaths(watched: Watched) -> list[tuple[str, ...]]:
    """A row for each death that explains something."""
    if not watched.findings:
        return []
    deaths = [death for death in watched.deaths if death.killer not in EXPECTED_KILLERS and not _is_plain_exit(death)]
    rows = [("died", *_death(death)) for death in deaths[:SHOWN_DEATHS]]
    total = sum(number for killer, number in watched.deaths_by_killer.items() if killer not in EXPECTED_KILLERS)
    hidden = total - len(rows) - any(map(_is_plain_exit, watched.deaths))
    return [*rows, ("", f"... and {hidden:,} more")] if rows and hidden > 0 else rows


def _is_plain_exit(death: Death) -> bool:
    """Whether this is the exit code of the command itself, which the first line shows."""
    return death.role == "command" and death.exit_code is not None


def _death(death: Death) -> Iterable[str]:
    yield f"pid {death.pid}"
    yield "the command" if death.role == "command" else f"{death.role} of {death.parent}"
    yield f"after {duration(death.seconds)}"
    yield f"peak {size(death.peak_bytes)}" if death.peak_bytes else "peak not seen"
    yield f"killed by {death.why}" if death.killer == "kernel" else death.why


def _shout(level: str) -> str:
    return level.upper() if level == "problem" else level


class _Page:
    """Prints lines with a label each, wrapped to the width of the terminal."""

    def __init__(self, *, err: bool) -> None:
        self._err = err
        self._columns = min(MAX_COLUMNS, shutil.get_terminal_size((100, 24)).columns) - LABEL_COLUMNS

    def blank(self) -> None:
        """Print an empty line."""
        terminal.echo(err=self._err)

    def line(self, label: str, text: str, level: str = "") -> None:
        """Print a label, and its text on as many lines as it needs."""
        self._print(label, self._wrap(text), level)

    def check(self, label: str, level: str, text: str) -> None:
        """Print one check: its name, its level, and what the doctor saw."""
        self._print(label, self._wrap(text, LEVEL_COLUMNS), level, _shout(level).ljust(LEVEL_COLUMNS))

    def rows(self, rows: list[tuple[str, ...]]) -> None:
        """Print rows of aligned cells; the last cell of a row may have any width."""
        columns = itertools.zip_longest(*(row[:-1] for row in rows), fillvalue="")
        widths = [max(map(len, column)) for column in columns]
        for index, row in enumerate(rows):
            cells = [cell.ljust(width) for cell, width in zip(row[1:-1], widths[1:], strict=False)]
            if index == 0:
                self.blank()
            self.line(row[0], "  ".join([*cells, row[-1]]), "died")

    def findings(self, findings: list[Finding]) -> None:
        """Print each finding with its evidence, and at the end the first thing to change."""
        for index, finding in enumerate(findings):
            self.blank()
            self._print(_shout(finding.level), self._wrap(finding.title), finding.level, is_bold=True)
            for evidence in finding.evidence:
                self._print("", [line[: max(MIN_TEXT_COLUMNS, self._columns)] for line in self._wrap(evidence)])
            if index:
                self._advise("then", finding.fix)
        if findings:
            self.blank()
            self._advise("first", findings[0].fix)

    def _advise(self, label: str, fix: tuple[str, ...]) -> None:
        for index, text in enumerate(fix):
            self.line("" if index else label, text, "first")

    def _wrap(self, text: str, indent: int = 0) -> list[str]:
        """Wrap text. Code, which is indented, stays on one line."""
        if text.startswith(" "):
            return [text]
        columns = max(MIN_TEXT_COLUMNS, self._columns - indent)
        return textwrap.wrap(text, columns, break_on_hyphens=False) or [""]

    def _print(self, label: str, lines: list[str], level: str = "", head: str = "", *, is_bold: bool = False) -> None:
        style = STYLES.get(level, {})
        for index, line in enumerate(lines):
            name, start = (label, head) if index == 0 else ("", " " * len(head))
            named = Styled(name.ljust(LABEL_COLUMNS), {} if head else style)
            terminal.echo(named, Styled(start, style), Styled(line, BOLD if is_bold else {}), err=self._err)
