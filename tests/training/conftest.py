"""A small store of random tokens in 20 parts, and a smaller one."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.synthetic import Shape, make_store


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of about 200,000 tokens in documents of about 60."""
    directory = str(tmp_path_factory.mktemp("loader") / "store")
    make_store(directory, 200_000, shape=Shape(10_000, 60), processes=False)
    return directory


@pytest.fixture(scope="session")
def other_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of about 30,000 other tokens."""
    directory = str(tmp_path_factory.mktemp("loader") / "other")
    make_store(directory, 30_000, shape=Shape(10_000, 90, seed=7), processes=False)
    return directory


@pytest.fixture(autouse=True)
def _no_rank_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests do not take the rank of a cluster that runs them."""
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
