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
from tokenmill.executors import progress_bar
from tokenmill.executors.progress import NotebookLines, Step


def as_in_shell(monkeypatch: pytest.MonkeyPatch, shell: object) -> None:
    """Make this process look like one of IPython, which is no dependency, with this shell."""
    ipython = types.ModuleType("IPython")
    monkeypatch.setattr(ipython, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ipython)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that looks like a kernel and shows every state of a line."""
    as_in_shell(monkeypatch, types.SimpleNamespace(kernel=object()))
    monkeypatch.setattr(NotebookLines, "seconds", 0.0)


def shown(printed: str) -> list[str]:
    """The lines that a cell shows in the end: a carriage return replaces the line."""
    return [line.rpartition("\r")[2].rstrip() for line in printed.removesuffix("\r").split("\n")]


@pytest.mark.parametrize("shell", [None, types.SimpleNamespace()])
def test_a_terminal_is_no_notebook(shell: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python that has imported IPython, and IPython in a terminal, are no kernels."""
    as_in_shell(monkeypatch, shell)
    assert not isinstance(progress_bar.for_python(), NotebookLines)


@pytest.mark.usefixtures("kernel")
def test_messages_stay_and_progress_is_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    """Messages stay. The line about progress is below them and is gone in the end. Options are named as in Python."""
    with progress_bar.for_python() as reporter:
        reporter.pending("reading a long name")
        reporter.pending("reading b")
        reporter.say("skip it with --on-bad quarantine")
        reporter.begin("tokenize", 100, 20, 2)
        reporter.advance(30, Step(text_bytes=10**6, tokens=10**5))
        middle = capsys.readouterr().out
        reporter.say("done")
    assert [line.partition(",")[0] for line in shown(middle)] == ['skip it with on_bad="quarantine"', "tokenize: 50.0%"]
    assert "reading b" in middle
    assert shown(capsys.readouterr().out) == ["done", ""]


@pytest.mark.usefixtures("kernel")
def test_names_have_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """A file name cannot move the cursor."""
    with progress_bar.for_python() as reporter:
        reporter.pending("a\rb\x1b[2J")
        reporter.say("c\rd\x1b[2J")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "a\\rb" in printed


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
        ["stream"],
        ["execute_result"],
        ["execute_result"],
    ]
    assert outputs[1][0]["name"] == "stdout"
    assert "sources      1 file" in outputs[1][0]["text"]
    assert "PrepareResult" in outputs[2][0]["data"]["text/html"]
    assert f"{len(documents)} documents" in outputs[3][0]["data"]["text/plain"]
