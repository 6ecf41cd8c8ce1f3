"""Footers of Parquet files: each is read once for all units of a file, and slices are compared with it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.corpora import write_parquet
from tests.support.source_files import source
from tokenmill import sources
from tokenmill.errors import SourceError
from tokenmill.pipeline.unit import plan as planning
from tokenmill.sources import parquet
from tokenmill.sources.documents import ReadOptions, Slice, SourceFile
from tokenmill.storage import folder_at
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.range_file import RangeFile
from tokenmill.store import layout, tables

TEXTS = [f"document {number}: " + "grüße, 世界 " * (number % 7) for number in range(200)]


def slices(file: SourceFile, unit_bytes: int) -> list[Slice]:
    """The slices of a file as the plan keeps them."""
    slices = sources.split_file(file, ReadOptions(), unit_bytes)
    return list(map(Slice, slices.start.tolist(), slices.stop.tolist()))


def test_reading_stays_within_the_byte_ranges(tmp_path: Path) -> None:
    """`byte_ranges` has all that a slice takes: nothing of the file's footer, little of its other columns."""
    path = write_parquet(tmp_path / "corpus.parquet", TEXTS, row_group_size=40)
    file, data = source(path), Path(path).read_bytes()
    footer = parquet.read_footer(file, ("text",))
    for file_slice in slices(file, 2000):
        spans = parquet.byte_ranges(file, file_slice, ReadOptions())
        groups = range(file_slice.start, file_slice.stop)
        asked: list[tuple[int, int]] = []

        def fetch(start: int, stop: int, asked: list[tuple[int, int]] = asked) -> pa.Buffer:
            asked.append((start, stop))
            return pa.py_buffer(data[start:stop])

        info = FileInfo("s3://nowhere/corpus.parquet", file.size, "version")
        stream = pa.PythonFile(RangeFile(info, fetch, spans), mode="r")
        reader = pq.ParquetFile(stream, metadata=footer.metadata, pre_buffer=False, buffer_size=parquet.BUFFER_BYTES)
        assert reader.read_row_groups(list(groups), columns=["text"]).num_rows == len(footer.row_range(groups))
        assert asked == spans
        assert sum(stop - start for start, stop in spans) < file.size / 2


@pytest.mark.parametrize("file_slice", [Slice(4, 6), Slice(0, 1 << 62), Slice(3, 2)])
def test_a_slice_of_another_plan_is_refused(tmp_path: Path, file_slice: Slice) -> None:
    """Row groups that the file does not have are told, not read."""
    file = source(write_parquet(tmp_path / "corpus.parquet", TEXTS, row_group_size=40))
    with pytest.raises(SourceError, match="it has 5 row groups"):
        list(sources.read_documents(file, file_slice, ReadOptions()))


def test_all_columns_of_a_file_take_one_footer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text, the columns that are kept and those of a filter are found in a footer that is read once."""
    file = source(write_parquet(tmp_path / "corpus.parquet", TEXTS, row_group_size=40))
    asked: list[object] = []
    read = pq.read_metadata

    def counted(stream: object) -> pq.FileMetaData:
        asked.append(stream)
        return read(stream)

    monkeypatch.setattr(pq, "read_metadata", counted)
    for file_slice in slices(file, 2000):
        assert list(sources.read_documents(file, file_slice, ReadOptions()))
        assert list(sources.read_columns(file, file_slice, ("text",), ReadOptions()))
    assert len(asked) == 1


def test_the_plan_of_many_files_alike_can_be_read(tmp_path: Path) -> None:
    """The units of thousands of files may be the same: that is no sign of damage."""
    file = source(write_parquet(tmp_path / "corpus.parquet", ["the same text"] * 500, row_group_size=1))
    plan = planning.build_plan([sources.split_file(file, ReadOptions(), 1)] * 2000, 1)
    folder = folder_at(str(tmp_path / "store"))
    folder.create()
    tables.publish_table(folder, layout.PLAN, plan)
    assert len(plan) == 1_000_000
    assert tables.read_table(folder, layout.PLAN).equals(plan)
