"""Footers cut down to a column and some row groups: what is read with them is what is read with the file's own."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.corpora import write_parquet
from tests.support.source_files import source
from tokenmill import sources
from tokenmill.errors import SourceError
from tokenmill.pipeline import plan as planning
from tokenmill.sources import packed_footer, parquet, parquet_footer
from tokenmill.sources.documents import ReadOptions, Slice, SourceFile
from tokenmill.storage import folder_at
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.range_file import RangeFile
from tokenmill.store import layout, tables

TEXTS = [f"document {number}: " + "grüße, 世界 " * (number % 7) for number in range(200)]
ARRAYS = {
    "string": pa.array(TEXTS, pa.string()),
    "with nulls": pa.array([None if number % 5 == 0 else text for number, text in enumerate(TEXTS)], pa.string()),
    "large_string": pa.array(TEXTS, pa.large_string()),
    "binary": pa.array([text.encode() for text in TEXTS], pa.binary()),
    "dictionary": pa.array(["one", "two"] * 100).dictionary_encode(),
    "empty": pa.array([""] * 200, pa.string()),
}
WRITERS = [
    {"compression": codec, "use_dictionary": dictionary, "data_page_version": version}
    for codec, dictionary, version in product(
        ("none", "snappy", "gzip", "brotli", "zstd", "lz4"), (True, False), ("1.0", "2.0")
    )
]


def write(path: Path, column: pa.Array, **options: object) -> SourceFile:
    """A file of row groups of 30 with the text between other columns, some of them nested."""
    size = len(column)
    columns = {
        "id": pa.array(range(size)),
        "tags": pa.array([[{"a": number}] * (number % 3) for number in range(size)]),
        "text": column,
        "score": pa.array([number / 7 for number in range(size)]),
    }
    pq.write_table(pa.table(columns), path, row_group_size=30, data_page_size=400, **options)
    return source(str(path))


def read(file: SourceFile, file_slice: Slice) -> list[tuple[int, str | None]]:
    """The rows and texts of a slice."""
    rows: list[tuple[int, str | None]] = []
    for documents in sources.read_documents(file, file_slice, ReadOptions()):
        rows += zip(documents.rows.tolist(), documents.text.to_pylist(), strict=True)
    return rows


def slices(file: SourceFile, unit_bytes: int) -> list[Slice]:
    """The slices of a file as the plan keeps them."""
    slices = sources.split_file(file, ReadOptions(), unit_bytes)
    assert slices.details is not None
    assert len(slices.details) == len(slices.start)
    return list(map(Slice, slices.start.tolist(), slices.stop.tolist(), slices.details))


@pytest.mark.parametrize("options", WRITERS, ids=lambda options: "-".join(map(str, options.values())))
def test_every_codec_and_page_is_read_alike(tmp_path: Path, options: dict[str, object]) -> None:
    """A slice gives the same rows with its own footer as with the file's."""
    file = write(tmp_path / "corpus.parquet", ARRAYS["with nulls"], **options)
    if options["compression"] == "lz4":  # there are three codecs of that name
        assert sources.split_file(file, ReadOptions(), 2000).details is None
        return
    found = slices(file, 2000)
    assert len(found) > 2
    for file_slice in found:
        assert read(file, file_slice) == read(file, Slice(file_slice.start, file_slice.stop))
    assert [row for file_slice in found for row, _ in read(file, file_slice)] == list(range(200))


@pytest.mark.parametrize("kind", ARRAYS)
def test_every_type_of_text_is_read_alike(tmp_path: Path, kind: str) -> None:
    """The types that text can have, nulls and empty documents included."""
    file = write(tmp_path / "corpus.parquet", ARRAYS[kind])
    for file_slice in slices(file, 1):
        assert read(file, file_slice) == read(file, Slice(file_slice.start, file_slice.stop))


def test_a_column_without_nulls_by_contract(tmp_path: Path) -> None:
    """A required column has no definition levels, which the footer has to tell."""
    schema = pa.schema([pa.field("text", pa.string(), nullable=False)])
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table([TEXTS], schema=schema), path, row_group_size=50)
    file = source(str(path))
    assert [text for file_slice in slices(file, 1) for _, text in read(file, file_slice)] == TEXTS


def test_a_rare_column_is_left_to_the_files_own_footer(tmp_path: Path) -> None:
    """A column of nulls only is no byte array: nothing is kept of it, and it is read all the same."""
    file = write(tmp_path / "corpus.parquet", pa.nulls(200))
    slices = sources.split_file(file, ReadOptions(), 1)
    assert slices.details is None
    assert read(file, Slice(0, 1)) == [(row, None) for row in range(30)]


