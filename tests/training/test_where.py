"""Recipes over some documents of a store: those whose kept columns satisfy a condition."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from tests.support.export_model import read_back
from tests.support.small_stores import prepare
from tokenmill.errors import UsageError
from tokenmill.store.collection import open_collection
from tokenmill.training.recipe_loader import RecipeLoader

ROWS = 400
LANGUAGES = ["de", "en", "de", None, "fr"]
STAGE = {"sequence_tokens": 16, "batch_sequences": 4, "tokens": "all"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store that keeps the language and the score of its documents."""
    folder = tmp_path_factory.mktemp("where")
    languages = [LANGUAGES[row % len(LANGUAGES)] for row in range(ROWS)]
    texts = [f"{language} {row} " + "says little " * (row % 17) for row, language in enumerate(languages)]
    table = pa.table({"text": texts, "language": pa.array(languages, pa.string()), "score": np.arange(ROWS) / ROWS})
    pq.write_table(table, folder / "in.parquet", row_group_size=90)
    prepare(str(folder / "in.parquet"), folder / "store", keep="language,score")
    return folder


def write(folder: Path, where: str, name: str = "recipe", **keys: Any) -> Path:
    path = folder / f"{name}.json"
    sources = {"de": {"store": "store", "where": where}}
    path.write_text(json.dumps({"grain": 64, "sources": sources, "stages": [STAGE]} | keys))
    return path


def open_recipe(path: Path, **options: Any) -> RecipeLoader:
    loader = tokenmill.loader(path, rank=0, world_size=1, **options)
    assert isinstance(loader, RecipeLoader)
    return loader


def documents(folder: Path, language: str | None, min_score: float = 0) -> list[tuple[int, ...]]:
    """The documents of a language, in the order of the store."""
    store = tokenmill.open(folder / "store")
    chosen = [row for row in range(ROWS) if LANGUAGES[row % len(LANGUAGES)] == language and row / ROWS >= min_score]
    return [tuple(store[row].tolist()) for row in chosen]


def exported(out: Path, split: str) -> Counter[tuple[int, ...]]:
    """How often each document is in a split of an export to Parquet."""
    found: Counter[tuple[int, ...]] = Counter()
    for tokens, lengths in read_back(out, "parquet")[split]:
        assert lengths is not None
        found.update(tuple(one.tolist()) for one in np.split(tokens, np.cumsum(lengths)[:-1]))
    return found


@pytest.mark.parametrize(
    ("where", "min_score"), [("language = 'de'", 0.0), ("language in ('de') and not (score < 0.5)", 0.5)]
)
def test_windows_are_over_the_chosen_documents(folder: Path, where: str, min_score: float) -> None:
    """In the order of the store, sequences are slices of the concatenated documents; labels go on to the next one."""
    stream = np.concatenate(documents(folder, "de", min_score))
    loader = open_recipe(write(folder, where, shuffle="none"))
    inputs = np.concatenate([batch["input_ids"].reshape(-1) for batch in loader])
    labels = np.concatenate([loader[step]["labels"].reshape(-1) for step in range(len(loader))])
    assert len(inputs) >= (len(stream) - 1) // 64 * 64 - 64
    assert np.array_equal(inputs, stream[: len(inputs)])
    assert np.array_equal(labels, stream[1 : len(inputs) + 1])
    store, position = loader.locate(3, 2, 5)
    token = tokenmill.open(store).tokens(position, position + 1)[0]
    assert token == loader[3]["input_ids"][2, 5]


def test_two_sources_of_one_store(folder: Path) -> None:
    """Each language is a source of its own; a shuffle and a split choose among its documents only."""
    sources = {name: {"store": "store", "where": f"language = '{name}'"} for name in ("de", "en")}
    stage = STAGE | {"tokens": {"de": "all", "en": 320}}
    path = write(folder, "", "two", sources=sources, stages=[stage], val=0.2)
    loader = open_recipe(path, fields=["input_ids", "document_ids"])
    found = {int(one) for batch in loader for one in np.unique(batch["document_ids"])}
    names = {LANGUAGES[row % len(LANGUAGES)] for row in found}
    assert names == {"de", "en"}
    tokenmill.export(folder / "store", to="parquet", val=0.2, out=folder / "held-out", workers=1)
    store, held_out = tokenmill.open(folder / "store"), exported(folder / "held-out", "val")
    assert held_out
    assert not {tuple(store[row].tolist()) for row in found} & held_out.keys()
    mixed = {one.source: one for one in tokenmill.mix(path).sources}
    assert mixed["en"].where == "language = 'en'"
    assert mixed["en"].tokens == 320


