"""The labels of stores with segments: -100 for each token that is not trained on, in every order, packing and place."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from benchmarks.loader_remote import upload
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.inline_executor import InlineExecutor
from tests.support.segmented import prepare_store
from tests.support.servers.seaweed import Bucket
from tokenmill.executors import terminal
from tokenmill.store.reader import Store
from tokenmill.training.batches import IGNORED

FIELDS: Any = ["input_ids", "labels", "loss_mask", "trained_tokens"]
SHAPE: dict[str, Any] = {"sequence_tokens": 32, "grain": 64, "batch_sequences": 4, "seed": 5}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_store(tmp_path_factory.mktemp("masks"))


def trained_tokens(store: Store) -> np.ndarray:
    """Whether each token of a store is trained on."""
    mask, start = np.zeros(store.token_count, bool), 0
    for position in range(len(store)):
        for begin, end in store.trained(position) or []:
            mask[start + begin : start + end] = True
        start += len(store[position])
    return mask


def check(loader: Any, store: Store, steps: int) -> int:
    """Compare the labels of some steps with the store, token by token. Returns how many are learned."""
    mask, tokens = trained_tokens(store), store.tokens(0, store.token_count)
    starts = {store.start_of(position) for position in range(len(store))}
    is_packed, learned = loader.options.packing == "best-fit", 0
    for step in range(steps):
        batch = loader[step]
        labels = batch["labels"]
        assert np.array_equal(batch["loss_mask"], labels != IGNORED)
        assert np.array_equal(batch["trained_tokens"], (labels != IGNORED).sum(axis=1))
        for row, place in np.ndindex(labels.shape):
            _, position = loader.reader.locate(step * len(labels) + row, place)
            assert batch["input_ids"][row, place] == tokens[position]
            following = position + 1
            is_learned = mask[following] and not (is_packed and following in starts)
            assert labels[row, place] == (tokens[following] if is_learned else IGNORED)
            learned += is_learned
    return learned


@pytest.mark.parametrize("shuffle", ["none", "full"])
@pytest.mark.parametrize("packing", ["concat", "best-fit"])
@pytest.mark.parametrize("val", [None, 0.2])
def test_labels_are_those_that_are_trained_on(store: Path, shuffle: Any, packing: Any, val: float | None) -> None:
    loader = tokenmill.loader(str(store), **SHAPE, shuffle=shuffle, packing=packing, val=val, fields=FIELDS)
    opened = tokenmill.open(store)
    if val is None:
        assert check(loader, opened, min(len(loader), 20)) > 500
        return
    # With a split, the token after a document may be of another one: compare where the label is learned.
    mask, tokens = trained_tokens(opened), opened.tokens(0, opened.token_count)
    for step in range(min(len(loader), 10)):
        batch = loader[step]
        for row, place in zip(*np.nonzero(batch["loss_mask"][:, :-1]), strict=True):
            _, following = loader.reader.locate(step * 4 + int(row), int(place) + 1)
            assert mask[following]
            assert batch["labels"][row, place] == tokens[following]


def test_the_command_shows_what_is_trained_on(store: Path) -> None:
    """Between marks where there are no colors: exactly the tokens whose labels the row has."""
    settings = ["--sequence-tokens", "32", "--grain", "64", "--batch-sequences", "2", "--seconds", "0", "--step", "3"]
    shown = run("loader", str(store), *settings).stdout
    batch = tokenmill.loader(str(store), sequence_tokens=32, grain=64, batch_sequences=2)[3]
    opened = tokenmill.open(store)
    for tokens, mask in zip(batch["input_ids"].tolist(), batch["labels"] != IGNORED, strict=True):
        marked = zip(tokens, [False, *mask[:-1].tolist()], strict=True)
        runs = itertools.groupby(marked, key=lambda pair: pair[1])
        for is_trained, run_tokens in runs:
            text = b"".join(opened.token_bytes(token) for token, _ in run_tokens).decode(errors="replace")
            assert (f"{{+{terminal.printable(text)}+}}" if is_trained else terminal.printable(text)) in shown
    assert "in color below" in shown
    facts = json.loads(run("loader", str(store), *settings, "--json").stdout)
    assert ["".join(piece["text"] for piece in row) for row in facts["pieces"]] == facts["rows"]
    assert json.loads(run("loader", str(store), *settings, "--fields", "tokens", "--json").stdout)["pieces"] is None
    colored = run("loader", str(store), *settings, FORCE_COLOR="1").stdout
    assert colored.count("{+") == 1  # the line that says what the colors mean
    assert "\x1b[" in colored


def test_masks_of_a_store_in_a_bucket(store: Path, s3: Bucket) -> None:
    """Read by ranges: the batches are those of the local store."""
    upload(s3.server, str(store), f"{s3.url}/store")
    for packing in ("concat", "best-fit"):
        options: dict[str, Any] = {**SHAPE, "packing": packing, "fields": FIELDS, "shuffle": "full"}
        local, remote = tokenmill.loader(str(store), **options), tokenmill.loader(f"{s3.url}/store", **options)
        for _, one, other in zip(range(10), local, remote, strict=False):
            for name in FIELDS:
                assert np.array_equal(one[name], other[name])


def test_a_plain_store_and_one_with_segments_are_mixed(store: Path, tmp_path: Path) -> None:
    """All tokens of the plain store are learned."""
    texts = [f"document {number} " * (number % 9 + 1) for number in range(300)]
    source = write_parquet(tmp_path / "plain.parquet", texts)
    plain = tokenmill.prepare(
        source, tokenizer=SMALL_JSON, out=str(tmp_path / "plain"), workers=1, executor=InlineExecutor()
    )
    both = [str(store), plain.directory]
    loader = tokenmill.loader(both, **SHAPE, fields=[*FIELDS, "source_ids"])
    seen = np.zeros((2, 2), np.int64)
    for step in range(len(loader)):
        batch = loader[step]
        for source_id in (0, 1):
            learned = batch["loss_mask"][batch["source_ids"] == source_id]
            seen[source_id] += (int(learned.sum()), int((~learned).sum()))
    assert seen[1, 1] == 0 < seen[1, 0]
    assert seen[0].min() > 100


def test_erased_documents_are_not_learned(store: Path, tmp_path: Path) -> None:
    """In a loader that was opened before, and in one that is opened afterwards."""
    copy = shutil.copytree(store, tmp_path / "store")
    options: dict[str, Any] = {**SHAPE, "fields": FIELDS, "shuffle": "none"}
    before = sum(int(batch["trained_tokens"].sum()) for batch in tokenmill.loader(str(copy), **options))
    tokenmill.erase(str(copy), column="id", values=[str(n) for n in range(50)], executor=InlineExecutor())
    after = sum(int(batch["trained_tokens"].sum()) for batch in tokenmill.loader(str(copy), **options))
    assert 0 < after < before
