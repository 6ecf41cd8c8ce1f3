"""Parquet and Arrow: columns, row groups and record batches, and what `datasets` saves."""

from __future__ import annotations

import glob
import itertools

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.source_files import batches, read_all, read_slice, source, texts, write_parquet
from tokenmill import sources
from tokenmill.errors import BadDocument, SourceError
from tokenmill.sources.columnar import pack
from tokenmill.sources.documents import ReadOptions, Slice

TYPES = [
    *[pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()],
    *[pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int8(), pa.large_string())],
]


def write(path: str, table: pa.Table) -> str:
    """A table as Parquet, Arrow file or stream, as the ending says."""
    if path.endswith(".parquet"):
        pq.write_table(table, path)
        return path
    new = pa.ipc.new_stream if path.endswith("stream.arrow") else pa.ipc.new_file
    with new(path, table.schema) as writer:
        writer.write_table(table)
    return path


@pytest.fixture(params=["x.parquet", "file.arrow", "stream.arrow"])
def path(request, tmp_path) -> str:
    """A file of each of these kinds in turn."""
    return f"{tmp_path}/{request.param}"


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_type_of_text_is_read(path, kind):
    """Plain, large, view, dictionary and binary columns give the same documents."""
    values = ["one", None, "a longer text, which a view does not hold inline", "", "one"]
    column = pa.array(values).dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else pa.array(values, kind)
    write(path, pa.table({"text": column}))
    assert texts(path) == values


def test_a_column_of_nulls_gives_nulls(path):
    """A column without any value counts its rows."""
    write(path, pa.table({"text": pa.nulls(3)}))
    assert texts(path) == [None] * 3


def test_another_column_can_be_named(path):
    """`--column` picks the column, whatever stands around it."""
    table = pa.table({"a": [[1, 2]], "b": [{"text": "nested"}], "text": ["no"], "content": ["yes"], "n": pa.nulls(1)})
    write(path, table)
    assert texts(path, ReadOptions(column="content")) == ["yes"]


@pytest.mark.parametrize(
    ("column", "headline"),
    [("missing", "no column named 'missing'"), ("n", "is int64, not text"), ("s", "is nested"), ("l", "is nested")],
)
def test_a_wrong_column_is_refused_when_the_file_is_split(path, column, headline):
    """The error names the file, the column, the columns there are and the option."""
    write(path, pa.table({"n": [1], "s": [{"text": "x"}], "l": [[1]], "text": ["x"]}))
    with pytest.raises(SourceError, match=headline) as caught:
        sources.split_file(source(path), ReadOptions(column=column), 1000)
    message = caught.value.text
    assert path in message
    assert "n (int64)" in message
    assert "text (string)" in message
    assert "--column NAME" in message


def test_invalid_utf8_is_named_by_its_row(path):
    """Bytes that are no UTF-8 are found in any column of bytes or text, with the row of the file."""
    values = pa.array([b"fine"] * 7 + [b"bad \xff byte"], pa.binary())
    table = pa.table({"text": pa.chunked_array([values[:4], values[4:]])})
    write(path, table)
    with pytest.raises(BadDocument, match=r"row +7\n") as caught:
        read_all(path)
    assert "reason       byte 4 of" in str(caught.value)
    write(path, pa.table({"text": table.column(0).combine_chunks().view(pa.string())}))
    with pytest.raises(BadDocument, match=r"row +7\n"):
        read_all(path)


def test_something_else_under_the_ending_is_refused(path):
    """A file that is not what its ending says is named."""
    for content in (b"", b"no such thing", b"ARROW1", b"PAR1PAR1", b"\xff" * 100, b"\x00" * 100):
        with open(path, "wb") as file:
            file.write(content)
        with pytest.raises(SourceError, match=path):
            read_all(path)


