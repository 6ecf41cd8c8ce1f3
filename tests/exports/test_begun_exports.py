"""Exports that were killed, and then begun again with other options, or by two processes at a time, are never mixed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.export_harm import error_of, tree
from tests.support.killing import wait_until
from tokenmill import errors
from tokenmill.executors.local import LocalExecutor
from tokenmill.exports import PRELOAD

pytestmark = pytest.mark.timeout(300)
STATE = ".tokenmill"
OPTIONS = {"--to": "parquet", "--shuffle": "1", "--val": "0.2", "--shard-tokens": "300", "--workers": "1"}
CHANGES = [{"--shuffle": "2"}, {"--val": "none"}, {"--to": "olmo"}, {"--shard-tokens": "700"}]
MOMENTS = {
    "frozen": lambda out: (out / STATE / "export.json").exists(),
    "planned": lambda out: (out / STATE / "plan.parquet").exists(),
    "some shards": lambda out: len(list(out.glob(f"{STATE}/shards/*.arrow"))) > 3,
    "complete": lambda out: (out / STATE / "manifest.parquet").exists(),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of some hundred documents."""
    directory = tmp_path_factory.mktemp("store")
    texts = [f"document {row} " + "says little " * (row % 13) for row in range(400)]
    source = write_parquet(directory / "a.parquet", texts, row_group_size=50)
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(directory / "store"), unit_bytes=1, workers=1)
    return str(directory / "store")


def command(store: str, out: Path, **changes: str) -> list[str]:
    """The command of an export."""
    words = [word for option in {**OPTIONS, **changes}.items() for word in option]
    return [sys.executable, "-m", "tokenmill", "export", store, *words, "--out", str(out)]


def run(store: str, out: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run an export to its end."""
    return subprocess.run(command(store, out, **changes), capture_output=True, text=True, check=False, timeout=120)


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalExecutor]:
    """Workers for the exports that run in this process."""
    with LocalExecutor(PRELOAD) as executor:
        yield executor


def export(store: str, out: Path, pool: LocalExecutor, **changes: str) -> None:
    """The same export in this process."""
    options = {name.strip("-").replace("-", "_"): value for name, value in {**OPTIONS, **changes}.items()}
    given: dict[str, Any] = {**options, **{name: int(options[name]) for name in ("shuffle", "workers")}}
    tokenmill.export(store, out=str(out), executor=pool, **given)


@pytest.fixture(scope="module")
def whole(store: str, pool: LocalExecutor, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of the undisturbed export, and of each with other options, by the option that differs."""
    directory = tmp_path_factory.mktemp("whole")
    found = {}
    for number, changes in enumerate([{}, *CHANGES]):
        export(store, directory / str(number), pool, **changes)
        found[next(iter(changes), "")] = tree(directory / str(number))
    return found


@pytest.mark.parametrize(
    ("moment", "changes"),
    [*((moment, CHANGES[place]) for place, moment in enumerate(MOMENTS)), *(("some shards", each) for each in CHANGES)],
)
def test_other_options_after_a_kill_are_refused_or_begin_anew(
    store: str, tmp_path: Path, whole: dict[str, dict[str, bytes]], changes: dict[str, str], moment: str
) -> None:
    """Killed at some moment, then run with other options: refused with what differs, or exactly the new export."""
    out, option = tmp_path / "out", next(iter(changes))
    process = subprocess.Popen(command(store, out), stderr=subprocess.DEVNULL, start_new_session=True)
    assert wait_until(lambda: MOMENTS[moment](out))
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    ended = run(store, out, **changes)
    if ended.returncode == 0:
        assert moment == "frozen"
        assert tree(out) == whole[option]
        assert tokenmill.verify(str(out), workers=1).notices == []
        return
    assert ended.returncode == errors.FAILED, ended.stderr
    assert f"another {option}" in ended.stderr or f"{option} " in ended.stderr
    assert run(store, out).returncode == 0
    assert tree(out) == whole[""]
    tokenmill.verify(str(out), workers=1)


@pytest.mark.parametrize("lost", [["plan.parquet"], ["plan.parquet", "manifest.parquet"], ["export.json"]])
@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: next(iter(changes)))
def test_other_options_where_state_was_lost(
    store: str,
    tmp_path: Path,
    pool: LocalExecutor,
    whole: dict[str, dict[str, bytes]],
    changes: dict[str, str],
    lost: list[str],
) -> None:
    """An export whose plan or job was lost does not give way to one with other options."""
    out = tmp_path / "out"
    export(store, out, pool)
    for name in lost:
        (out / STATE / name).unlink()
    error = error_of(lambda: export(store, out, pool, **changes))
    assert error is not None
    assert error.exit_code in (errors.FAILED, errors.CORRUPT), str(error)
    assert tree(out) == whole[""]
    if lost == ["export.json"]:
        shutil.rmtree(out)
    export(store, out, pool)
    assert tree(out) == whole[""]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: next(iter(changes)))
def test_two_exports_at_the_same_time(
    store: str, tmp_path: Path, whole: dict[str, dict[str, bytes]], changes: dict[str, str]
) -> None:
    """Of two exports into one directory with different options one wins; the other is refused, and writes nothing."""
    out, option = tmp_path / "out", next(iter(changes))
    commands = {"": command(store, out), option: command(store, out, **changes)}
    running = {
        name: subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for name, words in commands.items()
    }
    messages = {name: process.communicate(timeout=120)[1] for name, process in running.items()}
    codes = {name: process.returncode for name, process in running.items()}
    (winner,) = [name for name, code in codes.items() if code == 0]
    (loser,) = [name for name, code in codes.items() if code != 0]
    assert codes[loser] in (errors.FAILED, errors.TRY_AGAIN), messages[loser]  # 75 while the other one is at work
    assert str(out) in messages[loser]
    assert "Traceback" not in messages[loser]
    assert tree(out) == whole[winner]
    assert not [path for path in out.iterdir() if path.is_dir() and path.name != STATE and not any(path.iterdir())]
    tokenmill.verify(str(out), workers=1)
