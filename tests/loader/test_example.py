"""examples/pytorch: a training that is killed and resumed with other numbers of processes has the same batches."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.corpora import SMALL_TIKTOKEN

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_killed_training_has_the_batches_of_an_undisturbed_one(tmp_path: Path) -> None:
    """Two processes are killed, then one, and three end the training: every batch is that of the undisturbed one."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", str(ROOT / "examples/pytorch/run.sh"), str(tmp_path), SMALL_TIKTOKEN, "--eot", "1199"]
    ended = subprocess.run(
        command, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=800, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "killed after step 9, with 2 processes" in ended.stdout
    assert "killed after step 17, with 1 process" in ended.stdout
    assert "24 steps: all batches equal" in ended.stdout
