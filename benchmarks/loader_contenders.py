"""The contenders of `benchmarks.loader` as processes: each in this environment, or in one of its own made by uv."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import NotInstalled, make

WORKER = Path(__file__).with_name("loader_worker.py")
OWN: tuple[str, ...] = (
    "click",
    "msgspec",
    "huggingface_hub",
    "obstore",
    "pyarrow",
    "rich",
    "tiktoken",
    "tokenizers",
    "xxhash",
)
OWN += ("gigatoken",)

# The packages of a contender that has an environment of its own.
PACKAGES: dict[str, tuple[str, ...]] = {
    "get_batch": ("torch", "numpy"),
    "tokenmill, torch": ("torch", "numpy", *OWN),
    "tokenmill, grain": ("grain", "numpy", *OWN),
    "grain": ("grain", "numpy", *OWN),
    "litdata": ("litdata", "torch", "numpy"),
    "mds": ("mosaicml-streaming", "torch", "numpy"),
    "lance": ("pylance", "pyarrow", "numpy"),
    "olmo-core": ("ai2-olmo-core", "torch", "numpy"),
    "megatron-core": ("megatron-core", "torch", "numpy", "pybind11"),
}
FORMATS = dict.fromkeys(("memmap", "get_batch", "windows only"), "nanogpt")
FORMATS |= {"grain": "nanogpt", "lance": "nanogpt", "litdata": "litdata", "mds": "mds"}
FORMATS |= {"olmo-core": "olmo", "megatron-core": "megatron"}


class WorkerFailed(Exception):
    """A contender ended; the last line that it printed says why."""


class Worker:
    """A process of `loader_worker.py` that has read its first batch. `first` has the figures of that."""

    def __init__(self, python: str, name: str, store: str, rows: int) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            [python, str(WORKER), name, store, str(rows)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.first: dict[str, float] = self._answer()

    def read(self, seconds: float) -> float:
        """Read batches for some seconds; the tokens a second."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return float(self._answer())

    def close(self) -> None:
        """End the process."""
        with self._process, self._errors:
            self._process.kill()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line:
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines()
        self.close()
        raise WorkerFailed(lines[-1][:200] if lines else "it ended without a message")


def in_a_fresh_process(name: str, store: str, rows: int) -> dict[str, float]:
    """The figures of the first batch of a contender that needs no other environment."""
    worker = Worker(sys.executable, name, store, rows)
    worker.close()
    return worker.first


def start(name: str, store: str, rows: int, environments: Path, uv_options: list[str]) -> Worker | str:
    """Start a contender, in an environment of its own if it needs other packages; or why it cannot be measured."""
    try:
        python = sys.executable
        if name in PACKAGES:
            python = str(make(environments, PACKAGES[name], uv_options).programs / "python")
        return Worker(python, name, store, rows)
    except (NotInstalled, WorkerFailed) as error:
        return f"{type(error).__name__}: {error}"


def race(workers: dict[str, Worker], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Tokens per second of each contender in each round, in turn. The first round is not counted."""
    speeds: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(rounds + 1):
        for name, worker in workers.items():
            speed = worker.read(seconds)
            if number:
                speeds[name].append(speed)
    return speeds


def default_environments() -> str:
    """Where environments are kept."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(cache, "tokenmill", "loader-peers")