def test_the_table_is_made_once_and_made_again_if_damaged(folder: Path) -> None:
    """The counts of a condition are kept beside those of splits."""
    path = write(folder, "language = 'fr'", stages=[STAGE])
    expected = open_recipe(path)[0]["input_ids"]
    table = max(
        (folder / "store" / "splits").glob("where-*-val-none.parquet"), key=lambda file: file.stat().st_mtime_ns
    )
    before = table.read_bytes()
    open_recipe(path)
    assert table.read_bytes() == before
    table.write_bytes(before[:-9])
    assert np.array_equal(open_recipe(path)[0]["input_ids"], expected)
    assert table.read_bytes() == before


def test_another_condition_is_another_past(folder: Path) -> None:
    """A state of one condition is refused by another, by name; the same condition may be written differently."""
    first = open_recipe(write(folder, "language = 'de'"))
    next(iter(first))
    state = first.state_dict()
    other = open_recipe(write(folder, "language = 'de' and score >= 0.1", "other"))
    with pytest.raises(UsageError, match=r"store of de in stage 1.*where language = 'de' and score >= 0.1"):
        other.load_state_dict(state)
    same = open_recipe(write(folder, "language=='de'", "same"))
    same.load_state_dict(state)
    assert same.state_dict() == state


def test_what_is_refused(folder: Path) -> None:
    """Columns that were not kept, conditions that cannot be read, a whole store beside a condition, blend files."""
    with pytest.raises(UsageError, match=r"'dump' is not kept(.|\n)*kept columns language, score"):
        open_recipe(write(folder, "dump = 'x'"))
    with pytest.raises(UsageError, match="cannot be read at character"):
        open_recipe(write(folder, "language ="))
    with pytest.raises(UsageError, match=r"smaller than one grain(.|\n)*where language = 'xx'"):
        open_recipe(write(folder, "language = 'xx'"))
    both = {"de": {"store": "store", "where": "language = 'de'"}, "all": "store"}
    with pytest.raises(UsageError, match="if each has a `where`"):
        open_recipe(write(folder, "", sources=both))
    with pytest.raises(UsageError, match="has a condition"):
        tokenmill.mix(write(folder, "language = 'de'"), print="megatron")


def test_an_export_has_the_chosen_documents(folder: Path, tmp_path: Path) -> None:
    """Repeats and the rest are of the documents that satisfy the condition."""
    sources = {"de": {"store": "store", "repeat": 2, "where": "language = 'de'"}}
    path = write(folder, "", sources=sources, stages=[STAGE | {"tokens": {"de": "1.5x"}}])
    result = tokenmill.export(path, to="parquet", out=tmp_path / "out", workers=1)
    found, own = exported(tmp_path / "out", "train"), documents(folder, "de")
    assert set(found) == set(own)
    assert set(found.values()) == {1, 2}
    wanted = tokenmill.mix(path).sources[0].tokens
    assert wanted - max(map(len, own)) < result.sources["de"] <= wanted
    assert sum(len(document) * count for document, count in found.items()) == result.sources["de"]
    tokenmill.verify(tmp_path / "out")


def test_an_erasure_is_another_past(folder: Path, tmp_path: Path) -> None:
    """The values of an erased document are gone, so a source with a condition does not have it any more."""
    prepare(str(folder / "in.parquet"), tmp_path / "store", keep="language,score")
    path = write(tmp_path, "language = 'de'")
    before = open_recipe(path)
    next(iter(before))
    tokenmill.erase(tmp_path / "store", rows=[(str(folder / "in.parquet"), 0)], request="1")
    after = open_recipe(path, fields=["input_ids", "document_ids"])
    assert 0 not in {int(one) for batch in after for one in np.unique(batch["document_ids"])}
    with pytest.raises(UsageError, match="store of de in stage 1"):
        after.load_state_dict(before.state_dict())
    parts = open_collection([str(tmp_path / "store")]).parts_without_erased([0], ["language is null"])
    rows = [row for part in range(parts.stores[0].parts) for row in parts.open(part, content_too=True)[1].row.tolist()]
    assert rows == [row for row in range(ROWS) if LANGUAGES[row % len(LANGUAGES)] is None]
