"""A directory is removed while other processes write to it, or remove it, too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tokenmill.errors import StoreError
from tokenmill.storage import folder_at
from tokenmill.storage.local import disk


@pytest.mark.parametrize("writes", [0, 1, 5])
def test_a_file_that_appears_meanwhile_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: int
) -> None:
    """A rank that ends an export removes the sorted runs while another one writes its last run."""
    left = [*range(writes)]
    ordinary = shutil.rmtree

    def remove(path: str) -> None:
        ordinary(path)
        if left:
            Path(path).mkdir()
            Path(path, str(left.pop())).write_text("a run")
            Path(path).rmdir()  # OSError: Directory not empty

    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(shutil, "rmtree", remove)
    folder_at(str(tmp_path)).remove("runs")
    assert not left
    assert not (tmp_path / "runs").exists()


def test_a_directory_that_another_process_removes_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that vanishes while the directory is removed does not end the removal."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "0").write_text("a run")
    ordinary, calls = shutil.rmtree, []

    def remove(path: str) -> None:
        calls.append(path)
        if len(calls) == 1:
            raise FileNotFoundError(2, "No such file or directory", "0")
        ordinary(path)

    monkeypatch.setattr(shutil, "rmtree", remove)
    folder_at(str(tmp_path)).remove("runs")
    assert not (tmp_path / "runs").exists()


def test_a_directory_that_stays_full_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of the system is shown in the end, and an error of another kind at once."""
    calls = []

    def refuse(path: str) -> None:
        calls.append(path)
        raise OSError(39 if len(calls) <= disk.REMOVAL_TRIES else 13, "refused")

    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(StoreError, match="cannot write"):
        folder_at(str(tmp_path)).remove("runs")
    assert len(calls) == disk.REMOVAL_TRIES
    with pytest.raises(StoreError, match="cannot write"):
        folder_at(str(tmp_path)).remove("runs")
    assert len(calls) == disk.REMOVAL_TRIES + 1
    folder_at(str(tmp_path)).remove("nothing")
