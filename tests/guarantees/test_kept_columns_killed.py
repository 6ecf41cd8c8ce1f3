"""Kept columns and their part are one step: kill `prepare --keep` at any time, and no part is without its columns."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.killing import Job, Round, part_files, result_files, workers
from tokenmill.storage import folder_at
from tokenmill.store.kept import read_kept
from tokenmill.store.layout import kept_name
from tokenmill.store.part import read_summary

pytestmark = pytest.mark.timeout(280)

UNITS, ROWS_PER_UNIT = 150, 10
OPTIONS = (SMALL_TIKTOKEN, "--eot", "1199", "--keep", "id,url,ok", "--max-skipped", "10%")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Two files of many small units, with columns to keep, and rows without text."""
    corpus, rng = tmp_path_factory.mktemp("kept"), random.Random(5)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randint(1, 9))) for _ in range(3000)]
    rows = [
        {
            "text": " ".join(rng.choices(words, k=rng.randint(0, 800))) if row % 17 else None,
            "id": row,
            "url": f"https://host{row % 7}.example/{row}" if row % 5 else None,
            "ok": row % 2 == 0,
        }
        for row in range(UNITS * ROWS_PER_UNIT)
    ]
    for number in range(2):
        half = pa.Table.from_pylist(rows[number * len(rows) // 2 : (number + 1) * len(rows) // 2])
        pq.write_table(half, corpus / f"{number}.parquet", row_group_size=ROWS_PER_UNIT)
    return Job(corpus, OPTIONS, "tiktoken")


@pytest.fixture(scope="module")
def undisturbed(job: Job, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that is not disturbed."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    command.run(*job.words(out))
    files = result_files(out)
    assert sum(name.startswith("kept/") for name in files) == len(part_files(out)) == UNITS
    return files


@pytest.fixture
def rng() -> random.Random:
    """Another sequence of moments each time; the seed is shown when a test fails."""
    seed = int(os.environ.get("TOKENMILL_KILL_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"to repeat this: TOKENMILL_KILL_SEED={seed}")  # noqa: T201 - pytest shows it for a failed test
    return random.Random(seed)


def check_committed(out: Path, undisturbed: dict[str, bytes]) -> int:
    """Every part that is there has its kept columns, with the bytes of an undisturbed run. Returns their number."""
    folder = folder_at(str(out))
    names = part_files(out)
    for name in names:
        unit = int(name.partition(".")[0])
        read_kept(folder, read_summary(folder, unit), ())
        assert (out / kept_name(unit)).read_bytes() == undisturbed[kept_name(unit)]
        assert (out / "parts" / name).read_bytes() == undisturbed[f"parts/{name}"]
    return len(names)


def kill_often(job: Job, out: Path, undisturbed: dict[str, bytes], rng: random.Random, kills: int) -> list[int]:
    """Kill a run and its reruns, finish it, and compare. Returns how many parts were there after each kill."""
    trial, committed = Round(job, out), []
    for kill in range(kills):
        run = job.start(out)
        before = len(part_files(out))
        left = max(1, (UNITS - before) // (kills - kill + 1))
        assert run.until_units(before + rng.randint(1, left)), "the run ended early"
        time.sleep(rng.uniform(0, 0.02))
        if kill % 3 == 2:  # only a worker: the run goes on, and is killed a little later
            os.kill(rng.choice(workers(run.process.pid)), signal.SIGKILL)
            time.sleep(rng.uniform(0, 0.05))
        run.signal_group(signal.SIGKILL)
        run.wait()
        trial.end(run)
        committed.append(check_committed(out, undisturbed))
    command.run(*job.words(out))
    assert trial.violations(undisturbed) == []
    return committed


def test_no_part_is_without_its_columns(
    job: Job, undisturbed: dict[str, bytes], rng: random.Random, tmp_path: Path
) -> None:
    """After each kill, the columns of every part are whole; the finished store equals an undisturbed one."""
    committed = kill_often(job, tmp_path / "out", undisturbed, rng, kills=3)
    assert committed == sorted(committed)
    assert 0 < committed[0] < UNITS
    store = tokenmill.open(tmp_path / "out")
    assert len(store.columns("id")) == len(store)
    tokenmill.verify(tmp_path / "out", all=True, workers=1)


@pytest.mark.slow
def test_no_part_is_without_its_columns_at_many_moments(
    job: Job, undisturbed: dict[str, bytes], rng: random.Random, tmp_path: Path
) -> None:
    """The same with forty kills, in stores of ten kills each."""
    for number in range(4):
        kill_often(job, tmp_path / str(number), undisturbed, rng, kills=10)
