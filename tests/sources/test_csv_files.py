"""CSV and TSV files are read exactly, whatever their quotes, separators and line ends are, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill import sources
from tokenmill.errors import SourceError
from tokenmill.sources import csv_files
from tokenmill.sources.documents import ReadOptions


def texts(path: Path, column: str = "text") -> list[str | None]:
    file, options = sources.file_at(sources.discover([str(path)]).table, 0), ReadOptions(column=column)
    slices = sources.split_file(file, options, 1 << 30)
    return [text for batch in sources.read_documents(file, slices.whole(), options) for text in batch.text.to_pylist()]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("inch.csv", b'id,text\n1,5" disk\n2,"a ""b"""', ['5" disk', 'a "b"']),
        ("quotes.tsv", b'id\ttext\n1\t"Hello," she said.\n2\t"\n', ['"Hello," she said.', '"']),
        ("quotes.tsv.csv", b'id,text\n1,"a\tb"\n', ["a\tb"]),
        ("blank.csv", b"\r\n\r\nid,text\r\n1,a\r\n", ["a"]),
        ("mac.csv", b'id,text\r1,"a\rb"\r2,c\r', ["a\rb", "c"]),
        ("header.csv", b"id,text\n", []),
        ("header-only.csv", b"text", []),
        ("comma.csv", b"id;text;title, de\n1;a;b\n2;c;d\n", ["a", "c"]),
        ("quoted.csv", b'"a,b";text\n1;x\n', ["x"]),
    ],
)
def test_csv_is_read_exactly(tmp_path: Path, name: str, content: bytes, expected: list[str]) -> None:
    """Quotes within a field, no quoting in .tsv, blank lines, all line ends, and separators within names."""
    path = tmp_path / name
    path.write_bytes(content)
    assert texts(path) == expected


@pytest.mark.parametrize("column", ["id", "text"])
def test_a_quote_that_is_not_closed_is_refused(tmp_path: Path, column: str) -> None:
    """All lines after it would be one field. The row is named, whichever column is read."""
    path = tmp_path / "x.csv"
    path.write_bytes(b'id,text\n1,5" disk\n2,"unclosed\n3,z\n4,end\n')
    with pytest.raises(SourceError, match="ends inside quotes") as caught:
        texts(path, column)
    assert "row          1" in caught.value.text


def test_a_record_longer_than_two_blocks_names_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice is the option that allows longer records, or a quote that is open."""
    monkeypatch.setattr(csv_files, "MIN_BLOCK_BYTES", 64)
    monkeypatch.setattr(csv_files, "RECORD_BYTES", 0)
    path = tmp_path / "x.csv"
    path.write_bytes(b'text\na\n"' + b"b\n" * 400 + b'"\n')
    with pytest.raises(SourceError, match="more than 64 B") as caught:
        texts(path)
    assert "--max-document-bytes" in caught.value.text
    assert "quote" in caught.value.text
