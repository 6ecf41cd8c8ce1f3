"""Where documents begin in a batch, packed rows, and the split of exports."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tokenmill
from benchmarks.synthetic import Shape, make_store
from tokenmill.store.reader import Store
from tokenmill.tokenization import document_hash
from tokenmill.training import packing as packing_module
from tokenmill.training import reader
from tokenmill.training.batches import IGNORED
from tokenmill.training.packing import PackedWindows, pack

ALL: Any = ["input_ids", "labels", "position_ids", "cu_seqlens", "document_ids"]
SMALL: dict[str, Any] = {"sequence_tokens": 64, "grain": 256, "batch_sequences": 16, "seed": 5}


def split_tokens(directory: str, fraction: float, split: str) -> np.ndarray:
    """The tokens of a split, document by document."""
    store = Store(directory)
    identities = store.sources["identity"].to_numpy()
    kept = []
    for part in store.parts():
        held_out = document_hash.held_out(identities, part.source, part.row, fraction)
        kept += [part.document(index) for index in np.flatnonzero(held_out == (split == "val")).tolist()]
    return np.concatenate(kept).astype(np.int64)


@pytest.mark.parametrize("packing", ["concat", "best-fit"])
def test_source_ids_name_the_source_of_each_token(store: str, tmp_path: Path, packing: str) -> None:
    """In a mixture, `source_ids` and `document_ids` say of which source and document each token is."""
    other, third = (str(tmp_path / name) for name in ("other", "third"))
    make_store(other, 20_000, shape=Shape(10_000, 60, seed=3), processes=False)
    make_store(third, 9_000, shape=Shape(10_000, 60, seed=4), processes=False)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f"""grain = 256\npacking = "{packing}"
