"""Each shape of data that people bring is read exactly, or refused with a sentence and the command that helps."""

from __future__ import annotations

import bz2
import gzip
from pathlib import Path

import pytest
import zstandard

from tests.support.inline_executor import InlineExecutor
from tests.support.shapes import SHAPES, Shape
from tokenmill import sources
from tokenmill.errors import SourceError
from tokenmill.pipeline.planning.split_sources import plan_units
from tokenmill.sources.documents import ReadOptions


def read(path: Path, shape: Shape) -> list[str | None]:
    """The texts of a file, found and planned as `prepare` does it."""
    table = sources.discover([str(path)]).table
    file, options = sources.file_at(table, 0), ReadOptions(**shape.options)
    plan_units(table, options, 1 << 30, InlineExecutor())
    slices = sources.split_file(file, options, 1 << 30)
    return [text for batch in sources.read_documents(file, slices.whole(), options) for text in batch.text.to_pylist()]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_a_shape_is_read_exactly_or_refused_with_help(shape: Shape, tmp_path: Path) -> None:
    """The texts are those that were written; a refusal says what the file is, and never to raise the limit."""
    path = tmp_path / shape.name
    path.write_bytes(shape.content)
    if not shape.refused:
        assert read(path, shape) == list(shape.texts)
        return
    with pytest.raises(SourceError) as caught:
        read(path, shape)
    for part in (*shape.refused, str(path)):
        assert part in caught.value.text
    assert "--max-bad" not in caught.value.text


MORE_SHAPES = [
    Shape("replaced.txt", "a\ufffdb c\ufffdd e\ufffdf".encode(), ["a\ufffdb c\ufffdd e\ufffdf"]),
    Shape("name.txt", b"BZhou is a name", ["BZhou is a name"]),
    Shape("hidden-bzip2.txt", bz2.compress(b"x"), refused=("bzip2", "bunzip2")),
    Shape("array.json.gz", gzip.compress(b'["text"]'), refused=("gzip -dc ", "/array.json && jq -c '.[] ")),
    Shape("utf-16.txt.zst", zstandard.compress("x".encode("utf-16")), refused=("zstd -dc ", "&& iconv ")),
]


@pytest.mark.parametrize("shape", MORE_SHAPES, ids=lambda shape: shape.name)
def test_other_shapes(shape: Shape, tmp_path: Path) -> None:
    """Valid text is not refused for a few of its characters. A command decompresses before it converts."""
    test_a_shape_is_read_exactly_or_refused_with_help(shape, tmp_path)


def test_a_web_archive_is_refused_with_a_sentence(tmp_path: Path) -> None:
    """No command extracts text from HTML, so none is announced."""
    path = tmp_path / "x.warc"
    path.write_bytes(b"WARC/1.0")
    with pytest.raises(SourceError) as caught:
        read(path, Shape("x.warc", b""))
    assert "Convert it" not in caught.value.text


def test_there_are_forty_shapes() -> None:
    """Of each kind some are read and some are refused."""
    assert len({shape.name for shape in SHAPES}) == len(SHAPES) >= 40


def test_the_rows_of_a_kind_are_numbers_or_bytes(tmp_path: Path) -> None:
    """`inspect` and `locate` call the place of a document a row exactly if the kind numbers its documents."""
    rows = {
        "csv": b"text\nfirst\nsecond\n",
        "jsonl": b'{"text": "first"}\n{"text": "second"}\n',
    }
    for ending, content in rows.items():
        path = tmp_path / f"x.{ending}"
        path.write_bytes(content)
        file = sources.file_at(sources.discover([str(path)]).table, 0)
        slices = sources.split_file(file, ReadOptions(), 1 << 30)
        (batch,) = sources.read_documents(file, slices.whole(), ReadOptions())
        assert (batch.rows[1] == 1) == (file.kind in sources.ROW_KINDS)


def test_a_filter_and_kept_columns_of_csv(tmp_path: Path) -> None:
    """A column has the type that all of its fields have; an empty field is null; rows are numbered from 0."""
    path = tmp_path / "x.csv"
    path.write_text("text,score,code,ok\na,0.5,007,true\nb,,008,false\nc,1,009,true\n")
    file = sources.file_at(sources.discover([str(path)]).table, 0)
    (columns,) = sources.read_columns(file, None, ("score", "code", "ok"), ReadOptions())
    assert columns.values.to_pydict() == {
        "score": [0.5, None, 1.0],
        "code": ["007", "008", "009"],
        "ok": [True, False, True],
    }
    options = ReadOptions(where="score >= 0.5 and code != '007'")
    batches = list(sources.read_documents(file, sources.split_file(file, options, 1).whole(), options))
    assert [(batch.rows.tolist(), batch.text.to_pylist()) for batch in batches] == [([], []), ([2], ["c"])]
    assert batches[0].skipped["filtered"].tolist() == [0, 1]


def test_csv_in_a_directory_is_listed_and_not_read(tmp_path: Path) -> None:
    """A .csv beside other sources is often metadata: it is read by its name or by a glob."""
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n')
    (tmp_path / "metadata.csv").write_text("text\nx\n")
    found = sources.discover([str(tmp_path)])
    assert found.ignored.endings == {".csv": 1}
    assert sources.discover([f"{tmp_path}/*.csv"]).table["kind"].to_pylist() == ["csv"]
