"""Ranks with --keep, --deny and --like make the store of a single process, from options or from Slurm's environment."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.pipeline.test_ranks import ENVIRONMENT
from tests.support.documents import DOCUMENTS
from tests.support.killing import part_files, wait_until
from tests.support.remote_runs import SMALL_UNITS, TOKENIZER, differences, end, local_files, start
from tests.support.remote_runs import tokenmill as command
from tests.support.servers.seaweed import Bucket
from tokenmill.store.part import DENIED

RANKS = 2
REPEATS = 12


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the environment names a rank."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def write(path: Path, name: str) -> Path:
    """A source of many units, with ids and URLs of four hosts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [f"{name} {text}" for text in DOCUMENTS * REPEATS]
    urls = [f"https://host{row % 4}.example/{name}/{row}" for row in range(len(texts))]
    pq.write_table(pa.table({"text": texts, "id": range(len(texts)), "url": urls}), path, row_group_size=4)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources, a list of denied rows, and the stores that single processes make of them."""
    root = tmp_path_factory.mktemp("growth")
    first, second = write(root / "in" / "a.parquet", "a"), write(root / "in" / "b.parquet", "b")
    rules = [
        {"column": "url", "host": "host1.example"},
        {"source": "a.parquet", "row": 2},
        {"column": "id", "value": 8},
    ]
    (root / "deny.jsonl").write_text("".join(json.dumps(rule) + "\n" for rule in rules))
    made = command("prepare", first, *options(root), "--out", root / "first")
    assert made.code == 0, made.err
    made = command("prepare", second, *like(root / "first"), "--out", root / "second")
    assert made.code == 0, made.err
    return root


def options(root: Path) -> tuple[object, ...]:
    return *SMALL_UNITS, "--keep", "id,url", "--deny", root / "deny.jsonl"


def like(store: object) -> tuple[object, ...]:
    return "--like", store, "--unit-bytes", "1", "--workers", "1"


def by_option(rank: int) -> tuple[list[object], dict[str, str | None]]:
    return ["--rank", rank, "--of", RANKS], {}


def by_slurm(rank: int) -> tuple[list[object], dict[str, str | None]]:
    return [], {"SLURM_JOB_ID": "7", "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(RANKS)}


def test_ranks_make_the_store_of_one_process(folder: Path, tmp_path: Path) -> None:
    """Kept columns, denied rows and a store like another are the same bytes; all ranks count the denied rows."""
    for source, chosen, out, share in (
        ("a.parquet", options(folder), "first", by_option),
        ("b.parquet", like(tmp_path / "first"), "second", by_slurm),
    ):
        processes = []
        for rank in range(RANKS):
            more, environment = share(rank)
            words = ["prepare", folder / "in" / source, *chosen, "--out", tmp_path / out, *more, "--json"]
            processes.append(start(*words, **environment))
        results = [end(process).result() for process in processes]
        assert differences(local_files(tmp_path / out), local_files(folder / out)) == []
        assert len({(result["documents"], result["skipped_rows"]) for result in results}) == 1
    store = tokenmill.open([tmp_path / "first", tmp_path / "second"])
    assert {skipped.reason for skipped in store.skipped()} == {DENIED}
    rows = len(DOCUMENTS) * REPEATS
    denied = {row for row in range(rows) if row % 4 == 1 or row == 8}
    kept = store.columns("id", "url").to_pylist()
    expected = [row for row in range(rows) if row not in denied | {2}] + [
        row for row in range(rows) if row not in denied
    ]
    assert [row["id"] for row in kept] == expected
    assert all("//host1." not in row["url"] for row in kept)


def test_a_killed_rank_with_kept_columns(folder: Path, tmp_path: Path) -> None:
    """A rank is killed while it works. The other one completes the store, which is that of one process."""
    words = ["prepare", folder / "in" / "a.parquet", *options(folder), "--out", tmp_path / "out", "--json"]
    ranks = [start(*words, "--rank", rank, "--of", RANKS) for rank in range(RANKS)]
    assert wait_until(lambda: len(part_files(tmp_path / "out")) > 3)
    os.killpg(ranks[1].pid, signal.SIGKILL)
    ended = [end(process) for process in ranks]
    assert ended[0].code == 0, ended[0].err
    assert differences(local_files(tmp_path / "out"), local_files(folder / "first")) == []


def test_ranks_in_a_bucket(folder: Path, s3: Bucket) -> None:
    """The same in an object store, where ranks have no lock; a store like it can be made of it."""
    words = ["prepare", folder / "in" / "a.parquet", *options(folder), "--out", f"{s3.url}/first", "--json"]
    for process in [start(*words, "--rank", rank, "--of", RANKS) for rank in range(RANKS)]:
        end(process).result()
    assert differences(s3.server.objects(f"{s3.url}/first"), local_files(folder / "first")) == []
    words = ["prepare", folder / "in" / "b.parquet", *like(f"{s3.url}/first"), "--out", f"{s3.url}/second"]
    assert command(*words, "--rank", 0, "--of", RANKS).code == 0
    assert differences(s3.server.objects(f"{s3.url}/second"), local_files(folder / "second")) == []


def test_ranks_with_other_options_are_refused(folder: Path, tmp_path: Path) -> None:
    """A rank that keeps other columns, or denies other rows, does not join the run."""
    words = ["prepare", folder / "in" / "a.parquet", "--out", tmp_path / "out", "--unit-bytes", "1", *TOKENIZER]
    deny = ("--deny", folder / "deny.jsonl")
    assert command(*words, "--keep", "id", *deny, "--rank", 0, "--of", 2).code == 0
    for other, name in ((("--keep", "url", *deny), "--keep"), (("--keep", "id"), "--deny")):
        refused = command(*words, *other, "--rank", 1, "--of", 2)
        assert refused.code == 1, refused.err
        assert name in refused.err
