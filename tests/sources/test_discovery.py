"""Which files are found, in which order, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenmill import sources, storage
from tokenmill.errors import SourceError
from tokenmill.sources.discovery import natural_key
from tokenmill.sources.documents import SourceFile


@pytest.fixture
def tree(tmp_path):
    """A directory with sources in two folders and files that are none."""
    for name in (
        "b/file10.txt",
        "b/file2.txt",
        "a/x.parquet",
        "a/y.jsonl.gz",
        "a/state.json",
        "a/.hidden.txt",
        "README",
    ):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"data")
    return tmp_path


def names(discovery: sources.Discovery) -> list[str]:
    """The file names in the order found."""
    return [path.rsplit("/", 1)[1] for path in discovery.table.column("path").to_pylist()]


def test_a_directory_gives_its_sources_in_natural_order(tree):
    """Numbers in names count as numbers, and files that are no sources are listed as ignored."""
    found = sources.discover([str(tree)])
    assert names(found) == ["x.parquet", "y.jsonl.gz", "file2.txt", "file10.txt"]
    assert found.table.column("kind").to_pylist() == ["parquet", "jsonl", "text", "text"]
    assert found.table.column("size").to_pylist() == [4] * 4
    assert found.ignored.endings == {".json": 1, "none": 1}
    assert found.ignored.example == f"{tree}/README"


def test_arguments_keep_their_order(tree):
    """What is named first comes first."""
    found = sources.discover([f"{tree}/b/*.txt", f"{tree}/a"])
    assert names(found) == ["file2.txt", "file10.txt", "x.parquet", "y.jsonl.gz"]


def test_a_row_of_the_table_is_a_source_file(tree):
    """The record that travels has the row's index, path, kind, size and fingerprint."""
    table = sources.discover([str(tree)]).table
    info = storage.stat(f"{tree}/b/file2.txt")
    assert sources.file_at(table, 2) == SourceFile(2, info.path, "text", 4, info.fingerprint)


def test_the_table_survives_parquet(tree, tmp_path):
    """Written and read back, the table gives the same source files."""
    table = sources.discover([str(tree)]).table
    pq.write_table(table, tmp_path / "sources.parquet")
    again = pq.read_table(tmp_path / "sources.parquet")
    assert [sources.file_at(again, i) for i in range(4)] == [sources.file_at(table, i) for i in range(4)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *[("a.parquet", "parquet"), ("A.PARQUET", "parquet"), ("a.arrow", "arrow"), ("a.feather", "arrow")],
        *[("a.ipc", "arrow"), ("a.jsonl", "jsonl"), ("a.v2.ndjson.zst", "jsonl"), ("a.json.gz", "jsonl")],
        *[("a.JSON.ZST", "jsonl"), ("a.txt", "text"), ("a.txt.gz", "text"), ("x.y/a.txt", "text")],
        *[
            ("a.json", None),
            ("a.csv", None),
            ("a.gz", None),
            ("parquet", None),
            ("a.parquet.gz", None),
            ("x.txt/a", None),
        ],
    ],
)
def test_the_ending_tells_the_kind(name, kind):
    """The ending of the file's name decides, whatever its case."""
    assert sources.kind_of(name) == kind


def test_a_plain_json_counts_only_if_it_is_named(tree):
    """By path or glob a .json is JSON Lines; in a directory it is ignored."""
    for pattern in (f"{tree}/a/state.json", f"{tree}/a/*.json"):
        assert sources.discover([pattern]).table.column("kind").to_pylist() == ["jsonl"]


@pytest.mark.parametrize("pattern", ["README", "READ*"])
def test_a_named_file_of_unknown_kind_is_refused(tree, pattern):
    """The error names the file and the endings that are known."""
    with pytest.raises(SourceError, match="README") as caught:
        sources.discover([f"{tree}/{pattern}"])
    assert ".parquet" in str(caught.value)
    assert ".jsonl.zst" in str(caught.value)


def test_a_file_named_twice_is_read_once_where_it_is_named_first(tree):
    """Whichever way the second name is spelled, and the result says so."""
    found = sources.discover([f"{tree}/b", f"{tree}/a/../b/file2.txt"])
    assert names(found) == ["file2.txt", "file10.txt"]
    assert found.ignored.repeated == [f"{tree}/b/file2.txt (given twice)"]
    assert names(sources.discover([f"{tree}/b/file10.txt", f"{tree}/b"])) == ["file10.txt", "file2.txt"]


def test_nothing_to_read_is_an_error(tmp_path):
    """No argument, a directory without sources, or a path that does not exist."""
    (tmp_path / "notes.md").write_text("none")
    with pytest.raises(SourceError, match="no source given"):
        sources.discover([])
    with pytest.raises(SourceError, match=r"no source in (.|\n)*notes\.md"):
        sources.discover([str(tmp_path)])
    with pytest.raises(SourceError, match="no such file"):
        sources.discover([f"{tmp_path}/missing"])
    with pytest.raises(SourceError, match="no file matches"):
        sources.discover([f"{tmp_path}/*.txt"])


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    """It could not be stored, so it is named instead."""
    with open(f"{tmp_path}/".encode() + b"\xff.txt", "wb"):
        pass
    with pytest.raises(SourceError, match="not valid UTF-8"):
        sources.discover([str(tmp_path)])


def test_natural_order_is_total_and_numeric():
    """Equal numbers written differently are told apart, and long numbers do not overflow."""
    paths = ["f1", "f01", "f2", "f10", "f" + "9" * 40, "f1" + "0" * 40, "f", "f-1", "f1a", "f1b2", "f1b10"]
    ordered = sorted(paths, key=natural_key)
    paths.reverse()
    assert ordered == sorted(paths, key=natural_key)
    assert [p for p in ordered if p.startswith("f1b")] == ["f1b2", "f1b10"]
    assert ordered.index("f2") < ordered.index("f10") < ordered.index("f" + "9" * 40) < ordered.index("f1" + "0" * 40)
    assert ordered.index("f01") < ordered.index("f1") < ordered.index("f2")


@pytest.mark.thorough
def test_many_files_are_ordered(monkeypatch):
    """20,000 files, given in any order, come out in natural order."""
    files = [storage.FileInfo(f"/data/{i % 100}/part-{i}.parquet", i, f"{i}-{i}") for i in range(20_000)]
    monkeypatch.setattr(storage, "find", lambda *_: storage.Listing(files, "/data"))
    table = sources.discover(["/data"]).table
    assert table.num_rows == 20_000
    assert table.column("path")[1].as_py() == "/data/0/part-100.parquet"
    assert table.schema.field("size").type == pa.int64()
