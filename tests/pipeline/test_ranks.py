"""Several processes that share one run and have no coordinator: ranks, claims, and the end of a run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support.corpora import write_parquet
from tests.support.documents import DOCUMENTS
from tests.support.killing import wait_until
from tests.support.remote_runs import SMALL_UNITS, Ended, differences, end, local_files, running, start, tokenmill
from tests.support.servers.proxy import Proxy
from tests.support.servers.seaweed import Bucket
from tests.support.small_stores import prepare, write_source
from tokenmill.errors import UsageError
from tokenmill.executors.ranks import RankShare, choose_rank_share
from tokenmill.pipeline.driving.schedule import Schedule
from tokenmill.storage import folder_at
from tokenmill.storage import run_once as run_once_module
from tokenmill.storage.local import files
from tokenmill.storage.objects import lease
from tokenmill.storage.run_once import FINISHING, run_once
from tokenmill.system import machine, slurm

ALONE = ("--workers", "1")
ENVIRONMENT = (
    *("SLURM_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT", "SLURM_ARRAY_TASK_MIN", "SLURM_ARRAY_TASK_STEP"),
    *("SLURM_PROCID", "SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_TASKS_PER_NODE"),
    *("SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NUM_TASKS", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE"),
    *("JOB_COMPLETION_INDEX", "RANK", "WORLD_SIZE"),
)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has said anything of ranks."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


REPEATS = 16
UNITS = len(DOCUMENTS) * REPEATS // 4


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of many small units."""
    path = tmp_path_factory.mktemp("ranks") / "corpus"
    write_parquet(path / "one.parquet", DOCUMENTS * REPEATS, row_group_size=4)
    return path


@pytest.fixture(scope="module")
def reference(corpus: Path) -> dict[str, bytes]:
    """The store that one process makes of it."""
    out = corpus.parent / "reference"
    assert tokenmill("prepare", corpus, *SMALL_UNITS, "--out", out).code == 0
    return local_files(out)


def rank(number: int, of: int, corpus: Path, out: object, *more: object) -> list[object]:
    """The words of one of several ranks."""
    return ["prepare", corpus, *SMALL_UNITS, *ALONE, "--out", out, "--rank", number, "--of", of, "--json", *more]


def together(words: list[list[object]]) -> list[Ended]:
    """Run commands at the same time."""
    return [end(process) for process in [start(*each) for each in words]]


@pytest.mark.fast
@pytest.mark.parametrize("units", [0, 1, 5, 100, 4096, 100_000])
@pytest.mark.parametrize("of", [1, 2, 7, 256])
def test_every_unit_is_in_one_share(units: int, of: int) -> None:
    """The stripes of all ranks cover the plan, without overlap, and are nearly of the same size."""
    shares = np.array([RankShare(number, of).stripes(units) for number in range(of)])
    assert (shares.sum(axis=0) == 1).all()
    sizes = shares.sum(axis=1)
    assert sizes.max() - sizes.min() <= max(1, 0.05 * units / of)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("environment", "said", "expected"),
    [
        ({}, (None, None), None),
        ({}, (2, 5), RankShare(2, 5)),
        ({}, (0, 1), None),
        (
            {"SLURM_ARRAY_TASK_ID": "7", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "5"},
            (None, None),
            RankShare(2, 4),
        ),
        (
            {
                "SLURM_ARRAY_TASK_ID": "6",
                "SLURM_ARRAY_TASK_COUNT": "4",
                "SLURM_ARRAY_TASK_MIN": "0",
                "SLURM_ARRAY_TASK_STEP": "2",
            },
            (None, None),
            RankShare(3, 4),
        ),
        (
            {"SLURM_ARRAY_TASK_ID": "9", "SLURM_ARRAY_TASK_COUNT": "3", "SLURM_ARRAY_TASK_MIN": "1"},
            (None, None),
            RankShare(2, 3),
        ),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, (None, None), RankShare(3, 8)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (None, None), None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}, (None, None), RankShare(0, 4)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (None, None), None),  # a batch script, which is alone
        (
            {
                "SLURM_ARRAY_TASK_ID": "1",
                "SLURM_ARRAY_TASK_COUNT": "2",
                "SLURM_ARRAY_TASK_MIN": "0",
                "SLURM_PROCID": "2",
                "SLURM_STEP_NUM_TASKS": "3",
            },
            (None, None),
            RankShare(5, 6),
        ),
        ({"SLURM_PROCID": "3", "SLURM_NTASKS": "8"}, (1, 2), RankShare(1, 2)),
        ({"JOB_COMPLETION_INDEX": "4"}, (None, 6), RankShare(4, 6)),
        ({"JOB_COMPLETION_INDEX": "4"}, (None, None), None),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (None, None), RankShare(1, 4)),
        ({"RANK": "1", "WORLD_SIZE": "many"}, (None, None), None),
    ],
)
def test_shares_are_said_or_read_from_the_environment(
    environment: dict[str, str], said: tuple[int | None, int | None], expected: RankShare | None, monkeypatch
) -> None:
    """Slurm arrays may start anywhere and have steps; what is said counts more than what is read."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if any(name.startswith("SLURM") for name in environment):
        monkeypatch.setenv("SLURM_JOB_ID", "1")
    assert choose_rank_share(*said) == expected


@pytest.mark.fast
def test_whoever_drives_a_cluster_is_no_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Started by srun, it gives out all of the work; what is said counts all the same."""
    for name, value in {"SLURM_JOB_ID": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "8"}.items():
        monkeypatch.setenv(name, value)
    assert choose_rank_share(None, None) == RankShare(1, 8)
    assert choose_rank_share(None, None, look=False) is None
    assert choose_rank_share(1, 2, look=False) == RankShare(1, 2)


