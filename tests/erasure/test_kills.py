"""An erasure ends at every write: a kill, as far as a process can kill itself and go on."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support.erasing import contents, erase_rows, make_store
from tokenmill.erasure import erase
from tokenmill.errors import IncompleteStore
from tokenmill.storage.local.disk import DiskFolder
from tokenmill.store.reader import Store

WRITES = ("publish", "publish_if_absent", "discard")
SECRETS = (17, 41)


class At(datetime):
    """A clock that stands still: claims of two runs are equal."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        """One moment."""
        return datetime(2026, 1, 1, tzinfo=tz or UTC)


def end_at(patch: pytest.MonkeyPatch, number: int, *, after: bool) -> None:
    """End the process before or after its write of this number, from 0."""
    writes = itertools.count()

    def wrapped(name: str) -> Any:
        original = getattr(DiskFolder, name)

        def write(*arguments: Any, **options: Any) -> Any:
            is_last = next(writes) == number
            if is_last and not after:
                raise KeyboardInterrupt
            result = original(*arguments, **options)
            if is_last:
                raise KeyboardInterrupt
            return result

        return write

    publish = DiskFolder.publish

    @contextmanager
    def block(*arguments: Any, **options: Any) -> Iterator[Any]:
        is_last = next(writes) == number
        if is_last and not after:
            raise KeyboardInterrupt
        with publish(*arguments, **options) as file:
            yield file
        if is_last:
            raise KeyboardInterrupt

    for name in WRITES:
        patch.setattr(DiskFolder, name, block if name == "publish" else wrapped(name))


@pytest.mark.parametrize("after", [False, True])
def test_an_erasure_that_ends_at_any_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """Readers find the store of before or of afterwards, or refuse. The same command leaves the bytes of one run."""
    monkeypatch.setattr(erase, "datetime", At)
    original = make_store(tmp_path, "original", keep="url")
    tokenmill.export(original, to="llmc", workers=1)
    versions = [[tokens.copy() for tokens in Store(original)]]
    expected = tmp_path / "expected"
    shutil.copytree(original, expected)
    erase_rows(str(expected), *SECRETS, request="r")
    versions.append([tokens.copy() for tokens in Store(str(expected))])
    states = set()
    for number in itertools.count():
        out = tmp_path / "out"
        shutil.copytree(original, out)
        with monkeypatch.context() as patch:
            end_at(patch, number, after=after)
            try:
                erase_rows(str(out), *SECRETS, request="r")
                break
            except KeyboardInterrupt:
                pass
        states.add(_state(str(out), versions))
        erase_rows(str(out), *SECRETS, request="r")
        assert _compared(out) == _compared(expected)
        shutil.rmtree(out)
    assert number > 10
    assert states == {"before", "refused", "afterwards"}


def _state(out: str, versions: list[list[np.ndarray]]) -> str:
    """What readers find."""
    try:
        store = Store(out)
    except IncompleteStore as error:
        return "refused" if f"tokenmill erase {out} --request r" in str(error) else str(error)
    equal = [all(map(np.array_equal, store, documents)) for documents in versions]
    assert any(equal)
    return "afterwards" if equal[1] else "before"


def _compared(out: Path) -> dict[str, bytes]:
    """The files of a store that are the same in every run."""
    root = str(out).encode()
    skipped = ("log.jsonl", ".lock", "exports/", "drivers/")
    files = {name: data.replace(root, b"") for name, data in contents(out).items() if not name.startswith(skipped)}
    return {name: data for name, data in files.items() if not name.endswith("export.json")}


def test_new_files_are_durable_before_old_ones_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut loses names that are not synced: directories are synced before removals, and before .done."""
    out = make_store(tmp_path, keep="url")
    calls: list[tuple[str, str]] = []
    for name in (*WRITES, "sync_directory"):
        monkeypatch.setattr(DiskFolder, name, _recorded(name, calls))
    erase_rows(out, *SECRETS, request="r")
    for directory in ("parts", "kept"):
        made = [at for at, (name, file) in enumerate(calls) if name == "publish" and file.startswith(f"{directory}/")]
        gone = [at for at, (name, file) in enumerate(calls) if name == "discard" and file.startswith(f"{directory}/")]
        synced = [at for at, call in enumerate(calls) if call == ("sync_directory", directory)]
        done = calls.index(("publish_if_absent", "changes/00000001.done"))
        assert len(made) == len(gone) == 2
        assert [at for at in synced if max(made) < at < min(gone)]
        assert [at for at in synced if max(gone) < at < done]
    claim = calls.index(("publish_if_absent", "changes/00000001.json"))
    tables = [at for at, (name, file) in enumerate(calls) if name == "publish" and ".parquet" in file and "/" in file]
    tables = [at for at in tables if calls[at][1].startswith("changes/")]
    assert len(tables) == 2
    assert max(tables) < claim < min(at for at, (_, file) in enumerate(calls) if file.startswith("parts/"))
    tokenmill.verify(out, workers=1)


def _recorded(name: str, calls: list[tuple[str, str]]) -> Any:
    """A method of a folder that takes note of its calls."""
    original = getattr(DiskFolder, name)

    def method(folder: Any, file: str, *arguments: Any, **options: Any) -> Any:
        calls.append((name, file))
        return original(folder, file, *arguments, **options)

    return method
