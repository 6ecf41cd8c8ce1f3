"""Text: whole files, and pieces between separators that any cut leaves alone."""

from __future__ import annotations

import gzip
import tempfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.source_files import read_all, source, texts
from tokenmill import sources
from tokenmill.errors import BadDocument, UsageError
from tokenmill.sources.documents import ReadOptions

SEPARATORS = ["\n", "\n\n", "\n\n\n", "aa", "aba", "abab", "aabaa", "é\n", "éé", "<|end|>"]


def expected(text: str, separator: str) -> list[tuple[int, str]]:
    """What the plainest code makes of it: pieces that are not empty, with the byte where each starts."""
    stream, position = [], 0
    for piece in text.split(separator):
        if piece:
            stream.append((position, piece))
        position += len((piece + separator).encode())
    return stream


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("ab\né", max_size=60) | st.text("a\n", max_size=60),
    separator=st.sampled_from(SEPARATORS),
    unit_bytes=st.integers(1, 20),
    batch_bytes=st.integers(1, 20),
)
@example(text="a\n\n\nb", separator="\n\n", unit_bytes=1, batch_bytes=1)
@example(text="\n" * 31, separator="\n\n", unit_bytes=3, batch_bytes=2)
@example(text="ababababab", separator="aba", unit_bytes=1, batch_bytes=3)
def test_pieces_are_those_of_split_wherever_it_is_cut(text, separator, unit_bytes, batch_bytes):
    """Separators that overlap themselves or straddle a cut are matched from left to right, as `str.split` does."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text.encode())
        file.flush()
        options = ReadOptions(separator=separator, batch_bytes=batch_bytes)
        assert read_all(file.name, options, unit_bytes) == expected(text, separator)


def test_without_separator_a_file_is_one_document(tmp_path):
    """Nothing is stripped: byte order mark, line ends and white space stay."""
    path = tmp_path / "file.txt"
    text = "\ufeff one\r\n\n<|endoftext|> two \n\n"
    path.write_bytes(text.encode())
    assert read_all(str(path), unit_bytes=3) == [(0, text)]
    packed = tmp_path / "file.txt.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_all(str(packed)) == [(0, text)]


def test_an_empty_file_is_one_empty_document(tmp_path):
    """Without separator; with one, it holds no document."""
    path = tmp_path / "file.txt"
    path.write_bytes(b"")
    assert read_all(str(path)) == [(0, "")]
    assert read_all(str(path), ReadOptions(separator="\n")) == []


def test_invalid_utf8_is_named_by_the_byte_where_its_document_starts(tmp_path):
    """Of a piece as of a whole file."""
    path = tmp_path / "file.txt"
    path.write_bytes(b"one\ntwo\nthr\xffee\nfour")
    with pytest.raises(BadDocument, match=r"row +8\n") as caught:
        read_all(str(path), ReadOptions(separator="\n"), 2)
    assert "reason       byte 3 of" in str(caught.value)
    with pytest.raises(BadDocument, match=r"row +0\n"):
        read_all(str(path))


@pytest.mark.thorough
def test_a_long_run_of_separators_is_cut_in_time(tmp_path):
    """A hundred thousand line ends in a row are split as one text would be."""
    path = tmp_path / "file.txt"
    text = "a" + "\n" * 100_001 + "b"
    path.write_text(text)
    assert read_all(str(path), ReadOptions(separator="\n\n"), 20_000) == expected(text, "\n\n")


def test_a_giant_file_is_cut_by_bytes(tmp_path):
    """Slices are byte ranges, whatever the documents are."""
    path = tmp_path / "file.txt"
    path.write_text("line\n" * 1000)
    slices = sources.split_file(source(str(path)), ReadOptions(separator="\n"), 1024)
    assert slices.start.tolist() == [0, 1024, 2048, 3072, 4096]
    assert slices.stop.tolist() == [1024, 2048, 3072, 4096, 5000]
    assert texts(str(path), ReadOptions(separator="\n")) == ["line"] * 1000


def test_a_template_is_refused(tmp_path):
    """Text has no columns that it could be made of."""
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(UsageError, match="text files have no columns"):
        sources.split_file(source(tmp_path / "a.txt"), ReadOptions(template="{title}: {text}"), 1 << 20)
