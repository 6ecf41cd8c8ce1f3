"""Shuffles whose sorted runs are merged: the work is bounded, and the files are those of a shuffle in memory.

Limits are so small that a small store is sorted, merged twice and written.
"""

from __future__ import annotations

import os
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.exports.test_ranks import require_clean
from tests.support import ROOT, remote_runs
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tests.support.export_harm import tree
from tests.support.export_model import END, flat, model, read_back
from tests.support.killing import wait_until
from tests.support.remote_runs import end, kill
from tests.support.servers.seaweed import Bucket
from tokenmill import errors
from tokenmill.api.export import MIN_WORKER_BYTES
from tokenmill.executors.outcomes import Capacity
from tokenmill.exports import shuffle, sorted_runs
from tokenmill.exports.exporter import Exporter
from tokenmill.exports.job import MAX_BINS, read_frozen
from tokenmill.exports.shards import REGION_TOKENS
from tokenmill.exports.shuffle import Level, Shuffle, ShuffleWork
from tokenmill.exports.write_shard import WriteSortedRun
from tokenmill.humanize import size
from tokenmill.pipeline.planning.resources import plan_resources
from tokenmill.storage import folder_at
from tokenmill.storage.local import files

pytestmark = pytest.mark.timeout(240)

RUNS = ".tokenmill/runs"
SEED = 7
MOST_RUNS = 4
LIMITS = {"FEW_RUNS": MOST_RUNS, "MIN_RANGE_BYTES": 1 << 60, "RUNS_PER_WORKER": 20}
OPTIONS: dict[str, dict[str, Any]] = {
    "llmc": {"val": "0.2", "shard_tokens": 100_000},
    "parquet": {"val": "none", "shard_tokens": 100_000, "with_columns": "id"},
    "megatron": {"val": "0.2"},
}

# A command within the limits that takes a moment for each run and shard.
SLOW_COMMAND = f"""
import time
from tokenmill.executors.fan_out import FanOut
from tokenmill.exports import shuffle
for name, limit in {LIMITS}.items():
    setattr(shuffle, name, limit)
advance = FanOut.advance
def slow_advance(*arguments):
    time.sleep(0.02)
    advance(*arguments)
FanOut.advance = slow_advance
from tokenmill.__main__ import main
main()
"""


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few runs are read by a task that runs are merged twice, and no rank waits long for a lock."""
    monkeypatch.setattr(files, "CLEANUP_SECONDS", 0.2)
    for name, limit in LIMITS.items():
        monkeypatch.setattr(shuffle, name, limit)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of some 400 documents of real text, or of made-up text without the test data, in 20 parts or more."""
    directory = tmp_path_factory.mktemp("merges")
    data, rng = os.environ.get("TOKENMILL_TEST_DATA"), random.Random(1)
    if data:
        texts = pq.read_table(f"{data}/corpus/en/000.parquet")["text"].slice(0, 400).to_pylist()
    else:
        texts = ["".join(rng.choices("etaoin shrdlu\n", k=rng.choice([0, 3, 40, 900]))) for _ in range(400)]
    source = write_parquet(directory / "a.parquet", texts, 10)
    out = str(directory / "store")
    tokenmill.prepare(source, tokenizer=SMALL_TIKTOKEN, eot=END, out=out, keep="id", unit_bytes=1, workers=1)
    return out


def export(store: str, out: Path | str, to: str = "llmc", **changes: Any) -> Any:
    return tokenmill.export(store, to=to, out=str(out), shuffle=SEED, workers=1, **{**OPTIONS[to], **changes})


