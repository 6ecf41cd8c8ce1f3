"""Progress in a notebook: with a stand-in for IPython, and in a real kernel without ipywidgets."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.corpora import SMALL_JSON
from tokenmill.executors import notebook, progress_bar
from tokenmill.executors.progress import Step


class Front:
    """Stands for IPython and the browser: keeps each state of each output."""

    def __init__(self) -> None:
        self.outputs: list[list[dict[str, str]]] = []

    def display(self, content: dict[str, str], *, raw: bool, display_id: bool) -> Front:
        """Add an output."""
        assert raw
        assert display_id
        self.outputs.append([content])
        return self

    def update(self, content: dict[str, str], *, raw: bool) -> None:
        """Replace the content of the last output."""
        assert raw
        self.outputs[-1].append(content)


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Front:
    """A process that looks like a kernel. IPython is no dependency, so a stand-in has its two functions."""
    front, ipython, display = Front(), types.ModuleType("IPython"), types.ModuleType("IPython.display")
    monkeypatch.setattr(ipython, "get_ipython", lambda: types.SimpleNamespace(kernel=object()), raising=False)
    monkeypatch.setattr(display, "display", front.display, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(notebook, "UPDATE_SECONDS", 0.0)
    return front


def test_a_kernel_gets_the_progress_of_notebooks(front: Front) -> None:
    """In a kernel, a call shows its progress in the cell, and nothing before there is something to show."""
    with progress_bar.for_python() as reporter:
        assert isinstance(reporter, notebook.NotebookProgress)
    assert front.outputs == []


@pytest.mark.parametrize("shell", [None, types.SimpleNamespace()])
def test_a_terminal_is_no_notebook(front: Front, shell: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python that has imported IPython, and IPython in a terminal, are no kernels."""
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: shell)
    assert not isinstance(progress_bar.for_python(), notebook.NotebookProgress)


def test_one_output_has_lines_and_a_bar(front: Front) -> None:
    """Lines stay, a pending line is replaced, the bar moves, and a step that is done becomes a line."""
    with progress_bar.for_python() as reporter:
        reporter.pending("reading a")
        reporter.pending("reading b")
        reporter.say("found 2 files")
        reporter.begin("tokenize", 100, 20, 2)
        reporter.advance(30, Step(text_bytes=10**6, tokens=10**5, deaths=1))
        middle = front.outputs[0][-1]
        reporter.advance(50, Step(text_bytes=10**7, tokens=10**6, deaths=1))
        reporter.say("export")
        reporter.begin("write", 10, 0, 1)
    (states,) = front.outputs
    assert "reading a" in states[0]["text/plain"]
    assert states[1]["text/plain"] == "reading b"
    assert '<progress max="1" value="0.5000"></progress> tokenize  50 %' in middle["text/html"]
    assert "reading" not in middle["text/html"]
    assert "2 workers  1 died" in middle["text/plain"]
    assert [line.split("  ")[:2] for line in states[-1]["text/plain"].splitlines()] == [
        ["found 2 files"],
        ["tokenize", "100 %"],
        ["export"],
        ["write", "0 %"],
    ]
    assert "<progress" not in states[-1]["text/html"]
    assert "left" not in states[-1]["text/plain"]


def test_names_are_no_markup(front: Front) -> None:
    """A file name or a title cannot put markup or control characters into the page."""
    name = "<script>\x1b[2J"
    with progress_bar.for_python() as reporter:
        reporter.pending(name)
        reporter.say(name)
        reporter.begin(name, 10, 0, 1)
        reporter.advance(1, Step(workers_text=name))
    for state in front.outputs[0]:
        assert "<script>" not in state["text/html"]
        assert "\x1b" not in state["text/html"] + state["text/plain"]


def test_many_updates_are_few_messages(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar that moves often is shown now and then; the last state is always shown."""
    monkeypatch.setattr(notebook, "UPDATE_SECONDS", 60.0)
    with progress_bar.for_python() as reporter:
        reporter.begin("tokenize", 1000, 0, 1)
        for _ in range(1000):
            reporter.advance(1, Step())
    assert len(front.outputs[0]) == 2
    assert "tokenize  100 %" in front.outputs[0][-1]["text/plain"]


def test_old_lines_are_counted(front: Front) -> None:
    """The output does not grow without end."""
    with progress_bar.for_python() as reporter:
        for number in range(notebook.MAX_LINES + 5):
            reporter.say(f"line {number}")
    lines = front.outputs[0][-1]["text/plain"].splitlines()
    assert lines[:2] == ["... 5 earlier lines", "line 5"]
    assert len(lines) == notebook.MAX_LINES + 1


RUN = """
import json, sys
import nbclient, nbformat
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
cells = json.load(open(sys.argv[1]))
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
kernel = AsyncKernelManager()
kernel._kernel_spec = KernelSpec(argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"])
nbclient.NotebookClient(book, km=kernel, timeout=120).execute()
print(json.dumps([cell.outputs for cell in book.cells]))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_in_a_real_kernel(tmp_path: Path, documents: list[str]) -> None:
    """A cell that prepares has one output, updated in place; without ipywidgets there is no warning."""
    uv = shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not on PATH")
    python = str(tmp_path / "venv/bin/python")
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, "ipykernel", "nbclient"], check=True)
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    cells = [
        "import importlib.util, tokenmill\nassert importlib.util.find_spec('ipywidgets') is None",
        f"result = tokenmill.prepare('corpus.jsonl', tokenizer={SMALL_JSON!r}, out='tokens', workers=1)",
        "result",
        "tokenmill.open('tokens')",
    ]
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    paths = [str(ROOT / "src"), sysconfig.get_paths()["purelib"]]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "HOME": str(tmp_path)}
    command = [python, "-c", RUN, "cells.json"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    outputs: list[list[dict[str, Any]]] = json.loads(ended.stdout)
    assert [[output["output_type"] for output in cell] for cell in outputs] == [
        [],
        ["display_data"],
        ["execute_result"],
        ["execute_result"],
    ]
    shown = outputs[1][0]["data"]
    assert "100 %" in shown["text/plain"]
    assert shown["text/html"].startswith("<pre")
    assert "PrepareResult" in outputs[2][0]["data"]["text/html"]
    assert f"{len(documents)} documents" in outputs[3][0]["data"]["text/plain"]
