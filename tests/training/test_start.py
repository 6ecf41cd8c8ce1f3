"""The first batch of a store with very many parts: little time, little memory, and nothing written."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.loader_contenders import in_a_fresh_process
from benchmarks.loader_start import make_wide_store


def files(directory: Path) -> list[tuple[str, int]]:
    """The names and sizes of all files."""
    return sorted((str(path), path.stat().st_size) for path in directory.rglob("*") if path.is_file())


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("parts", "cpu_seconds"),
    [(110_000, 1.5), pytest.param(1_100_000, 3.0, marks=[pytest.mark.slow, pytest.mark.timeout(300)])],
)
def test_the_first_batch_takes_little(tmp_path: Path, parts: int, cpu_seconds: float) -> None:
    """A million parts are 15 trillion tokens. The bounds are loose, because the machine may be busy."""
    make_wide_store(str(tmp_path), parts, 8)
    before = files(tmp_path)
    figures = in_a_fresh_process("tokenmill", str(tmp_path), 8)
    assert figures["cpu_seconds"] < cpu_seconds
    assert figures["bytes"] < 1e9
    assert files(tmp_path) == before