def test_compressed_batches_are_read(tmp_path):
    """Arrow bodies may be compressed."""
    for codec in ("lz4", "zstd"):
        path = f"{tmp_path}/{codec}.arrow"
        with pa.ipc.new_stream(
            path, batches(["x"], 1)[0].schema, options=pa.ipc.IpcWriteOptions(compression=codec)
        ) as w:
            for batch in batches(["word " * 100, None, "end"], 2):
                w.write_batch(batch)
        assert read_all(path, unit_bytes=1) == [(0, "word " * 100), (1, None), (2, "end")]


def test_dictionaries_that_change_within_a_stream_are_followed(tmp_path):
    """A slice in the middle of a stream knows the dictionaries that came before it."""
    path = f"{tmp_path}/x.arrow"
    schema = pa.schema([("text", pa.dictionary(pa.int32(), pa.string()))])
    values: list[list[str | None]] = [["a", "b", "a"], ["c", "c"], ["d", "a", None]]
    with pa.ipc.new_stream(path, schema) as writer:
        for value in values:
            writer.write_batch(pa.record_batch([pa.array(value).dictionary_encode()], schema=schema))
    assert read_all(path, unit_bytes=1) == list(enumerate(itertools.chain(*values)))
    assert len(sources.split_file(source(path), ReadOptions(), 1).start) == 3


def test_a_stream_without_end_mark_is_refused(tmp_path):
    """A stream whose writer was stopped between two batches lacks documents, so it is not read."""
    path = f"{tmp_path}/x.arrow"
    with pa.OSFile(path, "wb") as file:
        writer = pa.ipc.new_stream(file, batches(["x"], 1)[0].schema)
        writer.write_batch(batches(["one", "two"], 2)[0])
        file.flush()
        whole = file.tell()
        writer.close()
    with open(path, "rb+") as file:
        file.truncate(whole)
    with pytest.raises(SourceError, match="breaks off"):
        read_all(path)


def test_arrow_of_before_0_15_is_read(tmp_path):
    """The old framing of messages, without continuation mark, is understood."""
    path = f"{tmp_path}/x.arrow"
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True, metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(path, batches(["x"], 1)[0].schema, options=options) as writer:
        for batch in batches(["one", "two", "three"], 2):
            writer.write_batch(batch)
    assert texts(path) == ["one", "two", "three"]


def test_a_file_without_a_schema_message_is_read(tmp_path):
    """Polars writes the schema without the length of a message. The footer has the schema, too."""
    path = tmp_path / "x.arrow"
    table = pa.table({"n": [1, 2, 3], "text": pa.array(["one", None, "three" * 10], pa.string_view())})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, 2)
    content = bytearray(path.read_bytes())
    content[8:16] = bytes([4, 0, 0, 0, 0xF2, 0xFF, 0xFF, 0xFF])
    path.write_bytes(content)
    assert read_all(str(path), unit_bytes=1) == [(0, "one"), (1, None), (2, "three" * 10)]
    found = sources.read_columns(source(str(path)), None, ("n",), ReadOptions())
    assert [value for part in found for value in part.values["n"].to_pylist()] == [1, 2, 3]


def test_a_saved_dataset_is_read(tmp_path):
    """`Dataset.save_to_disk` gives streams and a few JSON files; the streams are the sources."""
    documents = [f"document {i}" for i in range(250)]
    dataset = datasets.Dataset.from_dict({"id": list(range(250)), "text": documents})
    dataset.save_to_disk(f"{tmp_path}/saved", num_shards=3)
    found = sources.discover([f"{tmp_path}/saved"])
    assert found.ignored.endings == {".json": 2}
    paths = found.table.column("path").to_pylist()
    assert len(paths) == 3
    assert list(itertools.chain(*map(texts, paths))) == documents


def test_the_cache_of_datasets_is_read(tmp_path):
    """What `load_dataset` leaves in its cache are streams too, and they are split by their batches."""
    with open(f"{tmp_path}/in.jsonl", "w") as file:
        file.writelines(f'{{"text": "line {i}"}}\n' for i in range(3000))
    dataset = datasets.load_dataset(
        "json", data_files=f"{tmp_path}/in.jsonl", split="train", cache_dir=f"{tmp_path}/cache"
    )
    mapped = dataset.map(lambda row: {"text": row["text"].upper()}, writer_batch_size=1000)
    (path,) = {entry["filename"] for entry in mapped.cache_files}
    assert path in glob.glob(f"{tmp_path}/cache/**/*.arrow", recursive=True)
    slices = sources.split_file(source(path), ReadOptions(), 1000)
    assert slices.rows is not None
    assert slices.rows.tolist() == [1000] * 3
    assert read_all(path, unit_bytes=1000) == [(i, f"LINE {i}") for i in range(3000)]


