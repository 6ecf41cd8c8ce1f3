"""`tokenmill.open`: positions, slices, iteration, text, pickles and errors of a store."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tokenmill
from tests.support.corpora import SMALL_JSON, write_parquet
from tests.support.servers.seaweed import Bucket
from tests.support.small_stores import ROWS, UNITS, prepare, write_source
from tests.support.source_files import source
from tokenmill.errors import SourceError
from tokenmill.results import StoreSlice
from tokenmill.sources.documents import ReadOptions
from tokenmill.store.member import whole_file


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tokenmill.Store:
    """A store of four parts with 20 documents each."""
    folder = tmp_path_factory.mktemp("store")
    prepare(write_source(folder / "source.parquet", "mill"), folder / "<b>tokens")
    return tokenmill.open(folder / "<b>tokens")


def texts() -> list[str]:
    """The documents of the store."""
    return [f"mill {row} " + "says little " * (row % 17) for row in range(ROWS)]


def test_positions_slices_and_iteration_agree(store: tokenmill.Store) -> None:
    """A slice has the documents that the same slice of a list has, across parts, from the end and with steps."""
    everything = [tokens.tolist() for tokens in store]
    assert len(store) == len(everything) == ROWS
    assert len(list(store.parts())) == UNITS
    assert store[-1].tolist() == everything[-1]
    assert store[np.int64(25)].tolist() == everything[25]
    for chosen in (slice(2, 5), slice(18, 43), slice(-3, None), slice(None, None, -7), slice(70, 1000), slice(5, 2)):
        found = store[chosen]
        assert isinstance(found, StoreSlice)
        assert len(found) == len(everything[chosen])
        assert [tokens.tolist() for tokens in found] == everything[chosen]
    nested = store[10:60][5:-5:3]
    assert nested[-1].tolist() == everything[10:60][5:-5:3][-1]


def test_a_slice_opens_no_part(store: tokenmill.Store) -> None:
    """A slice of everything costs nothing until a document is asked for."""
    fresh = tokenmill.open(store.directory)
    assert len(fresh[:]) == ROWS
    assert fresh._index.open.cache_info().currsize == 0


def test_documents_are_views(store: tokenmill.Store) -> None:
    """A document is a read-only view of the memory-mapped part."""
    assert store[3].base is not None
    assert not store[3].flags.writeable


@pytest.mark.parametrize("position", [ROWS, -ROWS - 1, 10**12])
def test_an_error_names_the_range(store: tokenmill.Store, position: int) -> None:
    """A position outside of the store raises IndexError with the number of documents."""
    for ask in (store.__getitem__, store.document, store.decode, store.start_of):
        with pytest.raises(IndexError, match=r"is out of range: the store has 80 documents, from 0 to 79"):
            ask(position)
    with pytest.raises(IndexError, match=r"token .* is out of range: the store has .* tokens, from 0 to"):
        store.at(store.token_count)
    with pytest.raises(IndexError, match="document 3 is out of range: the slice has 3 documents"):
        _ = store[:3][3]


def test_the_text_is_that_of_the_source(store: tokenmill.Store) -> None:
    """`text` reads the source again, also from the end of a later unit."""
    assert [store.text(position) for position in (0, 19, 20, 79, -1)] == [
        texts()[position] for position in (0, 19, 20, 79, -1)
    ]


def test_text_of_small_files_and_several_stores(tmp_path: Path) -> None:
    """Units of whole files and stores that are read as one give each document its own text."""
    for number, kind in enumerate(("txt", "jsonl")):
        for letter in "ab":
            content = f"text {letter}{number}" if kind == "txt" else f'{{"text": "text {letter}{number}"}}\n' * 3
            (tmp_path / f"{letter}{number}.{kind}").write_text(content)
        prepare([str(path) for path in sorted(tmp_path.glob(f"*.{kind}"))], tmp_path / kind)
    both = tokenmill.open([tmp_path / "txt", tmp_path / "jsonl"])
    assert [both.text(position) for position in range(len(both))] == [
        *("text a0", "text b0"),
        *["text a1"] * 3,
        *["text b1"] * 3,
    ]
    (tmp_path / "a0.txt").write_text("another text")
    with pytest.raises(SourceError, match="changed"):
        both.text(0)


def test_a_position_is_an_integer(store: tokenmill.Store) -> None:
    """Another type raises TypeError."""
    positions: list[Any] = ["0", 1.5, None]
    for position in positions:
        with pytest.raises(TypeError):
            _ = store[position]


def test_text_is_that_of_the_source(store: tokenmill.Store) -> None:
    """`decode` gives the text of a document, without begin and end token."""
    assert [store.decode(position) for position in range(ROWS)] == texts()


def test_begin_and_end_tokens_are_no_text(store: tokenmill.Store, tmp_path: Path, documents: list[str]) -> None:
    """With a begin token or without an end token, `decode` still gives the text."""
    source = write_parquet(tmp_path / "source.parquet", documents)
    special = next(iter(store.job.tokenizer.special_tokens))
    for name, options in {"both": {"bos": special}, "neither": {"eot": "none"}}.items():
        given: dict[str, Any] = {"tokenizer": SMALL_JSON, "workers": 1, **options}
        tokenmill.prepare(source, out=tmp_path / name, **given)
        opened = tokenmill.open(tmp_path / name)
        assert [opened.decode(position) for position in range(len(opened))] == documents


def _in_child(given: tuple[Any, int]) -> tuple[int, list[int], int]:
    opened, position = given
    return len(opened), opened[position].tolist(), os.getpid()


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_store_goes_to_another_process(store: tokenmill.Store, method: str) -> None:
    """A pickle is the address: small, and the other process reads the same documents."""
    if method == "fork" and threading.active_count() > 1:
        pytest.skip("this process has threads, so it must not be forked")
    assert len(pickle.dumps(store)) < 1000
    with multiprocessing.get_context(method).Pool(1) as pool:
        whole, part = pool.map(_in_child, [(store, 41), (store[40:50], 1)])
    assert whole[:2] == (ROWS, store[41].tolist())
    assert part[:2] == (10, store[41].tolist())
    assert whole[2] != os.getpid()


def test_a_store_in_a_bucket_goes_to_another_process(s3: Bucket, tmp_path: Path) -> None:
    """The same with an address of a bucket: the environment has the keys, and the pickle has none."""
    source = write_source(tmp_path / "source.parquet", "mill")
    tokenmill.prepare(source, tokenizer=SMALL_JSON, out=f"{s3.url}/run", unit_bytes=1, workers=1)
    store = tokenmill.open(f"{s3.url}/run")
    content = pickle.dumps(store)
    assert os.environ["AWS_SECRET_ACCESS_KEY"].encode() not in content
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_in_child, [(store, 7)])[0][:2] == (ROWS, store[7].tolist())


def test_an_empty_store_says_so(tmp_path: Path) -> None:
    """A store without documents has length 0, and its errors say that it is empty."""
    source = write_parquet(tmp_path / "source.parquet", [])
    opened = tokenmill.open(tokenmill.prepare(source, tokenizer=SMALL_JSON, out=tmp_path / "empty").directory)
    assert (len(opened), list(opened), len(opened[:]), opened.token_count) == (0, [], 0, 0)
    with pytest.raises(IndexError, match="document 0 is out of range: the store has no documents"):
        _ = opened[0]


def test_a_store_shows_itself(store: tokenmill.Store) -> None:
    """The repr is one line. In a notebook it is a table, and a path in it is no markup."""
    assert repr(store) == f"<Store {store.directory}: 80 documents, {store.token_count:,} tokens (uint16)>"
    assert repr(store[2:5]).endswith("3 documents, range(2, 5, 1)>")
    page = store._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;tokens" in page
    assert f"{store.token_count:,}" in page


def test_a_file_without_slices_is_not_read(tmp_path: Path) -> None:
    """An Arrow file without record batches has no content, and is no error."""
    pa.ipc.new_file(str(tmp_path / "a.arrow"), pa.schema({"text": pa.string()})).close()
    assert whole_file(source(str(tmp_path / "a.arrow")), ReadOptions()) is None
