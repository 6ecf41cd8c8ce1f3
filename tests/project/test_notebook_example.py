"""The notebook of the examples runs, and its cells show what they promise."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples/notebook/tokens.ipynb"


def outputs(cell: Any, kind: str) -> str:
    """What a cell shows in one of the types of its outputs."""
    return "\n".join(output.get("data", {}).get(kind, "") for output in cell.outputs)


@pytest.mark.filterwarnings("ignore")
def test_the_notebook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nbconvert executes it: progress, result, store and statistics are readable, and nothing is on stderr."""
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    preprocessors = pytest.importorskip("nbconvert.preprocessors", reason="nbconvert is not installed")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    book = nbformat.read(NOTEBOOK, as_version=4)
    preprocessors.ExecutePreprocessor(timeout=120, kernel_name="python3").preprocess(book, {})
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(output.get("name") == "stderr" for cell in cells for output in cell.outputs)
    prepared, store, documents, statistics = cells[2:]
    assert "sources " in "".join(output.get("text", "") for output in prepared.outputs)
    assert "2,000" in outputs(prepared, "text/html")
    assert "token_count" in outputs(store, "text/html")
    assert outputs(documents, "text/plain").count("Document 0 speaks of mills") == 2
    assert "tokens" in outputs(statistics, "text/html")