@pytest.mark.fast
@pytest.mark.parametrize("said", [(0, None), (None, 3), (3, 3), (5, 2)])
def test_half_a_share_is_refused(said: tuple[int | None, int | None]) -> None:
    """A rank without a count, a count without a rank, and a rank beyond the last one are explained."""
    with pytest.raises(UsageError, match=r"(rank|of)="):
        choose_rank_share(*said)


def test_what_slurm_has_given_is_not_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processors and memory of a task, where Slurm does not confine it."""
    cores, budget = machine.cores(), machine.default_memory_budget()
    assert slurm.processors() is None
    assert slurm.memory_bytes(2) is None
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    monkeypatch.setenv("SLURM_MEM_PER_CPU", "100")
    assert machine.cores() == 1
    assert machine.default_memory_budget() == int(0.7 * (100 << 20))
    monkeypatch.delenv("SLURM_CPUS_PER_TASK")
    monkeypatch.delenv("SLURM_MEM_PER_CPU")
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "64")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "4(x2)")
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "1000")
    assert slurm.processors() == 16
    assert slurm.memory_bytes(16) == 250 << 20
    monkeypatch.setenv("SLURM_MEM_PER_NODE", "0")
    assert slurm.memory_bytes(16) is None
    assert machine.cores() == cores
    assert machine.default_memory_budget() == budget


def test_ranks_on_a_shared_disk_make_one_store(corpus: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    """All of them end well, when the store is complete."""
    ended = together([rank(number, 3, corpus, tmp_path / "out") for number in range(3)])
    told = [each.result() for each in ended]
    assert differences(local_files(tmp_path / "out"), reference) == []
    assert all(each["documents"] == len(DOCUMENTS) * REPEATS for each in told)
    done = [each["units_done_now"] for each in told]
    assert 0.9 * UNITS < sum(done) <= UNITS == told[0]["units"]  # nobody waits for what others have committed
    assert not [name for name in local_files(tmp_path / "out") if name.endswith(".tmp")]


def test_a_rank_does_the_work_of_those_that_never_come(
    corpus: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """One of four ranks alone completes the store; when the others come after all, there is nothing left for them."""
    assert tokenmill(*rank(2, 4, corpus, tmp_path / "out")).result()["units_done_now"] == UNITS
    assert differences(local_files(tmp_path / "out"), reference) == []
    late = tokenmill(*rank(0, 4, corpus, tmp_path / "out")).result()
    assert (late["units_done_now"], late["documents"]) == (0, len(DOCUMENTS) * REPEATS)


def drivers(files: Iterable[str]) -> int:
    """How many processes have taken part in a run."""
    return sum(name.startswith("drivers/") for name in files)


def test_killed_and_doubled_ranks_do_no_harm(
    s3: Bucket, corpus: Path, reference: dict[str, bytes], tmp_path: Path
) -> None:
    """A rank is killed in mid-run and started again, another one runs twice: complete, and identical."""
    out = f"{s3.url}/run"
    with Proxy(s3.server.port, latency_seconds=0.02) as proxy:
        far = {"AWS_ENDPOINT_URL": proxy.endpoint}
        with running(*rank(0, 2, corpus, out), **far) as one, running(*rank(1, 2, corpus, out), **far) as other:
            with proxy.held("/parts/0", "PUT", after=UNITS // 4):  # no rank ends before the last one starts
                assert wait_until(lambda: proxy.written("/parts/0") > UNITS // 8)
                assert wait_until(lambda: drivers(s3.server.names(out)) == 2, pause=0.1)
                os.killpg(one.pid, signal.SIGKILL)
                again = [start(*rank(number, 2, corpus, out), **far) for number in (0, 1)]
                assert wait_until(lambda: drivers(s3.server.names(out)) == 4, pause=0.1)
            ended = [end(process) for process in [other, *again]]
    assert [each.code for each in ended] == [0, 0, 0], [each.err for each in ended]
    assert differences(s3.server.objects(out), reference) == []


def test_the_last_ranks_death_is_mended_by_finish(corpus: Path, reference: dict[str, bytes], tmp_path: Path) -> None:
    """A store with all parts and no manifest is incomplete, until `finish` has written it; a second time is no harm."""
    out = tmp_path / "out"
    assert tokenmill(*rank(0, 2, corpus, out)).code == 0
    (out / "manifest.parquet").unlink()
    (out / "parts" / ".00000007.arrow.0123456789ab.tmp").write_bytes(b"half a part")
    assert tokenmill("status", out, "--json").result()["state"] == "stopped"
    assert tokenmill("finish", out, "--json").result()["written_now"] is True
    assert differences(local_files(out), reference) == []
    assert tokenmill("finish", out, "--json").result()["written_now"] is False
    (out / "manifest.parquet").unlink()
    (out / "parts" / "00000011.arrow").unlink()
    gap = tokenmill("finish", out)
    assert gap.code == 1
    assert f"1 unit of {UNITS} has no part yet" in gap.err
    assert "unit 11" in gap.err


BAD = b'{"text": "one"}\n{"text": "\xff"}\n{"text": "three"}\n{"text": 4}\n'


def test_a_rank_that_is_stopped_leaves_the_names_of_others_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in quarantine is named by whoever completes the store; `verify` finds it if the names are gone."""
    (tmp_path / "corpus.jsonl").write_bytes(BAD)
    words = [tmp_path / "corpus.jsonl", *SMALL_UNITS, *ALONE, "--max-bad", "90%", "--out", tmp_path / "out"]
    folder = folder_at(str(tmp_path / "out"))
    folder.create()
    claim = folder.locks.lease(FINISHING)
    assert claim.take()
    with monkeypatch.context() as patch:  # a signal comes while the rank waits for the claim
        patch.setattr(run_once_module, "time", SimpleNamespace(sleep=lambda _: signal.raise_signal(signal.SIGTERM)))
        assert tokenmill("prepare", *words, "--rank", 0, "--of", 2).code == 130
    assert folder.names("parts")
    assert not folder.exists("quarantine.jsonl")
    claim.release()
    assert tokenmill("prepare", *words, "--rank", 1, "--of", 2).code == 0
    assert len(folder.read("quarantine.jsonl").splitlines()) == 2
    assert tokenmill("verify", tmp_path / "out").code == 0
    folder.discard("quarantine.jsonl")
    wrong = tokenmill("verify", tmp_path / "out")
    assert wrong.code == 3
    assert "names 0 rows, and the manifest counts 2 in quarantine" in wrong.err


