"""`--val split:NAME` holds out the documents of a split of the sources, in exports, loaders and recipes alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import tokenmill
from tests.support import command
from tests.support.corpora import SMALL_TIKTOKEN
from tokenmill.errors import UsageError
from tokenmill.store.reader import Store

END = 1199
VAL = "split:validation"
SPLITS = ("train", "validation", "test")


def prepare(source: Path, out: Path, **options: Any) -> str:
    """The directory of a store of this source."""
    given: dict[str, Any] = {"tokenizer": SMALL_TIKTOKEN, "eot": END, "workers": 1, "engine": "tiktoken", **options}
    return tokenmill.prepare(source, out=out, **given).directory


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JSON Lines in the layout of the Hub: documents whose text has the name of their split."""
    folder = tmp_path_factory.mktemp("dataset")
    for split in SPLITS:
        lines = [json.dumps({"text": f"{split} {number}"}) for number in range(40)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def store(dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of train and validation."""
    return prepare(dataset, tmp_path_factory.mktemp("store") / "store", split=["train", "validation"])


def by_split(store: str) -> dict[str, list[tuple[int, ...]]]:
    """The documents of a store by the split of their source."""
    opened = Store(store)
    found: dict[str, list[tuple[int, ...]]] = {}
    for number in range(len(opened)):
        document = opened.document(number)
        name = Path(document.source).stem
        found.setdefault(name, []).append(tuple(document.tokens.tolist()))
    return found


def in_file(path: Path) -> list[tuple[int, ...]]:
    """The documents of a nanoGPT file, in order."""
    tokens = np.fromfile(path, np.uint16)
    pieces = np.split(tokens, np.flatnonzero(tokens == END) + 1)
    return [tuple(piece.tolist()) for piece in pieces if len(piece)]


@pytest.mark.parametrize("shuffle", [None, 7])
def test_an_export_holds_out_the_split(store: str, tmp_path: Path, shuffle: int | None) -> None:
    """Validation has the documents of that split, training all others, in the order of the store or shuffled."""
    tokenmill.export(store, to="nanogpt", val=VAL, shuffle=shuffle, out=tmp_path / "out", workers=1)
    expected = by_split(store)
    for name, split in (("val", "validation"), ("train", "train")):
        found = in_file(tmp_path / "out" / f"{name}.bin")
        assert sorted(found) == sorted(expected[split])
        assert (found == expected[split]) == (shuffle is None)
    assert command.run("verify", tmp_path / "out").returncode == 0
    assert json.loads((tmp_path / "out/.tokenmill/export.json").read_text())["job"]["val"] == VAL


def test_prepare_exports_the_split(dataset: Path, tmp_path: Path) -> None:
    """In one command; a split that the sources do not have is refused before any work."""
    options = ("--tokenizer", SMALL_TIKTOKEN, "--eot", END, "--workers", "1", "--to", "nanogpt", "--val", VAL)
    refused = command.run("prepare", dataset, *options, "--split", "train", "--out", tmp_path / "out", code=2)
    assert "no source is of this split" in refused.stderr
    assert "splits       train" in refused.stderr
    assert not (tmp_path / "out").exists()
    command.run("prepare", dataset, *options, "--split", "all", "--out", tmp_path / "out")
    expected = by_split(str(tmp_path / "out"))
    assert in_file(tmp_path / "out/nanogpt/val.bin") == expected["validation"]
    assert sorted(in_file(tmp_path / "out/nanogpt/train.bin")) == sorted(expected["train"] + expected["test"])


def test_a_located_document_is_in_its_split(store: str, dataset: Path, tmp_path: Path) -> None:
    """`locate` finds a held-out document in the validation file."""
    prepared = prepare(dataset, tmp_path / "store", split="all", to="nanogpt", val=VAL)
    for split, name in (("validation", "val"), ("test", "train")):
        found = command.run("locate", prepared, "--source", f"{split}.jsonl", "--byte", "0", "--json").stdout
        assert f"{name}.bin" in found


def test_the_loader_reads_both_splits(store: str) -> None:
    """The tokens of each split of a loader are those of the export's file."""
    expected = by_split(store)
    names: dict[Literal["train", "val"], str] = {"val": "validation", "train": "train"}
    for split, name in names.items():
        loader = tokenmill.loader(
            store, sequence_tokens=2, batch_sequences=1, grain=2, val=VAL, split=split, shuffle="none", fields="tokens"
        )
        stream = np.concatenate([batch["tokens"][0][:2] for batch in loader]).tolist()
        joined = [token for document in expected[name] for token in document]
        assert stream == joined[: len(stream)]
        assert len(joined) - len(stream) <= 2


def test_stores_of_one_split_each(dataset: Path, tmp_path: Path) -> None:
    """A store without documents of the chosen split gives none, in loaders and exports."""
    stores = [prepare(dataset, tmp_path / name, split=name) for name in ("train", "validation")]
    options: dict[str, Any] = {"sequence_tokens": 2, "batch_sequences": 1, "grain": 2, "val": VAL}
    lengths = {split: len(tokenmill.loader(stores, split=split, **options)) for split in ("train", "val")}
    alone = {"train": stores[0], "val": stores[1]}
    assert lengths == {
        split: len(tokenmill.loader(store, **{**options, "val": None})) for split, store in alone.items()
    }
    tokenmill.export(stores, to="nanogpt", val=VAL, out=tmp_path / "out", workers=1)
    assert in_file(tmp_path / "out/val.bin") == by_split(stores[1])["validation"]
    for refused, message in ((stores[0], "no source is of this split"), (stores[1], "would hold out all documents")):
        with pytest.raises(UsageError, match=message):
            tokenmill.loader(refused, **options)
        with pytest.raises(UsageError, match=message):
            tokenmill.export(refused, to="nanogpt", val=VAL, out=tmp_path / "none", workers=1)


def recipe(folder: Path, **keys: Any) -> Path:
    """A recipe of some stores under names."""
    stages = [{"sequence_tokens": 2, "batch_sequences": 1, "tokens": dict.fromkeys(keys, "all")}]
    path = folder / "recipe.json"
    path.write_text(json.dumps({"sources": keys, "stages": stages, "grain": 2, "val": VAL}))
    return path


def test_a_recipe_holds_out_the_split(store: str, dataset: Path, tmp_path: Path) -> None:
    """Its loader reads no document of it, and its export has each of them once."""
    other = prepare(dataset, tmp_path / "other", split="test")
    path = recipe(tmp_path, web=store, more=other)
    loader = tokenmill.loader(path, fields="input_ids")
    train, test = by_split(store), by_split(other)
    expected = sum(map(len, train["train"])), sum(map(len, test["test"]))
    assert sum(expected) - 8 <= len(loader) * 2 <= sum(expected)
    tokenmill.export(path, to="nanogpt", out=tmp_path / "out", workers=1)
    assert sorted(in_file(tmp_path / "out/val.bin")) == sorted(train["validation"])
    assert set(in_file(tmp_path / "out/train.bin")) <= {*train["train"], *test["test"]}
    with pytest.raises(UsageError, match="no source is of this split"):
        tokenmill.loader(recipe(tmp_path, more=other))


@pytest.mark.parametrize("val", ["split:", "split", "validation"])
def test_what_is_not_a_split_is_refused(store: str, tmp_path: Path, val: str) -> None:
    """The message names the form."""
    with pytest.raises(UsageError, match="split:NAME"):
        tokenmill.export(store, to="nanogpt", val=val, out=tmp_path / "out")
    with pytest.raises(UsageError, match="split:NAME"):
        tokenmill.loader(store, val=val)
