"""The screens of docs/screens.md are those that the commands show, and fit their terminals."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import shlex
import struct
import sys
import termios
import threading

import pytest

from scripts import write_screens
from tests.support import command
from tokenmill.cli import cli


def on_terminal(line: str, directory: str, width: int) -> str:
    """What a command shows on a terminal of this width, as `write_screens.run`, but in this process."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    written = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):  # EIO at the end
            while chunk := os.read(ours, 1 << 16):
                written.extend(chunk)

    removed: dict[str, str | None] = dict.fromkeys(
        name for name in os.environ if name.startswith(write_screens.NOT_SET)
    )
    terminal = {"TERM": "dumb", "COLUMNS": str(width), "LINES": "50"}
    hub = {"HF_HUB_OFFLINE": "1", "HF_HOME": f"{directory}/hub"}
    reader = threading.Thread(target=read)
    reader.start()
    with (
        contextlib.chdir(directory),
        open(theirs, "wb", buffering=0) as stream,
        command._redirected(command.STDOUT, stream),
        command._redirected(command.STDERR, stream),
        command._as_in_a_process(shlex.split(line)[1:], {**removed, **terminal, **hub}),
    ):
        command._exit_code()
        sys.stdout.flush()
        sys.stderr.flush()
    reader.join()
    os.close(ours)
    return write_screens.shown(written.decode()).replace(directory, write_screens.DIRECTORY)


@pytest.mark.parametrize("width", [80, pytest.param(120, marks=pytest.mark.slow)])
def test_the_page_shows_the_screens_of_today(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command, run on a terminal of this width, shows what the page has, except figures of the machine."""
    in_a_process, of_processes = write_screens.run, [write_screens.SCREENS[name] for name in ("prepare", "doctor")]

    def run(line: str, directory: str, width: int) -> str:
        if line not in of_processes:
            return on_terminal(line, directory, width)
        of_processes.remove(line)
        return in_a_process(line, directory, width)

    monkeypatch.setattr(write_screens, "run", run)
    assert list(write_screens.compare(dict(write_screens.all_screens(width)), width)) == []


@pytest.mark.parametrize("width", write_screens.WIDTHS)
def test_screens_fit_their_terminal(width: int) -> None:
    """No line is longer than the terminal, so no word is broken, and no finished step shows a remaining time."""
    screens = write_screens.read_page(width)
    assert set(screens) == set(write_screens.SCREENS)
    for name, screen in screens.items():
        command, _, shown = screen.partition("\n")
        assert command == f"$ {write_screens.SCREENS[name]}"
        assert [line for line in shown.splitlines() if len(line) > width] == []
        assert not re.search(r" left\b(?! over)|\b0 tok/s|\b0\.0 MB/s|left out", shown)
        assert "\n\n\n" not in shown


def test_the_page_has_every_command() -> None:
    """There is a screen of each command."""
    assert {command.split()[1] for command in write_screens.SCREENS.values()} == set(cli.commands)


def test_figures_of_a_machine_make_no_difference() -> None:
    """Times, speeds and bars are not compared; counts and words are."""
    one = "tokenize \u2501\u2501\u2501 100 % 144k tok/s  0.3 MB/s  in 2.3 s 1 worker\ntook         4.6 s (1 of 1 unit)"
    two = "tokenize \u2501\u2501\u2501\u2501\u2501\u2501 100 % 1.21M tok/s 1 worker\ntook         12 min (1 of 1 unit)"
    assert write_screens.normal_form(one) == write_screens.normal_form(two) == "tokenize\ntook # (1 of 1 unit)"
    assert write_screens.normal_form("tokens       5") != write_screens.normal_form("tokens       6")
