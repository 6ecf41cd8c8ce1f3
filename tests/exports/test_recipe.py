"""Exports by recipe: the tokens of each source to the document, copies as asked, shuffled, the same every time."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from benchmarks.synthetic import Shape, make_store
from tests.support.command import run
from tests.support.corpora import SMALL_TIKTOKEN, write_parquet
from tests.support.export_model import END, read_back
from tokenmill.errors import JobChanged, UsageError

STAGE = {"sequence_tokens": 32, "batch_sequences": 2, "tokens": {"a": "1.5x", "b": "2.25x", "c": "0.3x"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three stores of different documents; the text of a document names its store and row."""
    folder = tmp_path_factory.mktemp("recipe")
    for seed, name in enumerate("abc"):
        rng = random.Random(seed)
        texts = [f"{name} {row} " + "".join(rng.choices("etaoin", k=rng.choice([3, 40, 200]))) for row in range(150)]
        source = write_parquet(folder / f"{name}.parquet", list(texts), 20)
        tokenmill.prepare(source, tokenizer=SMALL_TIKTOKEN, eot=END, out=str(folder / name), unit_bytes=2000, workers=1)
    return folder


def write(folder: Path, **keys: Any) -> Path:
    sources = {"a": {"store": "a", "repeat": 2}, "b": {"store": "b", "repeat": 3}, "c": "c"}
    path = folder / f"{'-'.join(keys) or 'plain'}.json"
    path.write_text(json.dumps({"grain": 32, "seed": 3, "sources": sources, "stages": [STAGE]} | keys))
    return path