def test_ranks_and_a_run_alone_do_not_mix_on_a_disk(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that holds the store for itself keeps ranks out, and the other way round; both say so."""
    monkeypatch.setattr(files, "CLEANUP_SECONDS", 0.2)
    folder = folder_at(str(tmp_path / "out"))
    folder.create()
    with (
        folder.locks.exclusive(".lock"),
        pytest.raises(UsageError, match="another run is writing"),
        folder.locks.shared(".lock"),
    ):
        pass
    with folder.locks.shared(".lock"):
        assert tokenmill(*rank(0, 2, corpus, tmp_path / "out")).code == 0
        refused = tokenmill("prepare", corpus, *SMALL_UNITS, "--out", tmp_path / "out")
    assert refused.code == 75
    assert "another run is writing" in refused.err


def test_ranks_export_together(corpus: Path, tmp_path: Path) -> None:
    """When the store is complete, the ranks share its exports: their files are those of one process."""
    exports = ("--to", "nanogpt", "--to", "parquet", "--shuffle", 7, "--val", 0.1)
    assert tokenmill("prepare", corpus, *SMALL_UNITS, *exports, "--out", tmp_path / "alone").code == 0
    ended = together([rank(number, 3, corpus, tmp_path / "out", *exports) for number in range(3)])
    assert [[each["format"] for each in one.result()["exports"]] for one in ended] == [["nanogpt", "parquet"]] * 3
    for to in ("nanogpt", "parquet"):
        expected = local_files(tmp_path / "alone" / to)
        files = local_files(tmp_path / "out" / to)
        names = {name for name in expected if not name.startswith(".tokenmill")}
        assert names == {name for name in files if not name.startswith(".tokenmill")}
        assert all(files[name] == expected[name] for name in names)
    assert tokenmill("verify", tmp_path / "out").code == 0


def test_status_tells_of_all_ranks(s3: Bucket, corpus: Path) -> None:
    """Drivers and workers of a run that goes on elsewhere, read from the store; none when it is over."""
    out = f"{s3.url}/run"
    with Proxy(s3.server.port) as proxy:
        far = {"AWS_ENDPOINT_URL": proxy.endpoint}
        with running(*rank(0, 2, corpus, out), **far) as one, running(*rank(1, 2, corpus, out), **far) as other:

            def seen() -> bool:
                state = tokenmill("status", out, "--json")
                return state.code == 0 and json.loads(state.out)["workers"] == 2

            with proxy.held("/parts/0"):
                assert wait_until(seen, pause=0.2)
                state = tokenmill("status", out, "--json").result()
            assert [end(process).code for process in (one, other)] == [0, 0]
    assert (state["state"], state["drivers"], state["workers"], state["nodes"]) == ("running", 2, 2, 1)
    over = tokenmill("status", out, "--json").result()
    assert (over["state"], over["drivers"], over["workers"]) == ("complete", 0, 0)


@pytest.fixture(params=["disk", "s3"])
def folder(request: pytest.FixtureRequest, tmp_path: Path):
    """A folder of each kind."""
    url = str(tmp_path / "claims") if request.param == "disk" else f"{request.getfixturevalue('s3').url}/claims"
    found = folder_at(url)
    found.create()
    return found


def test_of_several_one_gets_its_turn(folder) -> None:
    """While one is at it, the others wait; when it is done, they know, and do not do it again."""
    done = threading.Event()
    worked: list[int] = []
    waiting: set[int] = set()

    def work() -> None:
        with run_once(folder.locks, "planning", done.is_set, lambda: waiting.add(threading.get_ident())) as is_ours:
            if is_ours:
                worked.append(1)
                wait_until(lambda: len(waiting) == 3)
                done.set()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (worked, len(waiting)) == ([1], 3)


def test_a_claim_whose_holder_was_killed_is_taken_over(folder, tmp_path: Path, monkeypatch) -> None:
    """On a disk at once, in an object store when its object has stayed the same for a while."""
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.0)
    code = (
        "import sys, time; from tokenmill.storage import folder_at;"
        "claim = folder_at(sys.argv[1]).locks.lease('planning');"
        "assert claim.take(); print('taken', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, folder.root], stdout=subprocess.PIPE, text=True)
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "taken\n"
        claim = folder.locks.lease("planning")
        assert not claim.take()
        holder.kill()
    assert wait_until(claim.take, 20)
    claim.release()
    after = folder.locks.lease("planning")
    assert after.take()
    after.release()


def test_a_claim_that_is_renewed_is_not_taken_over(s3: Bucket, monkeypatch) -> None:
    """As long as its holder writes, however long that is."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(lease, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.2)
    folder = folder_at(f"{s3.url}/claims")
    held, other = folder.locks.lease("finishing"), folder.locks.lease("finishing")
    assert isinstance(other, lease.BucketLease)
    assert held.take()
    seen = {b""}
    for _ in range(4):
        assert wait_until(lambda: other._read() not in seen)
        assert not other.take()
        seen.add(other._last_body)
        clock.now += 0.9 * lease.STALE_SECONDS
    held.release()
    assert other.take()
    other.release()


@pytest.mark.processes
@pytest.mark.parametrize("looks", [1, 2])
def test_a_part_in_a_listing_may_be_the_drivers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, looks: int
) -> None:
    """A part of a unit that is under way counts as another driver's when it is seen twice without an outcome."""
    forced: list[bool] = []

    def force(self: Schedule) -> bool:
        units = self.committed
        if not forced and units._in_flight:
            (unit,) = units._in_flight
            listed = units.mask()
            listed[unit] = True
            with monkeypatch.context() as patched:
                patched.setattr(units._listing, "_function", lambda: listed)
                for _ in range(looks):
                    units.list_parts(with_in_flight=True)
            forced.append(units[unit])
        return False

    monkeypatch.setattr(Schedule, "is_done_elsewhere", force)
    told = prepare(write_source(tmp_path / "in.parquet", "documents"), tmp_path / "out", rank=0, of=1)
    assert forced == [looks == 2]
    assert told.units_done_now == told.units - (looks == 2)
