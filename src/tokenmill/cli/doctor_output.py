"""How the doctor's results look: a short table, what is wrong, and at the end the one change to make first."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from tokenmill.humanize import duration, size
from tokenmill.system import terminal
from tokenmill.system.terminal import Styled

if TYPE_CHECKING:
    from tokenmill.doctor.causes import Finding
    from tokenmill.doctor.examining.examination import Examination
    from tokenmill.doctor.watching.command import Watched
    from tokenmill.doctor.watching.deaths import Death

LABEL, MARK = 13, 9
BOLD = {"bold": True}
WIDEST = 120
COMMAND_CHARACTERS = 200
SHOWN_DEATHS = 3
SHOWN_LEFT = 5
ASKED_FOR = ("parent", "doctor")
"""Who ends a process on purpose."""

STYLES: dict[str, dict[str, Any]] = {
    "ok": {"fg": "green"},
    "warning": {"fg": "yellow", "bold": True},
    "problem": {"fg": "red", "bold": True},
    "first": {"fg": "cyan", "bold": True},
    "died": {"fg": "red"},
}


def as_json(result: Any) -> None:
    """The result for tools."""
    terminal.echo_json(result)


def watched(seen: Watched) -> None:
    """How a command went, on stderr: its stdout is its own."""
    page = _Page(sys.stderr)
    command = textwrap.shorten(shlex.join(seen.command), COMMAND_CHARACTERS, placeholder=" ...")
    if not seen.findings and seen.exit_code == 0:
        page.line("doctor", f"{_survived(seen)}: {_processes(seen)}, {duration(seen.seconds)}", "ok")
    else:
        page.line("", "")
        page.line("doctor", f"{command}  ({_end(seen)})")
        page.line("processes", _processes(seen))
    page.rows(_deaths(seen))
    _left_behind(page, seen)
    page.findings(seen.findings)


def examined(found: Examination) -> None:
    """What was found out about a function."""
    page = _Page(sys.stdout)
    page.line("doctor", f"{found.target}  (num_proc={found.num_proc}, {found.start_method})")
    for check in found.checks:
        page.check(check.name, check.level, check.seen)
    if not found.findings:
        page.line("", "")
        page.line("well", "nothing is known that would kill it", "ok")
    page.findings(found.findings)


def _survived(seen: Watched) -> str:
    """How it went with a command that ended well."""
    from tokenmill.doctor.watching.live import matters  # noqa: PLC0415 - only where a command was watched

    died = sum(matters(death) for death in seen.deaths)
    is_all = sum(seen.deaths_by_killer.values()) == len(seen.deaths)
    many = f"{'' if is_all else 'at least '}{died:,} process{'es' * (died != 1)}"
    return f"{many} died, and the command went on" if died else "nothing died"


def _processes(seen: Watched) -> str:
    many = f"{seen.processes:,} processes" if seen.processes != 1 else "1 process"
    at_once = f", {seen.most_at_once:,} at once" if seen.most_at_once != seen.processes else ""
    held = f", {size(seen.peak_bytes)} at most{' together' * (seen.processes > 1)}" if seen.peak_bytes else ""
    return f"{many}{at_once}{held}"


def _end(seen: Watched) -> str:
    how = f"exit code {seen.exit_code}"
    if "doctor" in seen.deaths_by_killer:
        how = "stopped by the doctor"
    elif seen.interrupted:
        how = f"interrupted, {how}"
    return f"{how} after {duration(seen.seconds)}"


def _deaths(seen: Watched) -> list[tuple[str, ...]]:
    """The deaths that explain something."""
    if not seen.findings:
        return []
    telling = [death for death in seen.deaths if death.killer not in ASKED_FOR and not _is_plain_end(death)]
    rows = [("died", *_death(death)) for death in telling[:SHOWN_DEATHS]]
    counted = sum(number for killer, number in seen.deaths_by_killer.items() if killer not in ASKED_FOR)
    hidden = counted - len(rows) - any(map(_is_plain_end, seen.deaths))
    return [*rows, ("", f"... and {hidden:,} more")] if rows and hidden > 0 else rows


def _is_plain_end(death: Death) -> bool:
    """The command's own exit code is in the head line already."""
    return death.role == "command" and death.exit_code is not None


