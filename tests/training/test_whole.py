"""Rows of whole documents: none is cut, each is in one row of an epoch, and the rest of a row is padding."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tokenmill
from benchmarks.loader_remote import upload
from benchmarks.synthetic import Shape, make_store
from tests.support.command import run
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.inline_executor import InlineExecutor
from tests.support.segmented import prepare_store
from tests.support.servers.seaweed import Bucket
from tokenmill.errors import UsageError
from tokenmill.training import packing as packing_module
from tokenmill.training import rows as rows_module
from tokenmill.training.batches import IGNORED
from tokenmill.training.packing import pack_whole

ALL: Any = ["input_ids", "labels", "position_ids", "cu_seqlens", "document_ids", "loss_mask", "trained_tokens"]
WHOLE: dict[str, Any] = {"sequence_tokens": 128, "batch_sequences": 4, "seed": 5, "packing": "whole", "fields": ALL}


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 1,024 tokens: documents lie across their edges, and across those of parts."""
    monkeypatch.setattr(rows_module, "WINDOW_SEQUENCES", 8)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_store(tmp_path_factory.mktemp("whole"), 300)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of texts with the tokenizer of the other one. Some are longer than a sequence."""
    work = tmp_path_factory.mktemp("plain")
    texts = [f"document {number} " * (number * 7 % 30 + 1) for number in range(300)]
    source = write_parquet(work / "plain.parquet", texts)
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=str(work / "store"), executor=InlineExecutor())
    return work / "store"


def documents_of(loader: tokenmill.Loader, rows: range) -> Counter[int]:
    """The documents of some rows, each compared with the store: all of its tokens, and the labels of its mask."""
    store, seen = tokenmill.open(loader.stores), Counter[int]()
    length = loader.options.sequence_tokens
    pad = store.run.erased_token if len(loader.stores) == 1 else None
    for row in rows:
        batch = loader.reader.rows(row, row + 1)
        flat = {name: batch[name].reshape(-1) for name in ALL}
        edges = np.unique(flat["cu_seqlens"])
        assert edges[0] == 0
        assert edges[-1] == length
        assert np.array_equal(flat["loss_mask"], flat["labels"] != IGNORED)
        assert flat["trained_tokens"][0] == flat["loss_mask"].sum()
        for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            (number,) = np.unique(flat["document_ids"][low:high]).tolist()
            tokens, labels = flat["input_ids"][low:high], flat["labels"][low:high]
            assert np.array_equal(flat["position_ids"][low:high], np.arange(high - low))
            if number < 0:  # padding is last
                assert high == length
                assert (labels == IGNORED).all()
                assert pad is None or (tokens == pad).all()
                continue
            document = store[number].astype(np.int64)
            assert np.array_equal(tokens, document)
            learned = np.ones(len(document), bool)
            trained = store.trained(number)
            if trained is not None:
                learned[:] = False
                for begin, end in trained:
                    learned[begin:end] = True
            assert np.array_equal(labels, np.append(np.where(learned, document, IGNORED)[1:], IGNORED))
            seen[number] += 1
    return seen


def check_epochs(loader: tokenmill.Loader, expected: set[int], epochs: int = 2) -> None:
    """Every epoch has each expected document once."""
    for epoch in range(epochs):
        seen = documents_of(loader, range(epoch * loader.sequences, (epoch + 1) * loader.sequences))
        assert set(seen) == expected
        assert set(seen.values()) == {1}


def fitting(directories: list[str], length: int) -> set[int]:
    """The documents that fit into a sequence."""
    store = tokenmill.open(directories)
    return {number for number in range(len(store)) if 0 < len(store[number]) <= length}


@pytest.mark.parametrize("shuffle", ["none", "full", "window"])
def test_each_document_is_in_one_row_of_an_epoch(store: str, shuffle: Any) -> None:
    """Also those at the edges of windows and parts, and the last ones; those that are too long are counted."""
    loader = tokenmill.loader(store, **WHOLE, shuffle=shuffle)
    opened, expected = tokenmill.open(store), fitting([store], 128)
    check_epochs(loader, expected, 2 if shuffle == "full" else 1)
    lengths = np.array([len(opened[number]) for number in range(len(opened))])
    long = lengths[lengths > 128]
    assert len(long) > 10
    waste = loader.waste
    assert (waste.long_documents, waste.long_tokens) == (len(long), long.sum())
    assert waste.padding_tokens == loader.sequences * 128 - lengths[lengths <= 128].sum()
    assert loader.tail_tokens == 0
    assert loader.tokens == loader.sequences * 128


def test_several_stores_and_a_mask(plain: Path, masked: Path) -> None:
    """Each store is packed by itself."""
    both = [str(masked), str(plain)]
    check_epochs(tokenmill.loader(both, **WHOLE), fitting(both, 128), 1)


@pytest.mark.parametrize("split", ["train", "val"])
def test_the_documents_of_a_split(store: str, split: Any) -> None:
    """Train and val have each document in one of both."""
    loaders = [tokenmill.loader(store, **WHOLE, val=0.2, split=split) for split in ("train", "val")]
    seen = [set(documents_of(loader, range(loader.sequences))) for loader in loaders]
    assert not seen[0] & seen[1]
    assert seen[0] | seen[1] == fitting([store], 128)
    check_epochs(tokenmill.loader(store, **WHOLE, val=0.2, split=split), seen[split == "val"], 1)


def test_windows_of_the_real_size(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of larger windows less is padding. Best-fit has no padding, and cuts."""
    small = tokenmill.loader(store, **WHOLE)
    monkeypatch.setattr(rows_module, "WINDOW_SEQUENCES", packing_module.WINDOW_SEQUENCES)
    loader = tokenmill.loader(store, **WHOLE)
    check_epochs(loader, fitting([store], 128), 1)
    assert loader.waste.padding_tokens / loader.tokens < 0.03 < small.waste.padding_tokens / small.tokens
    assert tokenmill.loader(store, **WHOLE | {"packing": "best-fit"}).waste.padding_tokens == 0