[sources]
web = ["{third}", "{store}"]
code = "{other}"
[[stages]]
sequence_tokens = 64\nbatch_sequences = 16\ntokens = 40_960\nweights = {{ web = 3, code = 1 }}
"""
    )
    fields: Any = ["input_ids", "document_ids", "source_ids"]
    mixed = tokenmill.loader(recipe, fields=fields)
    plain = tokenmill.loader([store, other], **SMALL, fields=fields, packing=packing)  # type: ignore[arg-type]
    assert mixed.sources == ["code", "web"]
    assert plain.sources == plain.stores == [store, other]
    assert sorted(mixed.stores) == sorted([store, other, third])
    for loader, of_source in (
        (mixed, {"code": [other], "web": [third, store]}),
        (plain, {store: [store], other: [other]}),
    ):
        documents, seen = tokenmill.open(loader.stores), set()
        ends = np.cumsum([len(tokenmill.open(each)) for each in loader.stores])
        for step in range(8):
            batch = loader[step]
            assert batch["source_ids"].dtype == np.int32
            assert batch["source_ids"].shape == batch["input_ids"].shape
            rows = zip(*(batch[name].reshape(-1).tolist() for name in fields), strict=True)
            for token, document, source in list(rows)[::7]:
                assert token in documents[document]
                directory = loader.stores[int(np.searchsorted(ends, document, "right"))]
                assert directory in of_source[loader.sources[source]]
                seen.add(source)
        assert seen == {0, 1}


@pytest.mark.parametrize("val", [None, 0.2])
def test_fields_tell_where_documents_begin(store: str, val: float | None) -> None:
    """Tokens with one document id are a part of that document, and positions count within it from the row on."""
    loader = tokenmill.loader(store, **SMALL, fields=ALL, val=val)
    opened = Store(store)
    for step in range(8):
        batch = loader[step]
        edges = batch["cu_seqlens"]
        assert batch["position_ids"].dtype == batch["document_ids"].dtype == np.int64
        assert edges.dtype == np.int32
        assert edges[0] == 0
        assert edges[-1] == batch["input_ids"].size
        used = np.unique(edges)
        assert np.array_equal(edges[: len(used)], used)
        assert set(range(0, batch["input_ids"].size, 64)) <= set(used.tolist())
        flat = {name: batch[name].reshape(-1) for name in ALL if name != "cu_seqlens"}
        for low, high in zip(used[:-1].tolist(), used[1:].tolist(), strict=True):
            (number,) = np.unique(flat["document_ids"][low:high])
            document = opened[int(number)].astype(np.int64)
            piece = flat["input_ids"][low:high]
            windows = np.lib.stride_tricks.sliding_window_view(document, len(piece))
            assert (windows == piece).all(axis=1).any()
            assert np.array_equal(flat["position_ids"][low:high], np.arange(high - low))


def test_lengths_of_cu_seqlens_rarely_change(store: str) -> None:
    """The length is a power of two and one, the same for nearly all batches."""
    loader = tokenmill.loader(store, **SMALL, fields=["cu_seqlens"])
    sizes = {len(loader[step]["cu_seqlens"]) for step in range(50)}
    assert len(sizes) <= 2
    assert all((size - 1).bit_count() == 1 for size in sizes)


@pytest.mark.thorough
@pytest.mark.parametrize("val", [None, 0.2])
@pytest.mark.parametrize("stores", [1, 2])
def test_packed_rows_have_every_token_once(store: str, other_store: str, val: float | None, stores: int) -> None:
    """An epoch has each token once and no padding; the end of a document has no label, all others the next token."""
    given = [store, other_store][:stores]
    loader = tokenmill.loader(given, **SMALL | {"batch_sequences": 1}, packing="best-fit", fields=ALL, val=val)
    batches = list(loader)
    ids = np.concatenate([batch["input_ids"] for batch in batches]).reshape(-1)
    streams = [
        split_tokens(one, val, "train") if val else Store(one).tokens(0, 1 << 40).astype(np.int64) for one in given
    ]
    expected = np.concatenate([tokens[: (len(tokens) - 1) // 256 * 256] for tokens in streams])
    assert np.array_equal(np.sort(ids), np.sort(expected))
    opened = Store(given)
    for batch in batches[:80]:
        edges = np.unique(batch["cu_seqlens"]).tolist()
        for low, high in itertools.pairwise(edges):
            number = int(batch["document_ids"][0, low])
            piece, labels = batch["input_ids"][0, low:high], batch["labels"][0, low:high]
            document = opened[number].astype(np.int64)
            begin = contains(document, piece)
            assert begin is not None
            following = np.append(document[1:], IGNORED)[begin : begin + high - low]
            assert np.array_equal(labels, following)


def test_packed_windows_are_kept_in_bounded_memory(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batches are the same if a window is packed again each time it is needed."""
    options: Any = SMALL | {"packing": "best-fit", "fields": ALL}
    expected = list(tokenmill.loader(store, **options))
    windows: list[PackedWindows] = []

    def new_windows() -> PackedWindows:
        windows.append(PackedWindows())
        return windows[-1]

    monkeypatch.setattr(reader, "PackedWindows", new_windows)
    monkeypatch.setattr(packing_module, "KEPT_BYTES", 1 << 14)
    for batch, other in zip(tokenmill.loader(store, **options), expected, strict=True):
        assert all(np.array_equal(batch[name], other[name]) for name in ALL)
        assert 0 < windows[0].bytes <= 1 << 14


def contains(document: np.ndarray, piece: np.ndarray) -> int | None:
    """Where a piece begins in a document."""
    if len(piece) > len(document):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(document.astype(np.int64), len(piece))
    matches = np.flatnonzero((windows == piece).all(axis=1))
    return int(matches[0]) if len(matches) else None


def test_packing_cuts_fewer_documents(store: str) -> None:
    """Best-fit cuts a document that fits into a row less often than concatenation does."""
    cut = {}
    for packing in ("concat", "best-fit"):
        loader = tokenmill.loader(
            store, sequence_tokens=512, grain=512, batch_sequences=16, packing=packing, fields=ALL
        )
        pieces = 0
        for batch in (loader[step] for step in range(len(loader))):
            pieces += len(np.unique(batch["cu_seqlens"])) - 1
        cut[packing] = pieces - len(Store(store))
    assert cut["best-fit"] < 0.3 * cut["concat"]