def test_reading_stays_within_reach(tmp_path: Path) -> None:
    """What `reach` tells is all that a slice takes: nothing of the file's footer, little of its other columns."""
    path = write_parquet(tmp_path / "corpus.parquet", TEXTS, row_group_size=40)
    file, data = source(path), Path(path).read_bytes()
    for file_slice in slices(file, 2000):
        spans = parquet.byte_ranges(file, file_slice, ReadOptions())
        asked: list[tuple[int, int]] = []

        def fetch(start: int, stop: int, asked: list[tuple[int, int]] = asked) -> pa.Buffer:
            asked.append((start, stop))
            return pa.py_buffer(data[start:stop])

        info = FileInfo("s3://nowhere/corpus.parquet", file.size, "version")
        footer = parquet_footer.footer_from_plan(file, file_slice, ("text",))
        stream = pa.PythonFile(RangeFile(info, fetch, spans), mode="r")
        reader = pq.ParquetFile(stream, metadata=footer.metadata, pre_buffer=False, buffer_size=parquet.BUFFER_BYTES)
        assert reader.read(columns=["text"]).num_rows == footer.rows.sum()
        assert asked == spans
        assert sum(stop - start for start, stop in spans) < file.size / 2


def test_a_slice_of_another_plan_is_refused(tmp_path: Path) -> None:
    """A footer that does not have the row groups of its slice is told, not read."""
    file = write(tmp_path / "corpus.parquet", ARRAYS["string"])
    first = slices(file, 1)[0]
    with pytest.raises(SourceError, match="cannot be read"):
        read(file, Slice(first.start, first.stop + 1, first.detail))


def test_the_plan_of_many_files_alike_can_be_read(tmp_path: Path) -> None:
    """What the plan keeps of footers may be the same for hundreds of files: that is no sign of damage."""
    file = source(write_parquet(tmp_path / "corpus.parquet", ["the same text"] * 500, row_group_size=1))
    plan = planning.build_plan([sources.split_file(file, ReadOptions(), 1)] * 100, 1, None)
    folder = folder_at(str(tmp_path / "store"))
    folder.create()
    tables.publish_table(folder, layout.PLAN, plan)
    assert tables.read_table(folder, layout.PLAN).equals(plan)


def test_what_is_kept_is_a_few_bytes_for_each_row_group(tmp_path: Path) -> None:
    """A plan of a million units of a dozen row groups is held in memory: what they have in common is kept once."""
    file = write(tmp_path / "corpus.parquet", pa.array(TEXTS * 60, pa.string()))
    sizes = [len(file_slice.detail or b"") for file_slice in slices(file, 1 << 40)]
    assert sum(sizes) < 400 * 20


GOOD = packed_footer.PackedFooter(
    "text", 1, True, 2, "writer", ((1, False, (0, 3)),), bytes([0, 60, 200, 1, 200, 1, 8, 0])
)


@pytest.mark.parametrize(
    "kept",
    [
        b"",
        b"no record",
        msgspec.msgpack.encode(GOOD)[:-3],
        msgspec.msgpack.encode(["text", "1", True, 2, "writer", [], b""]),
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, shapes=())),
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, numbers=GOOD.numbers[:-1])),
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, numbers=b"\xff" * 1000)),
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, numbers=GOOD.numbers * 3)),
        msgspec.msgpack.encode(msgspec.structs.replace(GOOD, version=1 << 63)),
    ],
)
def test_what_is_kept_and_damaged_is_told(tmp_path: Path, kept: bytes) -> None:
    """Bytes that `cut_down` would not write end in an error that names the file."""
    file = write(tmp_path / "corpus.parquet", ARRAYS["string"])
    with pytest.raises(SourceError, match="cannot be read"):
        read(file, Slice(0, 1, bytes(8) + kept))


def test_what_is_kept_is_believed_as_far_as_it_is_sound(tmp_path: Path) -> None:
    """The damages above are damages of something that is read otherwise."""
    file = write(tmp_path / "corpus.parquet", ARRAYS["string"])
    assert packed_footer.unpack_footer(msgspec.msgpack.encode(GOOD), 1).row_group(0).num_rows == 30
    file_slice = slices(file, 1)[0]
    kept = msgspec.msgpack.decode((file_slice.detail or b"")[8:], type=packed_footer.PackedFooter)
    assert kept.name == "text"
    assert read(file, file_slice) == list(enumerate(TEXTS[:30]))