def test_the_table_is_kept(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of the windows are counted once, and again if the table is damaged or of something else."""
    copy = shutil.copytree(store, tmp_path / "store")
    shutil.rmtree(copy / "splits", ignore_errors=True)
    expected = tokenmill.loader(str(copy), **WHOLE)[3]
    (table,) = (copy / "splits").iterdir()
    assert table.name == "whole-128-train-val-none.parquet"
    content, written = table.read_bytes(), table.stat().st_mtime_ns
    assert np.array_equal(tokenmill.loader(str(copy), **WHOLE)[3]["input_ids"], expected["input_ids"])
    assert table.stat().st_mtime_ns == written
    tokenmill.loader(str(copy), **WHOLE | {"sequence_tokens": 96})
    for wrong in (content[:-9], (copy / "splits" / "whole-96-train-val-none.parquet").read_bytes()):
        table.write_bytes(wrong)
        assert np.array_equal(tokenmill.loader(str(copy), **WHOLE)[3]["input_ids"], expected["input_ids"])
        assert table.read_bytes() == content
    monkeypatch.setattr(rows_module, "WINDOW_SEQUENCES", 16)
    tokenmill.loader(str(copy), **WHOLE)
    assert table.read_bytes() != content


def test_state_is_one_number(store: str) -> None:
    """Resumed with other ranks, a training goes on with the rows that come next."""
    loader = tokenmill.loader(store, **WHOLE)
    for _ in zip(range(7), loader, strict=False):
        state = loader.state_dict()
    assert state["sequences"] == 28
    resumed = [tokenmill.loader(store, **WHOLE, rank=rank, world_size=2) for rank in (0, 1)]
    for one in resumed:
        one.load_state_dict(state)
    rows = np.concatenate([next(iter(one))["input_ids"] for one in resumed])
    assert np.array_equal(rows, loader[7]["input_ids"])
    for changed in ({"packing": "best-fit"}, {"sequence_tokens": 64}):
        with pytest.raises(UsageError):
            tokenmill.loader(store, **WHOLE | changed).load_state_dict(state)


def test_batches_of_a_bucket(masked: Path, s3: Bucket) -> None:
    """Read by ranges: the batches are those of the local store."""
    upload(s3.server, str(masked), f"{s3.url}/whole")
    local, remote = tokenmill.loader(str(masked), **WHOLE), tokenmill.loader(f"{s3.url}/whole", **WHOLE)
    assert local.waste == remote.waste
    for one, other in zip(local, remote, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in ALL)


def test_erased_documents_are_not_learned(masked: Path, tmp_path: Path) -> None:
    """They keep their place: all other rows are as they were, in the loader that is open and in another one."""
    copy = str(shutil.copytree(masked, tmp_path / "store"))
    loader = tokenmill.loader(copy, **WHOLE)
    before = [loader[step] for step in range(len(loader))]
    tokenmill.erase(copy, column="id", values=[str(n) for n in range(50)], executor=InlineExecutor())
    opened = tokenmill.open(copy)
    erased = {number for number in range(len(opened)) if not opened.trained(number)}  # and those that had no span
    again = tokenmill.loader(copy, **WHOLE)
    for step, old in enumerate(before):
        new = again[step]
        assert np.array_equal(new["document_ids"], old["document_ids"])
        is_erased = np.isin(new["document_ids"], list(erased))
        assert (new["labels"][is_erased] == IGNORED).all()
        assert np.array_equal(new["labels"][~is_erased], old["labels"][~is_erased])
    assert sum(int(old["loss_mask"].sum()) for old in before) > sum(
        int(again[step]["loss_mask"].sum()) for step in range(len(again))
    )


RECIPE = """packing = "whole"
[sources]
chat = "{chat}"
web = "{web}"
[[stages]]
sequence_tokens = 128\nbatch_sequences = 4\ntokens = 12_800\nweights = {{ chat = 1, web = 1 }}
[[stages]]
sequence_tokens = 128\nbatch_sequences = 2\ntokens = {{ chat = "all", web = "all" }}
"""


def test_a_recipe(plain: Path, masked: Path, tmp_path: Path) -> None:
    """All stages together have each document once; `mix` says what is left out."""
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.format(chat=masked, web=plain))
    loader = tokenmill.loader(recipe, fields=ALL)
    expected = fitting(loader.stores, 128)
    seen = Counter[int]()
    for step in range(len(loader)):
        numbers = loader[step]["document_ids"]
        seen.update(number for row in numbers for number in np.unique(row[row >= 0]).tolist())
    rest = sum(one.left_tokens for one in tokenmill.mix(recipe).sources) // 128
    assert rest < 2  # less than a batch
    assert set(seen.values()) == {1}
    assert expected >= set(seen)
    assert len(expected) - len(seen) <= 64 * rest
    totals = {one.source: one for one in tokenmill.mix(recipe).sources}
    assert totals["web"].long_documents > 10
    assert totals["web"].long_tokens > 1280
    assert totals["chat"].padding_tokens > 0
    assert sum(one.long_documents for one in totals.values()) == loader.waste.long_documents
    shown = run("mix", str(recipe)).stdout
    assert "longer than a sequence" in shown
    assert "of the positions are padding" in shown
    recipe.write_text(f"grain = 256\n{recipe.read_text()}")
    with pytest.raises(UsageError, match="Leave out grain"):
        tokenmill.loader(recipe)


def test_the_command_says_what_is_left_out(store: str) -> None:
    settings = ["--sequence-tokens", "128", "--packing", "whole", "--seconds", "0"]
    waste = tokenmill.loader(store, sequence_tokens=128, packing="whole").waste
    shown = run("loader", store, *settings).stdout
    assert f"{waste.long_documents:,} documents of {waste.long_tokens:,} tokens, longer than a sequence" in shown
    assert "of the positions are padding" in shown
    facts = json.loads(run("loader", store, *settings, "--json").stdout)
    assert facts["long_documents"] == waste.long_documents
    assert facts["padding_tokens"] == waste.padding_tokens
    assert facts["documents"]["whole"] == 1


def test_refused(store: str, tmp_path: Path) -> None:
    """A grain of several sequences, `tokens`, padding in `locate`, and a store without a document that fits."""
    with pytest.raises(UsageError, match="a grain of 256 tokens with packing whole"):
        tokenmill.loader(store, **WHOLE, grain=256)
    with pytest.raises(UsageError, match="packed rows have no field tokens"):
        tokenmill.loader(store, **WHOLE | {"fields": ["tokens"]})
    loader = tokenmill.loader(store, **WHOLE)
    step, row, position = (int(place[0]) for place in np.nonzero(stacked(loader, "document_ids") < 0))
    with pytest.raises(UsageError, match="it is padding"):
        loader.locate(step, row, position)
    assert loader.locate(step, row, 0)[0] == store
    make_store(str(tmp_path / "long"), 3000, shape=Shape(10_000, 900), processes=False)
    with pytest.raises(UsageError, match="all documents are longer than a sequence of 2 tokens"):
        tokenmill.loader(str(tmp_path / "long"), **WHOLE | {"sequence_tokens": 2})


def stacked(loader: tokenmill.Loader, field: str) -> np.ndarray:
    """A field of the first batches."""
    return np.stack([loader[step][field] for step in range(20)])


def brute_force(lengths: list[int], size: int) -> list[list[int]]:
    """Best-fit decreasing as it is defined: the row with the least space that is enough, else a new row."""
    rows: list[list[int]] = []
    for document in sorted(range(len(lengths)), key=lambda document: -lengths[document]):
        spaces = [size - sum(lengths[other] for other in row) for row in rows]
        enough = [(space, number) for number, space in enumerate(spaces) if space >= lengths[document]]
        if enough:
            rows[min(enough)[1]].append(document)
        else:
            rows.append([document])
    return rows


@pytest.mark.parametrize("first", range(0, 400, 100))
def test_packing_is_best_fit_by_brute_force(first: int) -> None:
    for seed in range(first, first + 100):
        check_packing(seed)


def check_packing(seed: int) -> None:
    """Compare the rows of random documents."""
    random = np.random.default_rng(seed)
    size = int(random.integers(1, 40))
    lengths = random.integers(1, size + 1, random.integers(0, 60))
    starts = np.cumsum(np.append(0, lengths + random.integers(0, 5, len(lengths))))[:-1]
    packed = pack_whole(starts, lengths, size)
    rows = [
        [
            (start, length)
            for start, length in zip(packed.starts[low:high].tolist(), packed.lengths[low:high].tolist(), strict=True)
        ]
        for low, high in zip(packed.edges[:-1], packed.edges[1:], strict=True)
    ]
    expected = [[(int(starts[one]), int(lengths[one])) for one in row] for row in brute_force(lengths.tolist(), size)]
    assert [[piece for piece in row if piece[0] >= 0] for row in rows] == expected
    for row in rows:
        assert sum(length for _, length in row) == size
        assert all(start >= 0 for start, _ in row[:-1])
        assert all(length for _, length in row)
    assert packed.is_end.all()