def test_the_size_of_the_text_is_known_without_reading_it(path):
    """Other columns do not count, whatever their type."""
    noise = {
        "a": [["x" * 50, "y"]] * 100,
        "b": [{"c": 1.5, "d": "z" * 50}] * 100,
        "n": pa.nulls(100),
        "f": [True] * 100,
    }
    write(path, pa.table({**noise, "text": [f"{i:02}" * 25 for i in range(100)], "z": ["w" * 500] * 100}))
    slices = sources.split_file(source(path), ReadOptions(), 1 << 20)
    assert 5000 <= slices.text_bytes.sum() <= 7000
    assert slices.rows is not None
    assert slices.rows.tolist() == [100]


def test_thousands_of_row_groups_are_packed(tmp_path):
    """Row groups smaller than a unit are read together, and every row keeps its number."""
    path = f"{tmp_path}/x.parquet"
    write_parquet(path, [f"document {i}" for i in range(3000)], 1)
    slices = sources.split_file(source(path), ReadOptions(), 2000)
    assert 20 < len(slices.start) < 200
    assert slices.rows is not None
    assert slices.rows.sum() == 3000
    last = len(slices.start) - 1
    stream = read_slice(source(path), int(slices.start[last]), int(slices.stop[last]), ReadOptions())
    assert stream[-1] == (2999, "document 2999")
    assert len(stream) == slices.rows[last]


def test_a_footer_is_read_once_for_consecutive_slices(tmp_path, monkeypatch):
    """Slices of one file share its footer, which may take megabytes."""
    path = f"{tmp_path}/x.parquet"
    write_parquet(path, ["one", "two", "three"], 1)
    reads: list[object] = []
    read_metadata = pq.read_metadata

    def counted(file: object) -> pq.FileMetaData:
        reads.append(file)
        return read_metadata(file)

    monkeypatch.setattr(pq, "read_metadata", counted)
    assert len(read_all(path, unit_bytes=1)) == 3
    assert len(reads) == 1


def test_one_value_repeated_by_a_dictionary_does_not_fill_the_memory(tmp_path):
    """A small file can hold a large text; it still comes in batches."""
    path = f"{tmp_path}/x.parquet"
    write_parquet(path, ["word " * 2000] * 20_000, 20_000)
    options = ReadOptions(batch_bytes=1 << 20)
    sizes = [len(documents.rows) for documents in sources.read_documents(source(path), Slice(0, 1), options)]
    assert sum(sizes) == 20_000
    assert max(sizes) <= 210


def test_pages_are_checked_where_they_have_a_checksum(tmp_path):
    """A flipped bit in a page with a checksum is found."""
    path = f"{tmp_path}/x.parquet"
    table = pa.table({"text": [f"document {i}" for i in range(1000)]})
    pq.write_table(table, path, write_page_checksum=True, compression="none", use_dictionary=False)
    with open(path, "rb+") as file:
        at = file.read().index(b"document 500")
        file.seek(at)
        file.write(b"D")
    with pytest.raises(SourceError, match="CRC"):
        read_all(path)


@pytest.mark.parametrize(
    ("sizes", "target", "edges"),
    [([], 5, [0]), ([1], 5, [0, 1]), ([3, 3, 3, 3], 6, [0, 2, 4]), ([9, 9], 5, [0, 1, 2]), ([0, 0, 0], 5, [0, 3])],
)
def test_groups_are_packed_to_about_the_target(sizes, target, edges):
    """A run ends where the target is passed; a group is never cut."""
    assert pack(np.array(sizes, dtype=np.int64), target).tolist() == edges
