"""The commands from end to end, on a disk, on the Hub and in a bucket: few and quick, for the oldest dependencies too.

CI runs these in an environment of the lowest versions that pyproject.toml allows, beside the usual one of the newest.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support import DATA
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.remote_runs import SMALL_UNITS, differences, local_files, prepared, tokenmill
from tests.support.servers.hub import Hub
from tests.support.servers.seaweed import Bucket

FORMATS = ("nanogpt", "megatron", "parquet", "litdata")
"""Those that use most of NumPy and PyArrow, beside mds and llmc."""

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def corpus(tmp_path: Path, documents: list[str]) -> Path:
    """Two Parquet files, with some row groups each."""
    for number in range(2):
        texts = [f"{number}: {text}" for text in documents]
        write_parquet(tmp_path / "corpus" / f"{number}.parquet", texts, row_group_size=8)
    return tmp_path / "corpus"


def succeed(*arguments: object) -> str:
    """What a command prints; it has to succeed."""
    ended = tokenmill(*arguments)
    assert ended.code == 0, ended.err
    return ended.out


def test_on_a_disk(tmp_path: Path, documents: list[str]) -> None:
    """Lines of JSON become a store by a tokenizer.json, which is exported, verified and described."""
    source, store = tmp_path / "corpus.jsonl", tmp_path / "store"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents), encoding="utf-8")
    to = [word for name in FORMATS for word in ("--to", name)]
    result = prepared(source, "--tokenizer", SMALL_JSON, "--out", store, *to, "--val", "none")
    assert result["documents"] == len(documents)
    assert len(np.fromfile(next(store.glob("**/nanogpt/**/*.bin")), np.uint16)) == result["tokens"]
    succeed("export", store, "--to", "mds", "--val", "none", "--sequence-tokens", "8", "--shuffle", "7", "--quiet")
    succeed("verify", store, "--all", "--quiet")
    succeed("report", store, "--quiet")
    assert "<html" in (store / "report.html").read_text(encoding="utf-8")


def test_from_the_hub_to_a_bucket(hub: Hub, s3: Bucket, corpus: Path, tmp_path: Path) -> None:
    """A store by a .tiktoken file, with its export, has the same bytes as from a disk to a disk."""
    hub.add("org/corpus", corpus)
    options = (*SMALL_UNITS, "--to", "llmc", "--shard-tokens", "500")
    prepared(corpus, *options, "--out", tmp_path / "local")
    prepared("hf://datasets/org/corpus", *options, "--out", f"{s3.url}/run")
    assert not differences(s3.server.objects(f"{s3.url}/run"), local_files(tmp_path / "local"))
    succeed("verify", f"{s3.url}/run", "--all", "--quiet")


@pytest.mark.skipif("TOKENMILL_OLDEST" not in os.environ, reason="only in the environment of the lowest versions")
def test_these_are_the_oldest_versions() -> None:
    """Each dependency has the lowest version that pyproject.toml allows: else this environment would prove nothing."""
    text = (DATA.parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    listed = text[text.index("dependencies = [") : text.index("all = [")]
    floors = dict(re.findall(r'"([A-Za-z_]+)>=([0-9.]+)', listed))
    assert {"click", "ray", "pyarrow", "tiktoken", "tokenizers"} <= floors.keys()
    for name, floor in floors.items():
        installed = importlib.metadata.version(name)
        assert f"{installed}.".startswith(f"{floor}."), f"{name} {installed} is not its lowest, {floor}"
