"""The contract of sources, the same for every kind."""

from __future__ import annotations

import os
import tempfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.source_files import KINDS, SEPARATOR, Kind, read_all, read_slice, source
from tokenmill import sources
from tokenmill.errors import SourceError
from tokenmill.sources.documents import ReadOptions, Slice

DOCUMENTS = [
    *[
        "",
        "a",
        "two\r\nlines\n",
        "é",
        "\u4e2d\u6587",
        "😀",
        "\U0010ffff",
        "\ufeffmark",
        "\x00",
        "\u2028\u0085",
        " ",
        "\n\n",
    ],
    *[None, "<|endoftext|>", '"}{"', "e\u0301", "\U000e0001", "x" * 5000, None, "last"],
]


def contents(kind: Kind, documents: list[str | None]) -> list[str | None]:
    """Those documents that a kind can hold."""
    return documents if kind.has_nulls else [text for text in documents if text and SEPARATOR not in text]


@pytest.fixture(params=KINDS)
def kind(request) -> Kind:
    """Each kind in turn."""
    return KINDS[request.param]


def test_every_document_comes_out_as_it_went_in(kind, tmp_path):
    """Nulls, empty strings, line ends and all planes of Unicode come out as they are, each with its row."""
    documents = contents(kind, DOCUMENTS)
    path = f"{tmp_path}/file{kind.ending}"
    rows = kind.write(path, documents, 3)
    assert read_all(path, ReadOptions(separator=kind.separator)) == list(zip(rows, documents, strict=True))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(
    documents=st.lists(st.none() | st.text(max_size=12), max_size=25),
    group_rows=st.integers(1, 8),
    unit_bytes=st.integers(1, 400),
    batch_bytes=st.integers(1, 400),
)
@pytest.mark.parametrize("name", KINDS)
def test_any_cut_gives_the_same_stream(name, documents, group_rows, unit_bytes, batch_bytes):
    """However large units and batches are, rows and texts are the same."""
    kind = KINDS[name]
    documents = contents(kind, documents)
    options = ReadOptions(separator=kind.separator, batch_bytes=batch_bytes)
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/file{kind.ending}"
        rows = kind.write(path, documents, group_rows)
        assert read_all(path, options, unit_bytes) == list(zip(rows, documents, strict=True))


def test_slices_cover_the_file(kind, tmp_path):
    """Slices follow each other without gap, and their rows and bytes add up."""
    documents = contents(kind, ["word " * 20] * 100)
    path = f"{tmp_path}/file{kind.ending}"
    kind.write(path, documents, 10)
    slices = sources.split_file(source(path), ReadOptions(separator=kind.separator), 2500)
    assert slices.start[0] == 0
    np.testing.assert_array_equal(slices.start[1:], slices.stop[:-1])
    assert slices.start.dtype == slices.stop.dtype == slices.text_bytes.dtype == np.int64
    assert slices.rows is None or slices.rows.sum() == 100
    if kind.ending.endswith(("gz", "zst")):
        assert len(slices.start) == 1
    elif kind.ending != ".parquet":  # its dictionary makes the text small
        assert 4 <= len(slices.start) <= 8
        assert 9_000 < slices.text_bytes.sum() < 14_000


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["jsonl", "text"])
def test_a_byte_range_owns_the_documents_that_start_in_it(name, tmp_path):
    """Wherever a range begins and ends, a document belongs to the one that holds its first byte."""
    kind = KINDS[name]
    path = f"{tmp_path}/file{kind.ending}"
    rows = kind.write(path, ["a", "bb", "c"], 1)
    size = os.path.getsize(path)
    for start in range(size):
        for stop in range(start, size + 1):
            stream = read_slice(source(path), start, stop, ReadOptions(separator=kind.separator))
            assert [row for row, _ in stream] == [row for row in rows if start <= row < stop]


def test_batches_are_of_the_size_asked_for(kind, tmp_path):
    """A file that is much larger than a batch comes in many batches, none much larger than asked for."""
    documents = [f"{i} " * 50 for i in range(2000)]
    path = f"{tmp_path}/file{kind.ending}"
    kind.write(path, documents, 1000)
    file = source(path)
    options = ReadOptions(separator=kind.separator, batch_bytes=20_000)
    slices = sources.split_file(file, options, 1 << 30)
    assert len(slices.start) == 1
    sizes = [d.text.nbytes for d in sources.read_documents(file, Slice(0, int(slices.stop[0])), options)]
    assert max(sizes) <= 60_000
    assert len(sizes) >= 10


