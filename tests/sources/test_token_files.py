"""Files of tokens as sources: documents of an index or between end tokens, cut by slices and by files."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exports.test_formats import export, make_shard
from tokenmill.errors import BadDocument, SourceError, UsageError
from tokenmill.sources import discover, files_between, read_columns, read_documents, split_file
from tokenmill.sources.documents import ReadOptions, Slice, SourceFile
from tokenmill.sources.token_source import DOCUMENTS, OVERLAP, STREAM, TO_BE_FOUND, TokenInput
from tokenmill.sources.tokens.find import find_tokens
from tokenmill.sources.tokens.joins import with_joins
from tokenmill.storage import folder_at
from tokenmill.token_files import FORMATS

END, BEGIN, VOCABULARY = 50256, 50255, 50257
INDEXED = ("megatron", "datatrove", "olmo", "litdata")
DELIMITED = ("nanogpt", "build-nanogpt", "llmc", "mds")

Documents = list[list[int]]


def sources_of(
    directory: str | Path, rows: str = "", row_tokens: int = 0, end: int | None = TO_BE_FOUND, dtype: str = ""
) -> Any:
    """The files of tokens of a directory: the table, how they hold tokens, and notes."""
    table = discover([str(directory)]).table
    given = TokenInput(dtype=dtype, rows=rows, row_tokens=row_tokens, end=end)
    table, source, notes = find_tokens(table, given, VOCABULARY, [END, BEGIN])
    table, joined = with_joins(table, source)
    return table, source, [*notes, *joined]


def read_file(file: SourceFile, options: ReadOptions, unit_bytes: int) -> list[tuple[int, list[int]]]:
    """The documents of a file, read slice by slice, each with its row."""
    found = []
    slices = split_file(file, options, unit_bytes)
    for start, stop in zip(slices.start.tolist(), slices.stop.tolist(), strict=True):
        for documents in read_documents(file, Slice(start, stop), options):
            texts = [np.frombuffer(text, "<u4").tolist() for text in documents.text.to_pylist()]
            found += list(zip(documents.rows.tolist(), texts, strict=True))
    assert [row for row, _ in found] == sorted({row for row, _ in found})
    return found


def read_all(directory: str | Path, unit_bytes: int = 40, batch_bytes: int = 12, **words: Any) -> Documents:
    """The documents of a directory."""
    table, source, _ = sources_of(directory, **words)
    options = ReadOptions(tokens=source, batch_bytes=batch_bytes)
    files = files_between(table, 0, len(table))
    return [text for file in files for _, text in read_file(file, options, unit_bytes)]


def write_shards(directory: str, name: str, stream: Sequence[int], cuts: Sequence[int]) -> None:
    """A stream of tokens, cut anywhere into shards."""
    edges = [0, *sorted(cuts), len(stream)]
    numbers = [0] if name == "nanogpt" else range(1, len(edges))
    if name == "nanogpt":
        edges = [0, len(stream)]
    for number, start, stop in zip(numbers, edges[:-1], edges[1:], strict=True):
        part = [list(stream[start:stop])]
        FORMATS[name].write(folder_at(directory), make_shard(number=number), _content(part))


def _content(documents: Documents) -> Any:
    from tests.exports.test_formats import make_content

    return make_content(documents, "uint16", ())


@pytest.mark.parametrize("name", DELIMITED)
@pytest.mark.parametrize("end_first", [False, True])
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_documents_between_end_tokens_are_whole(name: str, end_first: bool, data: st.DataObject) -> None:
    """Documents that are cut by slices, batches and any number of files are read whole, in order, once."""
    documents = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=1, max_size=12))
    # An empty document at an end looks like the other place of the end token.
    documents[0], documents[-1] = documents[0] or [1], documents[-1] or [1]
    framed = [[END, *ids] if end_first else [*ids, END] for ids in documents]
    stream = [token for ids in framed for token in ids]
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=5))
    unit_bytes, batch_bytes = data.draw(st.integers(1, 60)), data.draw(st.integers(4, 40))
    with tempfile.TemporaryDirectory() as directory:
        write_shards(directory, name, stream, cuts)
        assert read_all(directory, unit_bytes, batch_bytes, end=END, dtype="uint16") == documents


@pytest.mark.parametrize("name", INDEXED)
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_documents_of_an_index_are_read(name: str, data: st.DataObject) -> None:
    """The documents are those of the index, empty ones included, whatever the slices and batches are."""
    documents = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=7), min_size=1, max_size=12))
    documents[0] = documents[0] or [1]
    unit_bytes, batch_bytes = data.draw(st.integers(1, 60)), data.draw(st.integers(4, 40))
    with tempfile.TemporaryDirectory() as directory:
        export(folder_at(directory), FORMATS[name], make_shard(), documents)
        assert read_all(directory, unit_bytes, batch_bytes, end=None, dtype="uint16") == documents


def test_slices_of_an_index_have_equal_sizes(tmp_path: Path) -> None:
    """A slice with much more than its share is divided: documents may be sorted by length."""
    documents = [[1]] * 1000 + [[2] * 100] * 100
    export(folder_at(str(tmp_path)), FORMATS["megatron"], make_shard(), documents)
    table, source, _ = sources_of(tmp_path, end=None)
    slices = split_file(files_between(table, 0, 1)[0], ReadOptions(tokens=source), 4000)
    assert int(slices.text_bytes.sum()) == 11_000 * 4
    assert slices.rows is not None
    assert int(slices.rows.sum()) == 1100
    assert int(slices.text_bytes.max()) <= 8000


def test_rows_may_be_documents(tmp_path: Path) -> None:
    """Rows of a length that is given, or that the file has, are documents; the last one may be shorter."""
    (tmp_path / "a.bin").write_bytes(np.arange(10, dtype=np.uint16).tobytes())
    assert read_all(tmp_path, rows=DOCUMENTS, row_tokens=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    (tmp_path / "a.bin").unlink()
    np.save(tmp_path / "a.npy", np.arange(6, dtype=np.int32).reshape(2, 3))
    assert read_all(tmp_path, rows=DOCUMENTS) == [[0, 1, 2], [3, 4, 5]]


def test_an_index_may_be_ignored(tmp_path: Path) -> None:
    """Items that are rows of a stream are joined, and documents are what stands between end tokens."""
    export(folder_at(str(tmp_path)), FORMATS["litdata"], make_shard(), [[1, 2, END, 3], [4, END, 5, 6]])
    assert read_all(tmp_path, rows=STREAM, end=END) == [[1, 2], [3, 4], [5, 6]]


@pytest.mark.parametrize("length", [0, 4])
def test_rows_that_overlap_are_joined(tmp_path: Path, length: int) -> None:
    """Rows that begin with the last token of the row before make one stream, which end tokens divide."""
    stream = [1, 2, END, 3, 4, 5, 6, 7, END, 8]
    rows = np.array([stream[0:4], stream[3:7], stream[6:10]], np.uint16)
    np.save(tmp_path / "a.npy", rows.reshape(-1) if length else rows)
    assert read_all(tmp_path, rows=OVERLAP, row_tokens=length) == [[1, 2], [3, 4, 5, 6, 7], [8]]


def test_joined_files_are_those_of_one_series(tmp_path: Path) -> None:
    """Files of another directory, of another name, or after a gap in the numbers begin documents; notes name them."""
    for name, ids in {
        "web_train_1": [1, END, 2],
        "web_train_2": [3],
        "web_train_3": [4, END, 5],
        "web_train_5": [6, END],
        "web_val_6": [7, END],
    }.items():
        np.save(tmp_path / f"{name}.npy", np.array(ids, np.uint16))
    assert read_all(tmp_path) == [[1], [2, 3, 4], [5], [6], [7]]
    table, _, notes = sources_of(tmp_path)
    assert table["head"].to_pylist() == [0, -1, 2, 0, 0]
    assert [file.index for file in files_between(table, 0, 1)[0].rest] == [1, 2]
    assert f"the last document of {tmp_path}/web_train_3.npy has no end token: it may be cut off" in notes


def test_long_documents_are_bad_rows(tmp_path: Path) -> None:
    """A document that is too long is a bad row, whether its length is in an index or is found by reading."""
    documents = [[1], [2] * 50, [3]]
    for name, framed in (("megatron", documents), ("llmc", [[*ids, END] for ids in documents])):
        (tmp_path / name).mkdir()
        export(folder_at(str(tmp_path / name)), FORMATS[name], make_shard(), framed)
        table, source, _ = sources_of(tmp_path / name, end=END)
        file = files_between(table, 0, 1)[0]
        for batch_bytes in (4, 1000):
            options = ReadOptions(tokens=source, document_bytes=100, on_bad="quarantine", batch_bytes=batch_bytes)
            whole = split_file(file, options, 1 << 30).whole()
            found = list(read_documents(file, whole, options))
            assert [row.detail for batch in found for row in batch.bad] == ["50 tokens"]
            assert sum(len(batch.rows) for batch in found) == 2
        with pytest.raises(BadDocument, match="too long"):
            list(read_documents(file, whole, ReadOptions(tokens=source, document_bytes=100)))


def write(path: Path, ids: Sequence[int], dtype: str = "<u2") -> None:
    """Raw tokens."""
    path.write_bytes(np.array(ids, dtype).tobytes())


def test_sources_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """No end token, several formats, rows without a length, an index with rows: each is refused, with the way."""
    write(tmp_path / "a.bin", [1, 2, 3, 4, 5, 6])
    with pytest.raises(SourceError, match="no token divides"):
        sources_of(tmp_path)
    with pytest.raises(SourceError, match="have no end token"):
        sources_of(tmp_path, end=9)
    with pytest.raises(UsageError, match="needs the length"):
        sources_of(tmp_path, rows=OVERLAP)
    np.save(tmp_path / "b.npy", np.array([1, END], np.uint16))
    with pytest.raises(SourceError, match="several formats") as raised:
        sources_of(tmp_path)
    assert {"a.bin", "b.npy"} <= {line.rsplit("/", 1)[-1] for line in raised.value.details}
    (tmp_path / "index").mkdir()
    export(folder_at(str(tmp_path / "index")), FORMATS["megatron"], make_shard(), [[1]])
    table, source, _ = sources_of(tmp_path / "index", end=None)
    with pytest.raises(UsageError, match="no columns"):
        list(read_columns(files_between(table, 0, 1)[0], None, ("url",), ReadOptions(tokens=source)))


def test_files_of_tokens_are_found(tmp_path: Path) -> None:
    """A directory's files of tokens are read if it holds no text; those that belong to them never are."""
    export(folder_at(str(tmp_path)), FORMATS["megatron"], make_shard(), [[1]])
    name = "train_000000_text_document"
    assert discover([str(tmp_path)]).table["path"].to_pylist() == [f"{tmp_path}/{name}.bin"]
    assert discover([f"{tmp_path}/{name}.idx"]).table["path"].to_pylist() == [f"{tmp_path}/{name}.bin"]
    assert discover([f"{tmp_path}/*"]).table["kind"].to_pylist() == ["tokens"]
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    assert discover([str(tmp_path)]).table["path"].to_pylist() == [f"{tmp_path}/a.jsonl"]