def _death(death: Death) -> Iterable[str]:
    yield f"pid {death.pid}"
    yield "the command" if death.role == "command" else f"{death.role} of {death.parent}"
    yield f"after {duration(death.seconds)}"
    yield f"peak {size(death.peak_bytes)}" if death.peak_bytes else "peak not seen"
    yield f"killed by {death.why}" if death.killer in ("kernel", "limit") else death.why


def _left_behind(page: _Page, seen: Watched) -> None:
    if seen.left_behind:
        named = [f"{left.pid} ({left.name})" for left in seen.left_behind[:SHOWN_LEFT]]
        more = len(seen.left_behind) - len(named)
        page.line("left behind", f"{', '.join(named)}{f' and {more} more' if more else ''}: still running", "warning")


def _shouted(level: str) -> str:
    return level.upper() if level == "problem" else level


class _Page:
    """Lines with a label each, folded to the width of the terminal, in colour where that is wanted."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._width = min(WIDEST, shutil.get_terminal_size((100, 24)).columns)
        self._is_coloured = file.isatty() and not os.environ.get("NO_COLOR")

    def line(self, label: str, text: str, level: str = "") -> None:
        """One label, and its text on as many lines as it needs."""
        self._put(label, self._fold(text), level)

    def check(self, label: str, level: str, text: str) -> None:
        """One thing that was looked at: what it is, whether it is well, and what was seen."""
        lines = self._fold(text, MARK)
        mark = _shouted(level).ljust(MARK)
        first: list[str | Styled] = [self._styled(mark, STYLES[level]), lines[0]]
        self._put(label, [first, *(f"{' ' * MARK}{line}" for line in lines[1:])])

    def rows(self, rows: list[tuple[str, ...]]) -> None:
        """Rows whose cells stand below each other, the last as wide as it likes."""
        for place, row in enumerate(rows):
            widths = [
                max((len(other[column]) for other in rows if len(other) > column + 1), default=0)
                for column in range(len(row))
            ]
            cells = [cell.ljust(width) for cell, width in zip(row[1:-1], widths[1:], strict=False)]
            if place == 0:
                self._put("", [""])
            self._put(row[0], self._fold("  ".join([*cells, row[-1]])), "died")

    def findings(self, findings: list[Finding]) -> None:
        """What is wrong, each with what shows it, and the first thing to change."""
        for place, found in enumerate(findings):
            self._put("", [""])
            title = [[self._styled(line, BOLD)] for line in self._fold(found.title)]
            self._put(_shouted(found.level), title, found.level)
            for shown in found.evidence:
                self._put("", [line[: max(20, self._width - LABEL)] for line in self._fold(shown)])
            if place:
                self._advise("then", found.fix)
        if findings:
            self._put("", [""])
            self._advise("first", findings[0].fix)

    def _advise(self, label: str, fix: tuple[str, ...]) -> None:
        for place, text in enumerate(fix):
            self._put("" if place else label, self._fold(text), "first")

    def _styled(self, text: str, style: dict[str, Any]) -> Styled:
        return Styled(text, style if self._is_coloured else {})

    def _fold(self, text: str, less: int = 0) -> list[str]:
        """Code, which is indented, is not folded."""
        if text.startswith(" "):
            return [text]
        return textwrap.wrap(text, max(20, self._width - LABEL - less), break_on_hyphens=False) or [""]

    def _put(self, label: str, lines: Sequence[str | Sequence[str | Styled]], level: str = "") -> None:
        shown = self._styled(label, STYLES.get(level, {}) if label else {})
        for place, line in enumerate(lines):
            spans: list[str | Styled] = [line] if isinstance(line, str) else list(line)
            if not self._is_coloured:
                spans = ["".join(span if isinstance(span, str) else span.text for span in spans).rstrip()]
            indent = " " * (LABEL - len(label) if place == 0 else LABEL)
            head = [shown, indent if spans != [""] else ""] if place == 0 else [indent if spans != [""] else ""]
            terminal.echo(*head, *spans, err=self._file is sys.stderr)
