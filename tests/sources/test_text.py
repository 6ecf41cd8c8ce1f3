"""Text: whole files, and pieces between separators that any cut leaves alone."""

from __future__ import annotations

import gzip
import re
import tempfile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tokenmill
from tests.support.corpora import SMALL_JSON
from tests.support.inline_executor import InlineExecutor
from tests.support.source_files import read_all, read_all_and_bad, source, texts
from tokenmill import sources
from tokenmill.errors import BadDocument, UsageError
from tokenmill.sources.documents import ReadOptions

SEPARATORS = ["\n", "\n\n", "\n\n\n", "aa", "aba", "abab", "aabaa", "é\n", "éé", "<|end|>", "\r\n", "\r\n\n", "\n\ra"]


def expected(text: str, separator: str) -> list[tuple[int, str]]:
    """What the plainest code makes of it: pieces that are not empty, with the byte where each starts."""
    pattern = "\\r?\n".join(map(re.escape, re.split(r"(?<!\r)\n", separator)))
    stream, position = [], 0
    for match in (*re.finditer(pattern, text), None):
        piece = text[position : match.start() if match else None]
        if piece:
            stream.append((len(text[:position].encode()), piece))
        position = match.end() if match else len(text)
    return stream


@settings(max_examples=400, deadline=None)
@given(
    text=st.text("ab\né", max_size=60) | st.text("a\n", max_size=60) | st.text("a\r\n", max_size=60),
    separator=st.sampled_from(SEPARATORS),
    unit_bytes=st.integers(1, 20),
    batch_bytes=st.integers(1, 20),
)
@example(text="a\n\n\nb", separator="\n\n", unit_bytes=1, batch_bytes=1)
@example(text="\n" * 31, separator="\n\n", unit_bytes=3, batch_bytes=2)
@example(text="ababababab", separator="aba", unit_bytes=1, batch_bytes=3)
@example(text="a\r\n\r\nb\n\r\n\r\nc\r\n\n", separator="\n\n", unit_bytes=1, batch_bytes=1)
def test_pieces_are_those_of_split_wherever_it_is_cut(text, separator, unit_bytes, batch_bytes):
    """Separators that overlap themselves or straddle a cut are matched from left to right, as `re.split` does.

    A line end of a separator matches CRLF, too.
    """
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text.encode())
        file.flush()
        options = ReadOptions(separator=separator, batch_bytes=batch_bytes)
        assert read_all(file.name, options, unit_bytes) == expected(text, separator)


def test_without_separator_a_file_is_one_document(tmp_path):
    """Nothing is stripped: line ends and white space stay."""
    path = tmp_path / "file.txt"
    text = " one\r\n\n<|endoftext|> two \n\n"
    path.write_bytes(text.encode())
    assert read_all(str(path), unit_bytes=3) == [(0, text)]
    packed = tmp_path / "file.txt.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_all(str(packed)) == [(0, text)]


@pytest.mark.parametrize("unit_bytes", [1, 2, 3, 4, 100])
@pytest.mark.parametrize("separator", [None, "\n", "\n\n"])
def test_a_byte_order_mark_is_not_text(tmp_path, separator, unit_bytes):
    """At the start of the file only, however it is cut."""
    path = tmp_path / "file.txt"
    path.write_text("a\n\n\ufeffb", encoding="utf-8-sig")
    expected = {None: [(3, "a\n\n\ufeffb")]}.get(separator, [(3, "a"), (6, "\ufeffb")])
    assert read_all(str(path), ReadOptions(separator=separator), unit_bytes) == expected
    path.write_bytes(b"\xef\xbb\xbf")
    assert read_all(str(path), ReadOptions(separator=separator)) == ([] if separator else [(3, "")])


@pytest.mark.parametrize("document_bytes", [1, 2, 3, 5, 100])
@pytest.mark.parametrize("batch_bytes", [1, 2, 3, 7, 100])
def test_long_documents_between_crlf_are_bad(tmp_path, document_bytes, batch_bytes):
    """The others are found where they are, and the separator belongs to none."""
    text = "ab\r\n\r\ncdef\n\ng\r\n\nhijklm\n\r\nno"
    path = tmp_path / "file.txt"
    path.write_bytes(text.encode())
    options = ReadOptions(separator="\n\n", batch_bytes=batch_bytes, document_bytes=document_bytes, on_bad="quarantine")
    found, bad = read_all_and_bad(str(path), options)
    everything = sorted([*found, *((row.row, row.raw.decode()) for row in bad)])
    assert everything == expected(text, "\n\n") == [(0, "ab"), (6, "cdef"), (12, "g"), (16, "hijklm"), (25, "no")]
    assert all(len(text or "") <= document_bytes for _, text in found)
    assert all(len(row.raw) > document_bytes for row in bad)


@pytest.mark.parametrize(
    ("separator", "files", "is_noted"),
    [
        ("<|end|>", ["one\n\ntwo", "three"], True),
        ("\n\n", ["one\n\n"], True),
        ("\n\n", ["one\r\n\r\ntwo", "three"], False),
        (None, ["one\n\ntwo"], False),
    ],
)
def test_a_separator_that_never_occurs_is_noted(tmp_path, separator, files, is_noted):
    """It is rarely intended that each file is one document, if a separator is given."""
    for number, text in enumerate(files):
        (tmp_path / f"{number}.txt").write_bytes(text.encode())
    done = tokenmill.prepare(
        tmp_path, tokenizer=SMALL_JSON, separator=separator, out=tmp_path / "out", executor=InlineExecutor()
    )
    notes = [note for note in done.notices if "divides no file" in note]
    assert notes == ([f"--separator {separator!r} divides no file: each file is one document"] if is_noted else [])


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
    with pytest.raises(BadDocument, match=r"byte +8\n") as caught:
        read_all(str(path), ReadOptions(separator="\n"), 2)
    assert "reason       byte 3 of" in str(caught.value)
    with pytest.raises(BadDocument, match=r"byte +0\n"):
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
