"""Fixtures of the tests of exports."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.support.remote_runs import kill


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """The processes of a test; those that are left at its end are killed."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            kill(process)
