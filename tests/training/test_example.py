"""examples/pytorch and examples/jax_grain: a training that is killed and resumed has the same batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.corpora import SMALL_TIKTOKEN


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_training_has_the_batches_of_an_undisturbed_one(tmp_path: Path) -> None:
    """Two processes are killed, then one, and three end the training: every batch is that of the undisturbed one."""
    pytest.importorskip("torch", reason="torch is not installed")
    shown = run_example("pytorch", tmp_path)
    assert "killed after step 9, with 2 processes" in shown
    assert "killed after step 17, with 1 process" in shown
    assert "24 steps: all batches equal" in shown


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_training_in_jax_goes_on(tmp_path: Path) -> None:
    """A training in JAX, fed by Grain, is killed twice: batches and losses are those of the undisturbed one."""
    pytest.importorskip("jax", reason="jax is not installed")
    pytest.importorskip("grain", reason="grain is not installed")
    shown = run_example("jax_grain", tmp_path)
    assert "killed after step 17" in shown
    assert "24 steps: all batches and losses equal" in shown


def run_example(name: str, directory: Path) -> str:
    """Run the script of an example with a small vocabulary; what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(ROOT / "examples" / name / "run.sh"), str(directory), SMALL_TIKTOKEN, "--eot", "1199"]
    ended = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=800, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout
