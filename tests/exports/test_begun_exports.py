"""Exports that were killed, and then begun again with other options, or by two processes at a time, are never mixed."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tokenmill
from tests.support.command import run as run_command
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.export_harm import error_of, tree
from tests.support.killing import wait_until
from tokenmill import errors

pytestmark = pytest.mark.timeout(300)
STATE = ".tokenmill"
OPTIONS = {"--to": "parquet", "--shuffle": "1", "--val": "0.2", "--shard-tokens": "300", "--workers": "1"}
CHANGES = [{"--shuffle": "2"}, {"--val": "none"}, {"--to": "olmo"}, {"--shard-tokens": "700"}]
MOMENTS = {
    "frozen": lambda out: (out / STATE / "export.json").exists(),
    "planned": lambda out: (out / STATE / "plan.parquet").exists(),
    "some shards": lambda out: len(list(out.glob(f"{STATE}/shards/*.arrow"))) > 3,
    "complete": lambda out: (out / STATE / "manifests/00000000.parquet").exists(),
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of some hundred documents."""
    directory = tmp_path_factory.mktemp("store")
    texts = [f"document {row} " + "says little " * (row % 13) for row in range(200)]
    source = write_parquet(directory / "a.parquet", texts, row_group_size=50)
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(directory / "store"), unit_bytes=1, workers=1)
    return str(directory / "store")


def command(store: str, out: Path, **changes: str) -> list[str]:
    """The command of an export."""
    words = [word for option in {**OPTIONS, **changes}.items() for word in option]
    return [sys.executable, "-m", "tokenmill", "export", store, *words, "--out", str(out)]


def run(store: str, out: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run an export to its end."""
    return run_command(*command(store, out, **changes)[3:], code=None)


def export(store: str, out: Path, **changes: str) -> None:
    """The same export in this process."""
    options = {name.strip("-").replace("-", "_"): value for name, value in {**OPTIONS, **changes}.items()}
    given: dict[str, Any] = {**options, **{name: int(options[name]) for name in ("shuffle", "workers")}}
    tokenmill.export(store, out=str(out), **given)


@pytest.fixture(scope="module")
def whole(store: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The undisturbed export, and each with other options, by the option that differs."""
    directory = tmp_path_factory.mktemp("whole")
    found = {next(iter(changes), ""): directory / str(number) for number, changes in enumerate([{}, *CHANGES])}
    for out, changes in zip(found.values(), [{}, *CHANGES], strict=True):
        export(store, out, **changes)
    return found


@pytest.fixture(scope="module")
def killed(store: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """What an export leaves that was killed at a moment."""
    directory = tmp_path_factory.mktemp("killed")

    @functools.cache
    def kill(moment: str) -> Path:
        out = directory / moment
        process = subprocess.Popen(command(store, out), stderr=subprocess.DEVNULL, start_new_session=True)
        assert wait_until(lambda: MOMENTS[moment](out), 300)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return out

    return kill


@pytest.mark.parametrize(
    ("moment", "changes"),
    [*zip(MOMENTS, CHANGES, strict=True), *(("some shards", changes) for changes in CHANGES if "--to" not in changes)],
)
def test_other_options_after_a_kill_are_refused_or_begin_anew(
    store: str,
    tmp_path: Path,
    killed: Callable[[str], Path],
    whole: dict[str, Path],
    changes: dict[str, str],
    moment: str,
) -> None:
    """Killed at some moment, then run with other options: refused with what differs, or exactly the new export."""
    out, option = shutil.copytree(killed(moment), tmp_path / "out"), next(iter(changes))
    ended = run(store, out, **changes)
    if ended.returncode == 0:
        assert moment == "frozen"
        assert tree(out) == tree(whole[option])
        assert tokenmill.verify(str(out), workers=1).notices == []
        return
    assert ended.returncode == errors.FAILED, ended.stderr
    assert f"another {option}" in ended.stderr or f"{option} " in ended.stderr
    assert run(store, out).returncode == 0
    assert tree(out) == tree(whole[""])
    tokenmill.verify(str(out), workers=1)


@pytest.mark.parametrize(
    ("lost", "changes"),
    [
        (["plan.parquet"], {"--shuffle": "2"}),
        (["plan.parquet"], {"--val": "none"}),
        (["plan.parquet", "manifests/00000000.parquet"], {"--to": "olmo"}),
        (["plan.parquet", "manifests/00000000.parquet"], {"--shard-tokens": "700"}),
        (["export.json"], {"--shuffle": "2"}),
        (["export.json"], {"--to": "olmo"}),
    ],
)
def test_other_options_where_state_was_lost(
    store: str,
    tmp_path: Path,
    whole: dict[str, Path],
    changes: dict[str, str],
    lost: list[str],
) -> None:
    """An export whose plan or job was lost does not give way to one with other options."""
    out = shutil.copytree(whole[""], tmp_path / "out")
    for name in lost:
        (out / STATE / name).unlink()
    error = error_of(lambda: export(store, out, **changes))
    assert error is not None
    assert error.exit_code in (errors.FAILED, errors.CORRUPT), str(error)
    assert tree(out) == tree(whole[""])
    if lost == ["export.json"]:
        shutil.rmtree(out)
    export(store, out)
    assert tree(out) == tree(whole[""])


@pytest.mark.parametrize("changes", [{"--shuffle": "2"}, {"--to": "olmo"}], ids=["--shuffle", "--to"])
def test_two_exports_at_the_same_time(
    store: str, tmp_path: Path, whole: dict[str, Path], changes: dict[str, str]
) -> None:
    """Of two exports into one directory with different options one wins; the other is refused, and writes nothing."""
    out, option = tmp_path / "out", next(iter(changes))
    commands = {"": command(store, out), option: command(store, out, **changes)}
    running = {
        name: subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for name, words in commands.items()
    }
    messages = {name: process.communicate(timeout=300)[1] for name, process in running.items()}
    codes = {name: process.returncode for name, process in running.items()}
    (winner,) = [name for name, code in codes.items() if code == 0]
    (loser,) = [name for name, code in codes.items() if code != 0]
    assert codes[loser] in (errors.FAILED, errors.TRY_AGAIN), messages[loser]  # 75 while the other one is at work
    assert str(out) in messages[loser]
    assert "Traceback" not in messages[loser]
    assert tree(out) == tree(whole[winner])
    assert not [path for path in out.iterdir() if path.is_dir() and path.name != STATE and not any(path.iterdir())]
    tokenmill.verify(str(out), workers=1)