@pytest.fixture(scope="module")
def expected(store: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The files of exports that merge nothing, by format."""
    directory = tmp_path_factory.mktemp("expected")
    for to in OPTIONS:
        export(store, directory / to, to)
        assert merges(directory / to) == ()
    return {to: tree(directory / to) for to in OPTIONS}


def merges(out: Path) -> tuple[int, ...]:
    frozen = read_frozen(folder_at(str(out)))
    assert frozen is not None
    return frozen.merges


def runs(out: Path) -> list[int]:
    """The numbers of the sorted runs that are there."""
    return sorted(int(path.stem) for path in out.glob(f"{RUNS}/*.index"))


def levels(store: str, out: Path) -> tuple[Level, ...]:
    """The levels of sorted runs of an export."""
    frozen = read_frozen(folder_at(str(out)))
    assert frozen is not None
    tokens = np.array([len(part.tokens) for part in tokenmill.open(store).parts()])
    count = len(sorted_runs.spans(tokens, frozen.run_tokens))
    return Shuffle.of(count, frozen.bins, frozen.merges, "uint16").levels


def wait_for_level(store: str, out: Path, level: int) -> None:
    """Wait until a run of a level is there."""
    assert wait_until(lambda: bool(runs(out)), pause=0.02)
    first = levels(store, out)[level].first
    assert wait_until(lambda: max(runs(out), default=0) >= first, pause=0.02)


def start(store: str, out: Path, *options: object) -> subprocess.Popen[str]:
    """Start a slow export within the limits in a process of its own."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS["llmc"].items()]
    words += ["--to", "llmc", "--out", str(out), "--shuffle", str(SEED), "--workers", "1", *map(str, options)]
    return remote_runs.start("export", store, *words, "--json", code=SLOW_COMMAND)


@pytest.mark.fast
def test_the_work_is_bounded() -> None:
    """For stores of up to 1 PB no task reads from too many runs or holds too much, and no merge is needless."""
    rng, counts = random.Random(3), set[int]()
    for _ in range(2000):
        store, shard = int(10 ** rng.uniform(3, 15)), int(10 ** rng.uniform(4, 11))
        workers, memory = int(10 ** rng.uniform(0, 4)), int(10 ** rng.uniform(8.5, 11))
        work = ShuffleWork.of(store, shard, workers, memory)
        counts.add(len(work.merges))
        assert work.memory_bytes <= memory
        assert all(fan_in <= max(shuffle.FEW_RUNS, work.run_bytes // shuffle.MIN_RANGE_BYTES) for fan_in in work.merges)
        most_read = max(shuffle.FEW_RUNS, work.read_bytes // shuffle.MIN_RANGE_BYTES)
        assert work.runs_read <= most_read
        assert bool(work.merges) == (work.runs > most_read)
        assert work.bins <= MAX_BINS
        assert work.bins % np.prod(work.merges, dtype=np.int64) == 0
        assert Shuffle.of(5, work.bins, work.merges, "uint16").levels[-1].bins_in_run >= 1
    assert counts == {0, 1, 2, 3}


@pytest.mark.fast
def test_the_table_of_the_page_is_computed() -> None:
    """The figures of docs/scale.md are those of the code."""
    gb = 10**9
    works = [
        ShuffleWork.of(2 * tokens, 2 * 10**8, nodes * cores, worker_bytes(cores, memory * gb))
        for tokens, nodes, cores, memory in (
            (gb, 1, 2, 8),
            (100 * gb, 1, 16, 64),
            (15_000 * gb, 256, 16, 256),
        )
    ]
    rows: dict[str, Callable[[ShuffleWork], str]] = {
        "store, uint16": lambda work: size(work.store_bytes),
        "runs": lambda work: f"{work.runs:,} of {size(work.run_bytes)}",
        "merged at once": lambda work: ", then ".join(map(str, work.merges)) or "-",
        "runs that a shard reads": lambda work: f"{work.runs_read:,}",
        "a range of a merge": lambda work: ", ".join(size(work.run_bytes // fan_in) for fan_in in work.merges) or "-",
        "a range of a shard": lambda work: size(work.read_bytes // work.runs_read),
        "requests": lambda work: f"{work.requests:,}",
        "bytes read and written": lambda work: size(work.moved_bytes),
        "scratch space": lambda work: size(work.scratch_bytes),
        "memory of a worker": lambda work: size(work.memory_bytes),
        "bins": lambda work: f"{work.bins:,}",
        "indices that are added up": lambda work: size(work.runs_read * work.bins * 16),
    }
    page = (ROOT / "docs/scale.md").read_text().splitlines()
    for label, figure in rows.items():
        assert f"| {label} | {' | '.join(map(figure, works))} |" in page
    assert REGION_TOKENS < 10**8  # files of one split are written in smaller regions


def worker_bytes(cores: int, memory: int) -> int:
    """The memory of each worker of a machine."""
    room = Capacity(cores, memory * 7 // 10 // cores, cores, memory)
    return plan_resources(None, None, cores, MIN_WORKER_BYTES, room).worker_bytes


@pytest.mark.parametrize("to", OPTIONS)
def test_merged_runs_give_the_order_of_the_keys(
    store: str, tmp_path: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, small_limits: None, to: str
) -> None:
    """The files are those of a shuffle without merges and those of a model in memory. All levels are written."""
    written, read = list[int](), list[int]()
    publish, ranges = sorted_runs.publish_sorted_run, Level.ranges

    def note_written(folder: Any, run: int, *arguments: Any) -> None:
        written.append(run)
        publish(folder, run, *arguments)

    def note_read(level: Level, groups: range, *arguments: Any) -> Any:
        read.append(len(groups))
        return ranges(level, groups, *arguments)

    monkeypatch.setattr(sorted_runs, "publish_sorted_run", note_written)
    monkeypatch.setattr(Level, "ranges", note_read)
    out = tmp_path / "out"
    export(store, out, to)
    assert merges(out) == (MOST_RUNS, MOST_RUNS)
    last = levels(store, out)[-1]
    assert last.first > 2 * MOST_RUNS**2
    assert written == list(range(last.runs.stop))
    assert max(read) == MOST_RUNS
    assert tree(out) == expected[to]
    require_clean(out)
    val = None if OPTIONS[to]["val"] == "none" else float(OPTIONS[to]["val"])
    in_memory = model(tokenmill.open(store), val, SEED, "prepended" if to == "llmc" else "appended")
    found = read_back(out, to)
    assert {split: np.concatenate([tokens for tokens, _ in shards]).tolist() for split, shards in found.items()} == {
        split: flat(documents) for split, documents in in_memory.items()
    }


def interrupt(monkeypatch: pytest.MonkeyPatch, owner: type, step: str, action: Callable[[], object]) -> None:
    """Let an export end with an error at one of its steps."""

    def stop(*_: object) -> None:
        raise errors.StoreError("interrupted")

    with monkeypatch.context() as patch:
        patch.setattr(owner, step, stop)
        with pytest.raises(errors.TokenmillError, match="interrupted"):
            action()


@pytest.mark.parametrize("ranks", [{}, {"rank": 0, "of": 2}])
def test_a_damaged_run_is_merged_again(
    store: str,
    tmp_path: Path,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    small_limits: None,
    ranks: dict[str, Any],
) -> None:
    """Only the runs of the last level are kept. Of the others those are written again from which a damaged one is.

    A rank compares its own runs. How many there are depends on the memory of the machine.
    """
    out = tmp_path / "out"
    interrupt(monkeypatch, Exporter, "_write", lambda: export(store, out, **ranks))
    last = levels(store, out)[-1]
    if not ranks:  # those of the other rank are removed at the end of the export
        assert runs(out) == list(last.runs)
    own = next(run for run in last.runs if run % ranks.get("of", 1) == ranks.get("rank", 0))
    damaged = out / RUNS / f"{own:08d}.tokens"
    content = damaged.read_bytes()
    damaged.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    export(store, out, **ranks)
    assert tree(out) == expected["llmc"]
    require_clean(out)


def test_kills(store: str, tmp_path: Path, expected: dict[str, Any], started: list[subprocess.Popen[str]]) -> None:
    """An export that is killed while it merges, and while it merges again, continues and gives the same files."""
    out, rng = tmp_path / "out", random.Random(5)
    for level in (1, 2):
        started.append(start(store, out))
        wait_for_level(store, out, level)
        time.sleep(rng.uniform(0, 0.1))
        assert started[-1].poll() is None
        kill(started[-1])
    ended = end(start(store, out))
    assert ended.code == 0, ended.err
    assert merges(out) == (MOST_RUNS, MOST_RUNS)
    assert tree(out) == expected["llmc"]
    require_clean(out)


def test_killed_ranks(
    store: str, tmp_path: Path, expected: dict[str, Any], started: list[subprocess.Popen[str]]
) -> None:
    """Of two ranks one is killed in the first merge and comes back, and the other is killed in the second."""
    out = tmp_path / "out"
    started += [start(store, out, "--rank", rank, "--of", 2) for rank in range(2)]
    wait_for_level(store, out, 1)
    assert started[0].poll() is None
    kill(started[0])
    started.append(start(store, out, "--rank", 0, "--of", 2))
    wait_for_level(store, out, 2)
    assert started[1].poll() is None
    kill(started[1])
    ended = end(started[2])
    assert ended.code == 0, ended.err
    assert tree(out) == expected["llmc"]
    require_clean(out)


@pytest.mark.parametrize("level", range(3))
def test_a_rank_that_is_paused_before_it_publishes_a_run(
    store: str,
    tmp_path: Path,
    expected: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    small_limits: None,
    level: int,
) -> None:
    """The other rank finishes the export meanwhile, and has removed the runs that the first one would read next."""
    out, publish = tmp_path / "out", sorted_runs.publish_sorted_run
    paused = list[int]()

    def pause(folder: Any, number: int, *arguments: Any) -> None:
        if not paused and number in levels(store, out)[level].runs:
            paused.append(number)
            export(store, out, rank=1, of=2)
        publish(folder, number, *arguments)

    monkeypatch.setattr(sorted_runs, "publish_sorted_run", pause)
    export(store, out, rank=0, of=2)
    assert paused
    assert tree(out) == expected["llmc"]
    require_clean(out)


def test_a_rank_that_is_paused_before_it_reads_a_run(
    store: str, tmp_path: Path, expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch, small_limits: None
) -> None:
    """The other rank merges all runs of the level meanwhile, and removes its own; this one continues with the next."""
    out, read = tmp_path / "out", sorted_runs.read_range
    paused = list[int]()

    def pause(folder: Any, number: int, *arguments: Any, **options: Any) -> Any:
        if not paused:
            paused.append(number)
            interrupt(monkeypatch, Exporter, "_write", lambda: export(store, out, rank=1, of=2))
            assert not set(levels(store, out)[0].runs) <= set(runs(out))
        return read(folder, number, *arguments, **options)

    monkeypatch.setattr(sorted_runs, "read_range", pause)
    export(store, out, rank=0, of=2)
    assert paused
    assert tree(out) == expected["llmc"]
    require_clean(out)


def test_runs_of_another_export_are_not_merged(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_limits: None
) -> None:
    """A rank does not compare the runs of other ranks, but a merge notices that they are of another seed."""
    out = tmp_path / "out"
    interrupt(monkeypatch, WriteSortedRun, "_merge", lambda: export(store, out, rank=0, of=2))
    assert runs(out) == list(levels(store, out)[0].runs)
    (out / ".tokenmill/export.json").unlink()
    with pytest.raises(errors.TokenmillError, match="of another export"):
        tokenmill.export(store, to="llmc", out=str(out), shuffle=8, workers=1, rank=0, of=2, **OPTIONS["llmc"])


def test_merges_in_a_bucket(s3: Bucket, store: str, expected: dict[str, Any], small_limits: None) -> None:
    """The files are the same, and no run is left."""
    url = f"{s3.url}/out"
    export(store, url)
    written = {name: data for name, data in s3.server.objects(url).items() if not name.startswith(".tokenmill")}
    assert written == expected["llmc"]
    assert not [name for name in s3.server.names(url) if "/runs/" in name]