def test_a_document_larger_than_a_batch_comes_out_whole(kind, tmp_path):
    """One huge document among small ones is neither cut nor lost."""
    documents = ["small", "é" * 300_000, "small"]
    path = f"{tmp_path}/file{kind.ending}"
    kind.write(path, documents, 1)
    for batch_bytes in (1, 1000, 65_536, 1 << 22):
        options = ReadOptions(separator=kind.separator, batch_bytes=batch_bytes if batch_bytes > 1 else 100)
        assert [text for _, text in read_all(path, options, 1000)] == documents


def test_a_file_without_documents_is_read(kind, tmp_path):
    """No documents in, no documents out."""
    path = f"{tmp_path}/file{kind.ending}"
    kind.write(path, [], 1)
    assert read_all(path, ReadOptions(separator=kind.separator)) == []


def test_a_file_that_changed_is_refused(kind, tmp_path):
    """A source that is not what it was at planning is not read, and the error tells both sizes."""
    path = f"{tmp_path}/file{kind.ending}"
    kind.write(path, ["one", "two"], 1)
    file = source(path)
    kind.write(path, ["one", "two", "three"], 1)
    with pytest.raises(SourceError, match="changed") as caught:
        read_slice(file, 0, 1, ReadOptions(separator=kind.separator))
    assert path in str(caught.value)
    assert f"{file.size} bytes" in str(caught.value)
    assert f"{os.path.getsize(path)} bytes" in str(caught.value)


def test_a_file_that_changes_while_it_is_read_is_refused(kind, tmp_path):
    """A change during the read is found at its end at the latest."""
    path = f"{tmp_path}/file{kind.ending}"
    kind.write(path, ["one", "two"], 1)
    file = source(path)
    stream = sources.read_documents(file, Slice(0, 1), ReadOptions(separator=kind.separator))
    next(stream)
    os.utime(path, ns=(0, 0))
    with pytest.raises(SourceError, match="changed"):
        list(stream)


def test_a_file_that_is_gone_is_an_error(kind, tmp_path):
    """A source that was removed after planning is named."""
    path = f"{tmp_path}/file{kind.ending}"
    kind.write(path, ["one"], 1)
    file = source(path)
    os.unlink(path)
    with pytest.raises(SourceError, match=r"cannot read .*file"):
        read_slice(file, 0, 1, ReadOptions(separator=kind.separator))


@pytest.mark.thorough
def test_a_file_that_breaks_off_is_an_error(kind, tmp_path):
    """Wherever a file with an end of its own is cut off, it is refused."""
    if kind.ending in (".jsonl", ".txt"):
        pytest.skip("has no end of its own")
    path = f"{tmp_path}/file{kind.ending}"
    group_rows = 60 if kind.ending.endswith(("gz", "zst")) else 20  # between two members a file may end
    kind.write(path, [f"{i:05} {os.urandom(8).hex()}" for i in range(60)], group_rows)
    with open(path, "rb") as file:
        whole = file.read()
    for length in range(0, len(whole), 7):
        with open(path, "wb") as file:
            file.write(whole[:length])
        with pytest.raises(SourceError):
            read_all(path, ReadOptions(separator=kind.separator))


@pytest.mark.thorough
def test_damaged_bytes_never_crash(kind, tmp_path):
    """A flipped bit gives the documents, other documents, or an error that names the file; never a crash."""
    path = f"{tmp_path}/file{kind.ending}"
    kind.write(path, [f"{i:05}" for i in range(30)], 10)
    with open(path, "rb") as file:
        whole = file.read()
    # pyarrow 26 ends the process on some damages of a Parquet footer (an exception of C++ that it does not catch).
    footer_bytes = 8 + int.from_bytes(whole[-8:-4], "little") if kind.ending == ".parquet" else 0
    for position in range(0, len(whole) - footer_bytes, 3):
        with open(path, "wb") as file:
            file.write(whole[:position] + bytes([whole[position] ^ (1 << position % 8)]) + whole[position + 1 :])
        try:
            read_all(path, ReadOptions(separator=kind.separator))
        except SourceError as error:
            assert path in str(error)  # noqa: PT017 - not every flip is an error
