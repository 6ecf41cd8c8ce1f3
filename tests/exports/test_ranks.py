"""Several processes that share one export: killed, paused, late or alone, they make the files of one process."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from tests.support import remote_runs
from tests.support.command import run as run_command
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.erasing import erase_rows
from tests.support.export_harm import tree
from tests.support.killing import wait_until
from tests.support.remote_runs import Ended, end, kill, local_files
from tests.support.servers.seaweed import Bucket
from tokenmill import errors
from tokenmill.executors.ranks import RankShare
from tokenmill.exports import exporter, shards, sorted_runs
from tokenmill.storage import folder_at
from tokenmill.storage.local import files
from tokenmill.token_files.files import ChecksumWriter

pytestmark = pytest.mark.timeout(240)

STATE = ".tokenmill"
LOCK = f"{STATE}/lock"
FORMATS: dict[str, dict[str, Any]] = {
    "nanogpt": {"val": "0.2", "shuffle": 7},
    "megatron": {"val": "0.2"},
    "parquet": {"val": "0.2", "shuffle": 7, "shard_tokens": 400},
    "datatrove": {"val": "none", "shard_tokens": 400},
}

# A rank that waits a moment before each shard, so that the others start before all are done. Files of one split have
# many regions.
SLOW_RANK = """
import time
from tokenmill.executors.ranks import RankShare
from tokenmill.exports import shards
shards.REGION_TOKENS = 400
order = RankShare.order
def slow_order(*arguments):
    for item in order(*arguments):
        time.sleep(0.1)
        yield item
RankShare.order = slow_order
from tokenmill.__main__ import main
main()
"""


@pytest.fixture(autouse=True)
def _many_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of one split have many regions, and no rank waits long for a lock."""
    monkeypatch.setattr(shards, "REGION_TOKENS", 400)
    monkeypatch.setattr(files, "CLEANUP_SECONDS", 0.2)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of some hundred documents in 20 parts."""
    directory = tmp_path_factory.mktemp("store")
    return make_store(directory)


def make_store(directory: Path) -> str:
    texts = [f"document {row} " + "says little " * (row % 13) for row in range(200)]
    source = write_parquet(directory / "a.parquet", texts, row_group_size=10)
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(directory / "store"), unit_bytes=1, workers=1)
    return str(directory / "store")


def export(store: str, out: Path, to: str, rank: int | None = None, of: int | None = None, **changes: Any) -> Any:
    """An export in this process, as one of several ranks if a rank is given."""
    options: dict[str, Any] = {**FORMATS[to], "workers": 1, **changes}
    return tokenmill.export(store, to=to, out=str(out), rank=rank, of=of, **options)


@pytest.fixture(scope="module")
def whole(store: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files that one process writes, by format."""
    directory = tmp_path_factory.mktemp("whole")
    for to in FORMATS:
        export(store, directory / to, to)
    return {to: tree(directory / to) for to in FORMATS}


