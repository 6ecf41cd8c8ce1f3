"""Another package adds a format by an entry point of the group `tokenmill.formats`."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.support.command import process
from tests.support.corpora import SMALL_JSON, write_parquet

MODULE = '''
"""Tokens as JSON: one list of ids for each document."""

import json
import numpy as np

from tokenmill.token_files.files import no_index, publish
from tokenmill.token_files.protocol import FileLayout, FormatSpec, ScriptDefaults, ShardData

SPEC = FormatSpec(
    name="json-ids",
    trainer="a trainer of JSON",
    files="train-0.json",
    dtypes=("uint16", "uint32"),
    cuts=False,
    use="read {train}",
    defaults=ScriptDefaults(end="appended", shard_tokens=1000),
    layout=FileLayout(states_type=False),
)
finish = no_index


def files(shard):
    return (f"{shard.split}-{shard.number}.json",)


def write(folder, shard, content):
    tokens = np.concatenate(list(content.batches)) if content.tokens else np.zeros(0, np.uint16)
    documents = np.split(tokens, np.cumsum(content.lengths)[:-1])
    name = files(shard)[0]
    with publish(folder, name) as file:
        file.write(json.dumps([document.tolist() for document in documents]).encode())
    return (file.written,)


def read(folder, names, dtype):
    documents = json.loads(folder.read(names[0]))
    lengths = np.array([len(document) for document in documents], np.int64)
    return ShardData(np.array([token for document in documents for token in document], dtype), lengths)
'''


def installed_package(directory: Path) -> Path:
    """A directory as pip would leave it after it has installed the package."""
    metadata = directory / "json_ids-1.0.dist-info"
    metadata.mkdir(parents=True)
    (directory / "json_ids.py").write_text(MODULE)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: json-ids\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[tokenmill.formats]\njson-ids = json_ids\nnanogpt = json_ids\n")
    return directory


def test_a_format_of_another_package_is_like_any_other(tmp_path: Path) -> None:
    """The commands export to it, list it, verify it and find its tokens. It does not replace a format of tokenmill."""
    path = os.pathsep.join([str(installed_package(tmp_path / "site")), os.environ.get("PYTHONPATH", "")])
    source = write_parquet(tmp_path / "a.parquet", [f"document {number}" for number in range(300)])
    store = tmp_path / "store"
    process("prepare", source, "-t", SMALL_JSON, "--out", store, "--to", "json-ids", "--to", "nanogpt", PYTHONPATH=path)
    exported = [json.loads(file.read_text()) for file in sorted((store / "json-ids").glob("train-*.json"))]
    assert sum(map(len, exported)) == 300
    written = sum(file.stat().st_size for file in (store / "nanogpt").glob("*.bin"))
    assert written == 2 * sum(len(ids) for file in exported for ids in file)
    listed = process("formats", PYTHONPATH=path).stdout
    assert "json-ids" in listed
    assert "nanoGPT" in listed
    assert '"json-ids"' in process("verify", store, "--json", PYTHONPATH=path).stdout

    missing = process("export", store, "--to", "json-ids", code=2).stderr
    assert "there is no format 'json-ids'" in missing
