"""The files of examples/slurm and examples/kubernetes: under a real Slurm if there is one, else what they rely on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support import ROOT
from tests.support.corpora import SMALL_JSON
from tests.support.killing import part_files, wait_until, write_corpus
from tests.support.remote_runs import differences, local_files, tokenmill
from tests.support.servers.slurm import missing_packages, start_slurm

PREPARE = ROOT / "examples" / "slurm" / "prepare.sbatch"
UNITS = 80


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files of made-up text, of 80 units."""
    return write_corpus(tmp_path_factory.mktemp("slurm") / "corpus", documents=10 * UNITS, rows_per_group=10)


def words(corpus: Path, out: Path) -> list[str]:
    """What is said to `prepare`: the slowest engine, so that something is running when it is to be killed."""
    options = ["--tokenizer", SMALL_JSON, "--engine", "tokenizers", "--unit-bytes", "1", "--quiet"]
    return [str(corpus), *options, "--out", str(out)]


@pytest.fixture(scope="module")
def reference(corpus: Path) -> dict[str, bytes]:
    """The store that one process makes of it."""
    out = corpus.parent / "alone"
    assert tokenmill("prepare", *words(corpus, out)).code == 0
    return local_files(out)


@pytest.mark.slow
@pytest.mark.skipif(bool(missing_packages()), reason=f"Slurm is not installed: {', '.join(missing_packages())}")
def test_an_array_of_which_one_task_is_killed_and_requeued(
    corpus: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """Under a real Slurm every task ends well, and the store is that of a run without it."""
    short = Path(tempfile.mkdtemp(prefix="mill"))  # sockets have short names
    cluster, out = start_slurm(short, cpus=2), tmp_path / "store"
    try:
        resources = ("--array=1-2", "--cpus-per-task=1", "--mem=1000", f"--chdir={tmp_path}")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        job = cluster.submit(*resources, str(PREPARE), *words(corpus, out), PATH=path)
        assert wait_until(lambda: len(part_files(out)) >= UNITS // 8)
        for pid in cluster.processes(SLURM_ARRAY_TASK_ID="2"):
            with suppress(ProcessLookupError):  # a worker ends with its parent
                os.kill(pid, signal.SIGKILL)
        there = len(part_files(out))
        assert wait_until(lambda: any(each.task == 2 and each.ended for each in cluster.jobs(job)))
        assert cluster.say("scontrol", "requeue", f"{job}_2").returncode == 0
        assert wait_until(lambda: all(each.ended for each in cluster.jobs(job)))
        ended = {each.task: (each.state, each.exit_code, each.restarts) for each in cluster.jobs(job)}
    finally:
        cluster.stop()
        shutil.rmtree(short)
    said = "".join(log.read_text() for log in tmp_path.glob("tokenmill-*.log"))
    assert ended == {1: ("COMPLETED", 0, 0), 2: ("COMPLETED", 0, 1)}, said
    assert there < UNITS
    assert differences(local_files(out), reference) == []


def script(tmp_path: Path, mill: str, restarts: int = 0) -> subprocess.Popen[bytes]:
    """Start prepare.sbatch as Slurm would, with a `tokenmill` that ends as asked; `scontrol` writes what it is told."""
    for name, body in (("tokenmill", mill), ("scontrol", f'echo "$@" >> {tmp_path}/told')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "7",
        "SLURM_RESTART_COUNT": str(restarts),
    }
    return subprocess.Popen(["bash", PREPARE], env=environment, stderr=subprocess.DEVNULL)


def told(tmp_path: Path) -> str:
    """What `scontrol` was told."""
    return (tmp_path / "told").read_text().strip() if (tmp_path / "told").exists() else ""


@pytest.mark.parametrize(
    ("mill", "restarts", "code", "wanted"),
    [
        ("exit 0", 0, 0, ""),
        ("exit 1", 0, 1, ""),
        ("exit 2", 0, 2, ""),
        ("exit 130", 0, 130, ""),
        ("kill -KILL $$", 0, 137, "requeue 7"),
        ("kill -SEGV $$", 19, 139, "requeue 7"),
        ("kill -KILL $$", 20, 137, ""),
    ],
)
def test_the_script_requeues_what_was_killed(tmp_path: Path, mill: str, restarts: int, code: int, wanted: str) -> None:
    """It asks to be run again after a kill, but not for ever, nor after a failure or an interruption."""
    assert script(tmp_path, mill, restarts).wait(30) == code
    assert told(tmp_path) == wanted


def test_the_script_asks_for_more_time(tmp_path: Path) -> None:
    """USR1 before the time is up: tokenmill is stopped in good order, and the task requeued."""
    running = script(tmp_path, f"trap 'exit 130' TERM; touch {tmp_path}/begun; while :; do sleep 0.05; done")
    assert wait_until((tmp_path / "begun").exists)
    running.send_signal(signal.SIGUSR1)
    assert running.wait(30) == 130
    assert told(tmp_path) == "requeue 7"


def test_the_kubernetes_job_counts_its_pods_once(corpus: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    """What the manifest says, each pod with its index at the same time, makes one complete store."""
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load((ROOT / "examples" / "kubernetes" / "job.yaml").read_text())["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    arguments = container["args"]
    assert spec["completionMode"] == "Indexed"
    assert arguments[arguments.index("--of") + 1] == str(spec["completions"])
    assert arguments[0] == "prepare"
    command = [sys.executable, "-m", *container["command"], "prepare", *words(corpus, tmp_path / "store"), "--of", "3"]
    started = time.monotonic()
    pods = [
        subprocess.Popen(command, env={**os.environ, "JOB_COMPLETION_INDEX": str(index)}, stdout=subprocess.DEVNULL)
        for index in range(3)
    ]
    assert [pod.wait(max(1.0, started + 60 - time.monotonic())) for pod in pods] == [0, 0, 0]
    assert differences(local_files(tmp_path / "store"), reference) == []