def start(store: str, out: object, to: str, rank: int, of: int, **environment: str) -> subprocess.Popen[str]:
    """Start a slow rank in a process of its own."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in FORMATS[to].items()]
    words += ["--to", to, "--out", str(out), "--rank", str(rank), "--of", str(of), "--workers", "1", "--json"]
    return remote_runs.start("export", store, *words, code=SLOW_RANK, **environment)


def require_clean(out: Path) -> None:
    """The export is intact, and has neither temporary files nor sorted runs."""
    tokenmill.verify(str(out), workers=1)
    names = [name for name in local_files(out) if name.endswith((".tmp", ".unsealed"))]
    assert names == []
    assert not (out / STATE / "runs").exists()


def count(out: Path, directory: str, ending: str) -> int:
    return len(list(out.glob(f"{STATE}/{directory}/*.{ending}")))


@pytest.mark.fast
def test_own_items_come_first() -> None:
    """Then those of other ranks, in any order, and none that another rank has done meanwhile."""
    share, is_done, skipped = RankShare(1, 4), np.zeros(100, bool), list[int]()
    is_done[50:60] = True
    order = list(share.order(np.arange(20, 100), is_done, lambda: is_done, skipped.append))
    own = np.flatnonzero(share.stripes(100) & ~is_done)
    own = own[own >= 20]
    assert order[: len(own)] == own.tolist()
    assert sorted(order) == [*range(20, 50), *range(60, 100)]
    assert sorted(skipped) == list(range(50, 60))


@pytest.mark.parametrize("to", FORMATS)
def test_one_rank_alone_does_everything(store: str, tmp_path: Path, whole: dict[str, Any], to: str) -> None:
    """The other ranks never come. When they come after all, there is nothing left for them."""
    out = tmp_path / "out"
    done = export(store, out, to, 2, 4)
    assert tree(out) == whole[to]
    late = export(store, out, to, 0, 4)
    assert (late.shards_done_now, late.splits, late.files, late.use) == (0, done.splits, done.files, done.use)
    assert tree(out) == whole[to]
    assert export(store, out, to).shards_done_now == 0
    require_clean(out)


@pytest.mark.parametrize("to", ["nanogpt", "parquet"])
def test_killed_ranks(
    store: str, tmp_path: Path, whole: dict[str, Any], to: str, started: list[subprocess.Popen[str]]
) -> None:
    """Of three ranks one is killed while it sorts, and one while it writes; they are started again later."""
    out = tmp_path / "out"
    started += [start(store, out, to, rank, 3) for rank in range(3)]
    assert wait_until(lambda: count(out, "runs", "index") >= 3)
    assert started[0].poll() is None
    assert not (out / STATE / "plan.parquet").exists()
    kill(started[0])
    assert wait_until(lambda: count(out, "shards", "arrow") >= 3)
    assert started[1].poll() is None
    kill(started[1])
    assert not (out / STATE / "manifests").exists()
    started.append(start(store, out, to, 1, 3))
    ended = [end(process) for process in started[2:]]
    assert [each.code for each in ended] == [0, 0], [each.err for each in ended]
    assert tree(out) == whole[to]
    assert export(store, out, to, 0, 3).shards_done_now == 0
    assert tree(out) == whole[to]
    require_clean(out)


def test_a_stopped_rank(
    store: str, tmp_path: Path, whole: dict[str, Any], started: list[subprocess.Popen[str]]
) -> None:
    """A rank is stopped while it writes, and continues when the others have finished."""
    out, to = tmp_path / "out", "megatron"
    started += [start(store, out, to, rank, 2) for rank in range(2)]
    assert wait_until(lambda: count(out, "shards", "arrow") >= 3)
    assert started[0].poll() is None
    os.killpg(started[0].pid, signal.SIGSTOP)
    assert end(started[1]).code == 0
    assert tree(out) == whole[to]
    os.killpg(started[0].pid, signal.SIGCONT)
    ended = end(started[0])
    assert ended.code == 0, ended.err
    assert tree(out) == whole[to]
    require_clean(out)


def at_first_call(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, action: Callable[[], object]) -> list[object]:
    """Do something before the first call of a function goes on. Returns a list that has an item after it."""
    original, calls = getattr(owner, name), list[object]()

    def wrapper(*arguments: Any, **options: Any) -> Any:
        if not calls:
            calls.append(name)
            action()
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, wrapper)
    return calls


@pytest.mark.parametrize("to", FORMATS)
def test_a_rank_that_is_paused_while_it_writes_a_shard(
    store: str, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """The file of the shard is open when the other ranks finish the export; then the rank writes the rest of it."""
    out = tmp_path / "out"

    def finish() -> None:
        export(store, out, to, 1, 2)
        assert tree(out) == whole[to]

    paused = at_first_call(monkeypatch, ChecksumWriter, "write", finish)
    result = export(store, out, to, 0, 2)
    assert paused
    assert sum(split.tokens for split in result.splits.values()) > 0
    assert tree(out) == whole[to]
    require_clean(out)


def test_a_rank_that_is_paused_while_it_sorts(
    store: str, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank has sorted documents when the other ranks finish the export and remove the sorted runs."""
    out, to = tmp_path / "out", "nanogpt"
    paused = at_first_call(monkeypatch, sorted_runs, "publish_sorted_run", lambda: export(store, out, to, 1, 2))
    export(store, out, to, 0, 2)
    assert paused
    assert tree(out) == whole[to]
    require_clean(out)