def documents(out: Path, to: str) -> dict[str, list[tuple[int, ...]]]:
    """The documents of each split, in order."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for split, shards in read_back(out, to).items():
        for tokens, lengths in shards:
            assert lengths is not None
            edges = np.cumsum(lengths)[:-1]
            found.setdefault(split, []).extend(tuple(one.tolist()) for one in np.split(tokens, edges))
    return found


def expected_tokens(path: Path) -> dict[str, int]:
    return {one.source: one.tokens for one in tokenmill.mix(path).sources}


def test_each_source_has_its_tokens_to_the_document(folder: Path, tmp_path: Path) -> None:
    """Tokens are those that the loader reads, less than a document apart; copies are as asked."""
    path = write(folder)
    result = tokenmill.export(path, to="parquet", out=tmp_path / "out")
    found = Counter(documents(tmp_path / "out", "parquet")["train"])
    for name, wanted in expected_tokens(path).items():
        own = [tuple(document.tolist()) for document in tokenmill.open(folder / name)]
        assert len(set(own)) == len(own)
        copies = [found.pop(document, 0) for document in own]
        tokens = sum(count * len(document) for count, document in zip(copies, own, strict=True))
        assert tokens == result.sources[name]
        assert wanted - max(map(len, own)) < tokens <= wanted
        whole = wanted // sum(map(len, own))
        assert set(copies) == {whole, whole + 1}
    assert not found
    assert sum(result.sources.values()) == result.splits["train"].tokens


def test_formats_hold_the_same_documents(folder: Path, tmp_path: Path) -> None:
    """Megatron, nanogpt and Parquet hold one stream, shuffled over all sources and copies, the same every time."""
    path = write(folder)
    for to in ("parquet", "megatron", "nanogpt"):
        tokenmill.export(path, to=to, out=tmp_path / to)
    parquet, megatron = (documents(tmp_path / to, to)["train"] for to in ("parquet", "megatron"))
    assert parquet == megatron
    flat = [token for document in parquet for token in document]
    assert (
        np.concatenate([tokens for tokens, _ in read_back(tmp_path / "nanogpt", "nanogpt")["train"]]).tolist() == flat
    )
    tokenmill.export(path, to="parquet", out=tmp_path / "again", memory="2GB", workers=2)
    assert documents(tmp_path / "again", "parquet")["train"] == parquet
    own = {tuple(document.tolist()) for document in tokenmill.open(folder / "a")}
    places = [index for index, document in enumerate(parquet) if document in own]
    assert 0.4 < np.mean(places) / len(parquet) < 0.6


def test_validation_documents_are_there_once(folder: Path, tmp_path: Path) -> None:
    """`val` of the recipe holds out documents of all sources, in one copy."""
    path = write(folder, val=0.2)
    tokenmill.export(path, to="parquet", out=tmp_path / "out")
    found = documents(tmp_path / "out", "parquet")
    assert max(Counter(found["val"]).values()) == 1
    assert not set(found["val"]) & set(found["train"])
    held_out = set()
    for name in "abc":
        tokenmill.export(folder / name, to="parquet", val=0.2, out=tmp_path / name)
        held_out |= set(documents(tmp_path / name, "parquet")["val"])
    assert set(found["val"]) == held_out


def test_locate_and_verify(folder: Path, tmp_path: Path) -> None:
    """`locate` names the store, source and row behind tokens of the export; `verify` compares it with its stores."""
    out = tmp_path / "out"
    tokenmill.export(write(folder), to="nanogpt", out=out)
    tokens = np.fromfile(out / "train.bin", np.uint16)
    for token in range(0, len(tokens), 2999):
        (document,) = tokenmill.locate(out / "train.bin", token).documents
        store = tokenmill.open(document.store)
        assert store[document.document][document.offset] == tokens[token]
        assert document.source.endswith(f"/{Path(document.store).name}.parquet")
    tokenmill.verify(out)


def test_a_changed_recipe_is_another_export(folder: Path, tmp_path: Path) -> None:
    """The recipe is part of the job; the same recipe finds its shards."""
    out = tmp_path / "out"
    tokenmill.export(write(folder), to="nanogpt", out=out)
    assert tokenmill.export(write(folder), to="nanogpt", out=out).shards_done_now == 0
    changed = write(folder, stages=[STAGE | {"tokens": {"a": "1x", "b": "2x"}}])
    with pytest.raises(JobChanged):
        tokenmill.export(changed, to="nanogpt", out=out)


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    """A recipe needs a directory for its files, and has its own split."""
    with pytest.raises(UsageError, match="needs out="):
        tokenmill.export(write(folder), to="nanogpt")
    with pytest.raises(UsageError, match="val is given with a recipe"):
        tokenmill.export(write(folder), to="nanogpt", out=tmp_path, val=0.1)


def test_the_command(folder: Path, tmp_path: Path) -> None:
    """The command shows the tokens of each source."""
    shown = run("export", write(folder), "--to", "nanogpt", "--out", tmp_path / "out").stdout
    assert shown.count("source       ") == 3


MEASURE = """
import json, resource, sys, tokenmill
tokenmill.mix(sys.argv[1])  # imports, and opens the stores
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
tokenmill.export(sys.argv[1], to="nanogpt", out=sys.argv[2], workers=1, memory="700MB")
kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
own, children = (resource.getrusage(kind).ru_maxrss << 10 for kind in kinds)
print(json.dumps([own - (before << 10), children]))
"""


def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    """An export of half a million documents grows by less than all of them take; a worker keeps its limit."""
    make_store(str(tmp_path / "a"), 2_000_000, shape=Shape(200_000, 4), processes=False)
    stage = STAGE | {"tokens": {"a": "1.5x"}}
    path = write(tmp_path, sources={"a": {"store": "a", "repeat": 2}}, stages=[stage])
    ended = subprocess.run(
        [sys.executable, "-c", MEASURE, path, tmp_path / "out"], capture_output=True, text=True, check=True
    )
    grown, worker = json.loads(ended.stdout.splitlines()[-1])
    assert grown < 20e6  # the hashes, lengths, sources and rows of all documents are 14 MB, and their sort needs more
    assert worker < 350e6


# The export.json of the last version without exports by recipe.