def test_packing_is_best_fit() -> None:
    """A long document fills rows; the others go where the least space is left; the last one is cut."""
    rows = pack(np.array([0, 25, 32, 35, 38]), 40, 10, is_last_cut=True)
    found = [
        [(int(rows.starts[i]), int(rows.lengths[i]), bool(rows.is_end[i])) for i in range(low, high)]
        for low, high in zip(rows.edges[:-1], rows.edges[1:], strict=True)
    ]
    assert found == [
        [(0, 10, False)],
        [(10, 10, False)],
        [(25, 7, True), (32, 3, True)],
        [(20, 5, True), (35, 3, True), (38, 2, False)],
    ]


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("fraction", [0.001, 0.1, 0.5])
def test_a_split_has_its_documents_only(store: str, split: Any, fraction: float) -> None:
    """The stream of a split is its documents in the order of the store, also if a part has no document of it."""
    expected = split_tokens(store, fraction, split)
    options: Any = {"sequence_tokens": 8, "batch_sequences": 64, "grain": 8}
    loader = tokenmill.loader(store, **options, val=fraction, split=split, shuffle="none")
    steps = range(-(-loader.sequences // 64))  # the last one goes on with the next pass
    found = np.concatenate([loader[step]["input_ids"].reshape(-1) for step in steps])[: loader.tokens]
    assert np.array_equal(found, expected[: loader.tokens])
    assert loader.tokens + loader.tail_tokens == len(expected)


def test_the_table_of_a_split_is_kept(tmp_path: Path) -> None:
    """It is made once; a damaged one, and one of other parts or of another fraction, is made again."""
    directory = str(tmp_path / "store")
    make_store(directory, 30_000, shape=Shape(10_000, 60), processes=False)
    options: dict[str, Any] = {"sequence_tokens": 32, "grain": 64, "val": 0.1}
    first = tokenmill.loader(directory, **options)[0]["input_ids"]
    (table,) = (tmp_path / "store" / "splits").iterdir()
    assert table.name == "val-0.1.parquet"
    content, written = table.read_bytes(), table.stat().st_mtime_ns
    assert np.array_equal(tokenmill.loader(directory, **options)[0]["input_ids"], first)
    assert table.stat().st_mtime_ns == written
    table.write_bytes(content[:-9])
    assert np.array_equal(tokenmill.loader(directory, **options)[0]["input_ids"], first)
    assert table.read_bytes() == content
    other = str(tmp_path / "other")
    make_store(other, 30_000, shape=Shape(10_000, 60, seed=3), processes=False)
    (tmp_path / "other" / "splits").mkdir()
    (tmp_path / "other" / "splits" / table.name).write_bytes(content)
    assert tokenmill.loader(other, **options).tokens == tokenmill.loader(other, **options, shuffle="none").tokens
    assert (tmp_path / "other" / "splits" / table.name).read_bytes() != content
    tokenmill.loader(directory, **options | {"val": 0.3})
    wrong = (tmp_path / "store" / "splits" / "val-0.3.parquet").read_bytes()
    table.write_bytes(wrong)
    assert np.array_equal(tokenmill.loader(directory, **options)[0]["input_ids"], first)
    assert table.read_bytes() == content
    counts = pq.read_table(table)
    more = pa.table([pa.array(counts["held_out"].to_numpy() ^ np.int64(1))], schema=counts.schema)
    pq.write_table(more, table)
    assert np.array_equal(tokenmill.loader(directory, **options)[0]["input_ids"], first)
    assert table.read_bytes() == content


def test_a_store_that_cannot_be_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the table of a split cannot be kept, it is made for this loader."""
    directory = str(tmp_path / "store")
    make_store(directory, 30_000, shape=Shape(10_000, 60), processes=False)
    (tmp_path / "store" / "splits").write_text("a file where the directory would be")
    loader = tokenmill.loader(directory, sequence_tokens=32, grain=64, val=0.1)
    assert loader[0]["input_ids"].shape == (8, 32)
