"""`--on ray` with --keep, --deny, --like, several stores and `erase` gives the bytes of local commands."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'tokenmill[ray]'")

from tests.support.documents import DOCUMENTS
from tests.support.remote_runs import SMALL_UNITS, Ended, differences, local_files, tokenmill

pytestmark = pytest.mark.timeout(400)

START_ATTEMPTS = 3
MAX_SECONDS = 120.0


@pytest.fixture
def on_ray(tmp_path: Path) -> Iterator[Callable[..., Ended]]:
    """Runs a command on a cluster of its own."""
    temporary = tempfile.mkdtemp(prefix="tm-ray-", dir="/tmp")  # a path of a socket has to be short
    usual = dict.fromkeys((name for name in os.environ if name.startswith("RAY_")), None)
    alone = {**usual, "RAY_TMPDIR": temporary, "RAY_enable_worker_prestart": "0", "HOME": str(tmp_path)}

    def run(*arguments: object) -> Ended:
        for _ in range(START_ATTEMPTS):  # Ray gives its node 30 s to start, which a busy machine may exceed
            ended = tokenmill(*arguments, "--on", "ray", "--quiet", seconds=MAX_SECONDS, **alone)
            if "error: Ray did not start on this machine" not in ended.err:
                break
        assert ended.code == 0, ended.err
        return ended

    yield run
    shutil.rmtree(temporary, ignore_errors=True)


def test_stores_that_grow_on_ray(on_ray: Callable[..., Ended], tmp_path: Path) -> None:
    """Two generations, an export of both, and an erasure in all of it, equal those of local commands."""
    sources = []
    for name in ("a", "b"):
        texts = [f"{name} {text}" for text in DOCUMENTS * 4]
        urls = [f"https://host{row % 4}.example/{name}/{row}" for row in range(len(texts))]
        sources.append(tmp_path / f"{name}.parquet")
        pq.write_table(pa.table({"text": texts, "url": urls}), sources[-1], row_group_size=8)
    deny = tmp_path / "deny.jsonl"
    deny.write_text(json.dumps({"column": "url", "host": "host1.example"}) + "\n")

    hosts = tmp_path / "hosts.txt"
    hosts.write_text("host2.example\n")

    def commands(out: Path) -> Iterator[tuple[object, ...]]:
        yield "prepare", sources[0], *SMALL_UNITS, "--keep", "url", "--deny", deny, "--out", out / "a"
        yield "prepare", sources[1], "--like", out / "a", "--unit-bytes", "1", "--out", out / "b"
        yield "export", out / "a", out / "b", "--to", "megatron", "--val", "0.1", "--out", out / "megatron"
        yield (
            "export",
            out / "a",
            out / "b",
            "--to",
            "llmc",
            "--shuffle",
            "7",
            "--shard-tokens",
            "900",
            "--out",
            out / "c",
        )

        yield "erase", out / "a", "--column", "url", "--hosts", hosts, "--request", "r"

    for command in commands(tmp_path / "local"):
        ended = tokenmill(*command, "--quiet")
        assert ended.code == 0, ended.err
    for command in commands(tmp_path / "ray"):
        on_ray(*command)
    for name in ("a", "b"):
        there, here = (local_files(tmp_path / place / name) for place in ("ray", "local"))
        found = differences(there, here)  # the records of exports elsewhere have their paths
        assert [file for file in found if not file.startswith(("exports/", "erasures"))] == []
    assert json.loads((tmp_path / "ray/a/erasures/r/result.json").read_text())["documents"] > 0
    for name in ("megatron", "c"):
        there, here = (local_files(tmp_path / place / name) for place in ("ray", "local"))
        shards = [file for file in here if not file.startswith(".tokenmill/")]
        assert shards
        assert {file: there[file] for file in shards} == {file: here[file] for file in shards}
    ended = tokenmill("verify", tmp_path / "ray" / "a", tmp_path / "ray" / "b", "--all", "--quiet")
    assert ended.code == 0, ended.err
