"""Recipes over stores in a bucket: the table, the batches and the exports of the local stores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON
from tests.support.servers.seaweed import Bucket
from tests.support.small_stores import prepare

STAGES = [
    {"sequence_tokens": 16, "batch_sequences": 4, "tokens": 1600, "weights": {"web": 3, "german": 1}},
    {"sequence_tokens": 64, "batch_sequences": 2, "tokens": {"web": "all", "german": "1x"}},
]


def write_source(path: Path, word: str) -> str:
    texts = [f"{word} {row} " + "says little " * (row % 17) for row in range(240)]
    languages = [("de", "en", "fr")[row % 3] for row in range(240)]
    pq.write_table(pa.table({"text": texts, "language": languages}), path, row_group_size=60)
    return str(path)


def write_recipe(path: Path, web: str, german: str) -> Path:
    sources = {"web": web, "german": {"store": german, "where": "language = 'de'", "repeat": 2}}
    path.write_text(json.dumps({"grain": 64, "val": 0.1, "sources": sources, "stages": STAGES}))
    return path


@pytest.fixture
def recipes(s3: Bucket, tmp_path: Path) -> tuple[Path, Path]:
    """A recipe over stores on the disk, and one over the same stores in a bucket."""
    keys: dict[str, Any] = {"tokenizer": SMALL_JSON, "unit_bytes": 1, "workers": 1, "keep": "language"}
    for name in ("web", "german"):
        source = write_source(tmp_path / f"{name}.parquet", name)
        prepare(source, tmp_path / name, keep="language")
        tokenmill.prepare(source, out=f"{s3.url}/{name}", **keys)
    here = write_recipe(tmp_path / "here.json", "web", "german")
    return here, write_recipe(tmp_path / "there.json", f"{s3.url}/web", f"{s3.url}/german")


@pytest.mark.timeout(180)
def test_a_recipe_over_a_bucket_is_the_local_one(s3: Bucket, recipes: tuple[Path, Path], tmp_path: Path) -> None:
    """`mix`, the loader and `export` give what they give for the same stores on a disk."""
    here, there = (tokenmill.mix(path) for path in recipes)
    assert here.stages == there.stages
    assert [one.stores for one in there.sources] == [[f"{s3.url}/german"], [f"{s3.url}/web"]]
    local, remote = (tokenmill.loader(path, rank=0, world_size=1) for path in recipes)
    assert local.state_dict() == remote.state_dict()
    steps = 0
    for expected, batch in zip(local, remote, strict=True):
        assert all(np.array_equal(expected[name], batch[name]) for name in expected)
        steps += 1
    assert steps == here.steps
    changed = json.loads(recipes[1].read_text())
    changed["stages"][1]["tokens"]["web"] = "0.5x"
    (tmp_path / "changed.json").write_text(json.dumps(changed))
    compared = tokenmill.mix(recipes[0], tmp_path / "changed.json", step=here.stages[0].steps)
    assert compared.takes_over
    tokenmill.export(recipes[0], to="megatron", out=tmp_path / "out", workers=1)
    tokenmill.export(recipes[1], to="megatron", out=f"{s3.url}/out", workers=1)
    bucket = s3.server.store(s3.url)
    for path in sorted((tmp_path / "out").glob("[!.]*")):
        assert bytes(bucket.get(f"out/{path.name}").bytes()) == path.read_bytes(), path.name
    tokenmill.verify(f"{s3.url}/out")
    found = tokenmill.locate(f"{s3.url}/out/{next((tmp_path / 'out').glob('*train*.bin')).name}", 7)
    assert found.documents[0].store.startswith(s3.url)
