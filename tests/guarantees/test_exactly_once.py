"""Guarantee 3, exactly once: kill anything at any time, and the rerun finishes what is missing with the same bytes.

These are the everyday versions; scripts/kill_test.py kills many more times.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import command
from tests.support.corpora import SMALL_TIKTOKEN
from tests.support.killing import (
    Job,
    Round,
    Run,
    Snapshot,
    events,
    part_files,
    result_files,
    temporaries,
    workers,
    write_corpus,
)

TOKENIZER = (SMALL_TIKTOKEN, "--eot", "1199")
UNITS = 150
STOP_SECONDS = 10.0
"""The promise is two seconds on an idle machine. A unit of the slow job that is not stopped would be committed."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of many small units."""
    return write_corpus(tmp_path_factory.mktemp("killing") / "corpus", documents=UNITS * 10, rows_per_group=10)


@pytest.fixture(scope="module")
def job(corpus: Path) -> Job:
    """What is killed."""
    return Job(corpus, TOKENIZER, "tiktoken")


@pytest.fixture(scope="module")
def undisturbed(job: Job, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that a run gives which nobody disturbs."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    ending = job.finish(out)
    assert ending.exit_code == 0, ending.stderr
    assert len(part_files(out)) == UNITS
    return result_files(out)


@pytest.fixture
def rng() -> random.Random:
    """Another sequence of moments each time; the seed is shown when a test fails."""
    seed = int(os.environ.get("TOKENMILL_KILL_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"to repeat this: TOKENMILL_KILL_SEED={seed}")  # noqa: T201 - pytest shows it for a failed test
    return random.Random(seed)


def at_random(run: Run, rng: random.Random) -> None:
    """Wait for a random moment while units are being done, at most a third of those that are left."""
    there = len(part_files(run.out))
    assert run.until_units(there + rng.randint(1, max(1, (UNITS - there) // 3))), "the run ended early"
    time.sleep(rng.uniform(0, 0.02))


def check_finishes(trial: Round, undisturbed: dict[str, bytes]) -> None:
    """The same command ends well in this process, and all is as promised."""
    command.run(*trial.job.words(trial.out))
    assert trial.violations(undisturbed) == []


def test_a_run_killed_whole_goes_on_where_it_was(
    job: Job, undisturbed: dict[str, bytes], rng: random.Random, tmp_path: Path
) -> None:
    """Killing all processes again and again, with either engine, costs no committed unit and changes no byte."""
    trial = Round(job, tmp_path / "out")
    for engine in ("tiktoken", "gigatoken"):
        run = replace(job, engine=engine).start(trial.out)
        at_random(run, rng)
        run.signal_group(signal.SIGKILL)
        run.wait()
        assert trial.end(run).exit_code == -signal.SIGKILL
    committed = [len(snapshot.parts) for snapshot in trial.snapshots]
    assert 0 < committed[0] < committed[1] < UNITS
    check_finishes(trial, undisturbed)


def test_a_killed_trial_goes_on_as_the_whole_run(
    job: Job, undisturbed: dict[str, bytes], rng: random.Random, tmp_path: Path
) -> None:
    """The command without the limit keeps the units of a killed trial, and ends with the bytes of one run."""
    trial = Round(job, tmp_path / "out")
    run = replace(job, tokenizer=(*TOKENIZER, "--limit-units", str(UNITS // 2))).start(trial.out)
    at_random(run, rng)
    run.signal_group(signal.SIGKILL)
    run.wait()
    trial.end(run)
    check_finishes(trial, undisturbed)


def test_a_run_killed_while_it_starts_leaves_nothing_to_stumble_over(
    job: Job, undisturbed: dict[str, bytes], rng: random.Random, tmp_path: Path
) -> None:
    """Killing a run while it loads its libraries and freezes its plan does not disturb the next one."""
    trial = Round(job, tmp_path / "out")
    for _ in range(2):
        run = job.start(trial.out)
        time.sleep(rng.uniform(0.2, 1.5))
        run.signal_group(signal.SIGKILL)
        run.wait()
        trial.end(run)
    check_finishes(trial, undisturbed)


def test_a_parent_killed_alone_takes_its_workers_along(
    job: Job, undisturbed: dict[str, bytes], rng: random.Random, tmp_path: Path
) -> None:
    """When only the command is killed, its workers end too, and the next run can start at once."""
    trial = Round(job, tmp_path / "out")
    run = job.start(trial.out)
    at_random(run, rng)
    run.process.kill()
    run.wait()
    assert trial.end(run).left_behind == []
    check_finishes(trial, undisturbed)


def test_killed_workers_cost_a_retry_and_nothing_else(
    job: Job, undisturbed: dict[str, bytes], rng: random.Random, tmp_path: Path
) -> None:
    """The run that loses workers tells each death and ends by itself with the same bytes; a rerun does nothing."""
    trial = Round(job, tmp_path / "out")
    run = replace(job, engine="gigatoken").start(trial.out)
    killed = list[int]()
    while len(killed) < 2:
        at_random(run, rng)
        worker = rng.choice([pid for pid in workers(run.process.pid) if pid not in killed])
        with suppress(ProcessLookupError):  # it ended by itself
            os.kill(worker, signal.SIGKILL)
            killed.append(worker)
    run.wait()
    ending = trial.end(run)
    assert ending.exit_code == 0, ending.stderr
    assert ending.stderr.count("was killed (SIGKILL)") == 2
    deaths = [event for event in events(trial.out) if event["event"] == "death"]
    assert {death["pid"]: death["how"] for death in deaths} == dict.fromkeys(killed, "was killed (SIGKILL)")
    check_finishes(trial, undisturbed)
    told = len([event for event in events(trial.out) if event["event"] == "unit"])
    assert UNITS - len(killed) <= told <= UNITS  # a worker may die between its commit and its report


def test_half_written_files_are_removed(job: Job, tmp_path: Path) -> None:
    """What a killed run was writing, a part, the plan or the vocabulary, is gone when the next one ends."""
    out = tmp_path / "out"
    for name in ("parts/.00000000.arrow", ".plan.parquet", "tokenizer/.0ff1ce.tiktoken"):
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / f"{name}.0123456789ab.tmp").write_bytes(b"half a fi")
    command.run(*job.words(out), "--limit-units", "1")
    assert temporaries(out) == []


@pytest.fixture(scope="module")
def slow_job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One small unit, then units that take long."""
    directory = tmp_path_factory.mktemp("slow")
    corpus = write_corpus(directory / "corpus", documents=10_000, rows_per_group=10_000)
    write_corpus(directory / "small", documents=2, rows_per_group=2)
    (directory / "small" / "000.parquet").rename(corpus / "!.parquet")
    return Job(corpus, TOKENIZER, "tiktoken")


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [(signal.SIGINT, True), (signal.SIGTERM, False)],
    ids=["Ctrl-C", "SIGTERM to the parent"],
)
def test_an_interrupted_run_stops_at_once(
    slow_job: Job, tmp_path: Path, number: signal.Signals, whole_group: bool
) -> None:
    """Ctrl-C, or being told to terminate, ends a run before its units are done, with a sentence and without orphans."""
    run = slow_job.start(tmp_path / "out")
    assert run.until_units(1)
    started = time.monotonic()
    if whole_group:
        run.signal_group(number)
    else:
        run.process.send_signal(number)
    run.wait()
    seconds = time.monotonic() - started
    ending = run.collect()
    assert (ending.exit_code, ending.left_behind) == (130, []), ending.stderr
    assert seconds < STOP_SECONDS
    assert ending.stderr.splitlines()[-1] == (
        "interrupted: committed work is kept; run the same command again to continue"
    )
    assert "Traceback" not in ending.stderr
    assert list(Snapshot.of(run.out).parts) == [0]