def test_a_document_is_erased_while_a_rank_is_paused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others erase it in the export; the rank that writes its tokens again then erases them, too."""
    store = make_store(tmp_path)
    out, expected = Path(store) / "nanogpt", tmp_path / "expected"

    def erase_and_finish() -> None:
        assert erase_rows(store, 17, request="r").again == [str(out)]  # ranks hold the export
        export(store, out, "nanogpt", 1, 2)

    paused = at_first_call(monkeypatch, ChecksumWriter, "write", erase_and_finish)
    export(store, out, "nanogpt", 0, 2)
    assert paused
    require_clean(out)
    assert erase_rows(store, request="r").unreached == {}
    export(store, expected, "nanogpt", shuffle=8)  # without the document
    tokenmill.verify(store, workers=1)


def interrupt(
    monkeypatch: pytest.MonkeyPatch, step: str, action: Callable[[], object], owner: object = exporter.Exporter
) -> None:
    """Let an export end with an error at one of its steps."""

    def stop(*_: object, **__: object) -> None:
        raise errors.StoreError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, stop)
        with pytest.raises(errors.StoreError, match="interrupted"):
            action()


@pytest.mark.parametrize("moment", ["frozen", "planned", "complete"])
def test_another_request_by_a_rank_is_refused(
    store: str, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """A rank with another option is told which one differs, and changes nothing, also before there is a plan."""
    out, to = tmp_path / "out", "parquet"
    steps = {"frozen": "_plan", "planned": "_write_missing"}
    if moment in steps:
        interrupt(monkeypatch, steps[moment], lambda: export(store, out, to, 0, 4))
    else:
        export(store, out, to, 0, 4)
    before = {**local_files(out), LOCK: b""}
    with pytest.raises(errors.JobChanged, match="another shuffle"):
        export(store, out, to, 1, 4, shuffle=8)
    assert {**local_files(out), LOCK: b""} == before
    export(store, out, to, 1, 4)
    assert tree(out) == whole[to]


def test_ranks_and_an_export_alone_do_not_mix(store: str, tmp_path: Path) -> None:
    """A process that exports alone keeps ranks out, and the other way round; both can be tried again."""
    out = tmp_path / "out"
    export(store, out, "nanogpt", 0, 2)
    words = ["export", store, "--to", "nanogpt", "--val", "0.2", "--shuffle", "7", "--out", out]
    folder = folder_at(str(out))
    with folder.locks.shared(LOCK):
        refused = run_command(*words, code=errors.TRY_AGAIN)
        assert "another run is writing" in refused.stderr
        run_command(*words, "--rank", 1, "--of", 2)
    with folder.locks.exclusive(LOCK):
        refused = run_command(*words, "--rank", 1, "--of", 2, code=errors.TRY_AGAIN)
        assert "another run is writing" in refused.stderr


@pytest.mark.parametrize("harm", ["shard", "record", "sorted run"])
def test_a_rank_compares_its_own_work(
    store: str, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """What was damaged after an interruption is written again by the rank whose work it is first."""
    out = tmp_path / "out"
    interrupt(monkeypatch, "_finish", lambda: export(store, out, "nanogpt", 0, 2))
    damaged = {
        "shard": out / ".val.bin.unsealed",
        "record": out / STATE / "shards/00000001.arrow",
        "sorted run": out / STATE / "runs/00000000.tokens",
    }[harm]
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2 if harm == "record" else 0] ^= 1
    damaged.write_bytes(content)
    if harm == "sorted run":
        (out / STATE / "plan.parquet").unlink()
        for record in out.glob(f"{STATE}/shards/*"):
            record.unlink()
        for unfinished in out.glob(".*.unsealed"):
            unfinished.unlink()
    export(store, out, "nanogpt", 0, 2)
    assert tree(out) == whole["nanogpt"]
    require_clean(out)


@pytest.mark.parametrize("name", ["00000000.arrow", "00000001.arrow"])
def test_a_shard_that_is_lost_before_the_end(
    store: str, tmp_path: Path, whole: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A rank that is about to publish the manifest writes what has no record any more, and lists all shards."""
    out = tmp_path / "out"
    interrupt(monkeypatch, "_take_others", lambda: export(store, out, "parquet", 0, 2))
    lost = at_first_call(monkeypatch, exporter.Exporter, "_take_others", (out / STATE / "shards" / name).unlink)
    result = export(store, out, "parquet", 1, 2)
    assert lost
    assert tree(out) == whole["parquet"]
    assert result.files == len(whole["parquet"])
    require_clean(out)


def test_sorted_runs_of_another_export_are_refused(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank does not compare the runs of other ranks, but one of them notices that they are of another seed."""
    out = tmp_path / "out"
    interrupt(monkeypatch, "_read_or_make_plan", lambda: export(store, out, "nanogpt", 0, 2), exporter)
    (out / STATE / "export.json").unlink()
    with pytest.raises(errors.CorruptStore, match="of another export"):
        export(store, out, "nanogpt", 0, 2, shuffle=8)


def test_the_rank_of_the_environment(store: str, tmp_path: Path, whole: dict[str, Any]) -> None:
    """A task of a Slurm array is a rank, as in `prepare`."""
    words = ["export", store, "--to", "nanogpt", "--val", "0.2", "--shuffle", "7", "--out", tmp_path / "out"]
    array: dict[str, Any] = {"SLURM_ARRAY_TASK_ID": "6", "SLURM_ARRAY_TASK_COUNT": "4", "SLURM_ARRAY_TASK_MIN": "5"}
    done = run_command(*words, SLURM_JOB_ID="1", **array)
    assert "rank 1 of 4" in done.stderr
    assert tree(tmp_path / "out") == whole["nanogpt"]
    assert "--rank needs --of" in run_command(*words, "--rank", 1, code=errors.USAGE).stderr


def test_ranks_in_a_bucket(s3: Bucket, store: str, whole: dict[str, Any], started: list[subprocess.Popen[str]]) -> None:
    """Two of three ranks are killed; the files are those of one process, and no region or sorted run is left."""
    url = f"{s3.url}/out"
    started += [start(store, url, "nanogpt", rank, 3) for rank in range(3)]

    def names(part: str) -> list[str]:
        return [name for name in s3.server.names(url) if part in name]

    assert wait_until(lambda: len(names("/runs/")) >= 3, pause=0.1)
    kill(started[0])
    assert wait_until(lambda: len(names("/shards/")) >= 3, pause=0.1)
    kill(started[1])
    ended: Ended = end(started[2], 120)
    assert ended.code == 0, ended.err
    files = {name: data for name, data in s3.server.objects(url).items() if not name.startswith(STATE)}
    assert files == whole["nanogpt"]
    assert not names("/runs/")
