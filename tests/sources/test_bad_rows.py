"""Rows that cannot be documents are left out and told, or end the run; the other rows are as if they stood alone."""

from __future__ import annotations

import gzip
import os
import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from blake3 import blake3
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from tests.support.source_files import read_all, read_all_and_bad, source
from tokenmill import sources
from tokenmill.errors import BadDocument
from tokenmill.sources.documents import ReadOptions, Slice

LINES: dict[bytes, str | None] = {
    b'{"text": "plain"}': "plain",
    b'{"text": null}': None,
    b'{"text": "\\ud800"}': "\ufffd",
    '{"text": "é", "other": 1}\r'.encode(): "é",
    b'{"text": "a much longer text than the others are"}': "a much longer text than the others are",
}
BAD_LINES = {
    b'{"text": 3.5}': "not text",
    b'{"text": ["a"]}\r': "not text",
    b"[1, 2]": "not a JSON object",
    b'{"text": "broken off': "not a JSON object",
    b"\x00\x00\x00": "not a JSON object",
    b"null": "not a JSON object",
    b'{"text": "\xff\xfe"}': "not valid UTF-8",
    b'\xff{"text": "x"}': "not a JSON object",
    b'{"text": "' + b"x" * 80 + b'"}': "too long",
    b"x" * 81: "too long",
}
PIECES: dict[bytes, str | None] = {b"one": "one", "zwei ü".encode(): "zwei ü", b"\n": "\n"}
BAD_PIECES = {
    b"\xff": "not valid UTF-8",
    b"cut \xc3": "not valid UTF-8",
    b"x" * 21: "too long",
    b"\xff" * 200: "too long",
}
DOCUMENT_BYTES = 80


def expected(pieces: list[bytes], good: dict[bytes, str | None], bad: dict[bytes, str], separator: bytes):
    """What the plainest code makes of them: documents and bad rows, each with its first byte."""
    stream, told, position = [], [], 0
    for piece in pieces:
        if piece in good:
            stream.append((position, good[piece]))
        elif piece in bad:
            told.append((position, bad[piece], blake3(piece).hexdigest(), piece))
        position += len(piece) + len(separator)
    return stream, told


def told(bad) -> list[tuple[int, str, str, bytes]]:
    """What can be compared of bad rows."""
    return [(row.row, row.reason, row.blake3, row.raw) for row in bad]


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(
    lines=st.lists(st.sampled_from([*LINES, *BAD_LINES, b"", b"  "]), max_size=14),
    ends_with_line_end=st.booleans(),
    packed=st.booleans(),
    unit_bytes=st.integers(1, 200),
    batch_bytes=st.integers(1, 300),
)
@example(lines=[b"x" * 81, b'{"text": "plain"}'], ends_with_line_end=False, packed=False, unit_bytes=7, batch_bytes=300)
def test_bad_lines_are_told_and_the_others_read_in_any_cut(lines, ends_with_line_end, packed, unit_bytes, batch_bytes):
    """Whatever stands beside a line, and however the file is cut, it gives the same document or the same bad row."""
    content = b"\n".join(lines) + (b"\n" if ends_with_line_end else b"")
    options = ReadOptions(batch_bytes=batch_bytes, on_bad="quarantine", document_bytes=DOCUMENT_BYTES)
    with tempfile.NamedTemporaryFile(suffix=".jsonl.gz" if packed else ".jsonl") as file:
        file.write(gzip.compress(content) if packed else content)
        file.flush()
        stream, bad = read_all_and_bad(file.name, options, unit_bytes)
    assert (stream, told(bad)) == expected(lines, LINES, BAD_LINES, b"\n")


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(
    pieces=st.lists(st.sampled_from([*PIECES, *BAD_PIECES, b""]), max_size=14),
    separator=st.sampled_from(["\r", "<|end|>", "--", "abab"]),
    unit_bytes=st.integers(1, 200),
    batch_bytes=st.integers(1, 300),
)
def test_bad_pieces_are_told_and_the_others_read_in_any_cut(pieces, separator, unit_bytes, batch_bytes):
    """The same for text between separators, also where a separator straddles two reads of a piece that is too long."""
    options = ReadOptions("text", separator, batch_bytes, "quarantine", 20)
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(separator.encode().join(pieces))
        file.flush()
        stream, bad = read_all_and_bad(file.name, options, unit_bytes)
    assert (stream, told(bad)) == expected(pieces, PIECES, BAD_PIECES, separator.encode())


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.sampled_from([None, *PIECES, *BAD_PIECES, b""]), max_size=25),
    kind=st.sampled_from([pa.string(), pa.large_binary(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]),
    group_rows=st.integers(1, 10),
    batch_bytes=st.integers(1, 300),
    ending=st.sampled_from([".parquet", ".arrow"]),
)
def test_bad_values_are_told_and_the_others_read_in_any_cut(values, kind, group_rows, batch_bytes, ending):
    """The same for columns of any type of text, where a row is a number."""
    # pyarrow refuses a dictionary of a Parquet file as a whole if one of its values is not valid UTF-8.
    valid = all(value is None or value.decode(errors="replace").encode() == value for value in values)
    assume(ending == ".arrow" or not pa.types.is_dictionary(kind) or valid)
    column = _column(values, kind)
    options = ReadOptions("text", None, batch_bytes, "quarantine", 20)
    with tempfile.TemporaryDirectory() as directory:
        path = f"{directory}/x{ending}"
        _write(path, pa.table({"text": column}), group_rows)
        stream, bad = read_all_and_bad(path, options, 30)
    good = dict[bytes | None, str | None]([(None, None), (b"", ""), *PIECES.items()])
    assert stream == [(row, good[value]) for row, value in enumerate(values) if value in good]
    assert told(bad) == [
        (row, BAD_PIECES[value], blake3(value).hexdigest(), value)
        for row, value in enumerate(values)
        if value in BAD_PIECES
    ]


def _column(values: list[bytes | None], kind: pa.DataType) -> pa.Array:
    """Values as they are, valid UTF-8 or not."""
    binary = pa.array(values, pa.binary())
    if not pa.types.is_dictionary(kind):
        return binary.cast(options=pa.compute.CastOptions(target_type=kind, allow_invalid_utf8=True))
    encoded = binary.dictionary_encode()
    indices = encoded.indices.cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(indices, encoded.dictionary.view(kind.value_type), safe=False)


def _write(path: str, table: pa.Table, group_rows: int) -> None:
    if path.endswith(".parquet"):
        pq.write_table(table, path, row_group_size=group_rows)
        return
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=group_rows)


@pytest.mark.parametrize("ending", [".txt", ".txt.gz"])
def test_a_whole_file_may_be_too_long(tmp_path, ending):
    """A file that is one document is not read into memory if it is longer than documents may be."""
    path = f"{tmp_path}/x{ending}"
    content = bytes(range(32, 127)) * 1000
    with open(path, "wb") as file:
        file.write(gzip.compress(content) if ending.endswith("gz") else content)
    size = len(content)
    fitting, one_less = (
        ReadOptions(batch_bytes=1000, on_bad="quarantine", document_bytes=limit) for limit in (size, size - 1)
    )
    assert read_all_and_bad(path, fitting) == ([(0, content.decode())], [])
    stream, (bad,) = read_all_and_bad(path, one_less)
    assert stream == []
    assert told([bad]) == [(0, "too long", blake3(content).hexdigest(), content[: 64 << 10])]
    assert f"{size:,} bytes" in bad.detail


@pytest.mark.parametrize(("name", "place"), [("x.jsonl", "byte         17"), ("x.txt", "byte         17")])
def test_a_document_that_is_too_long_stops_a_run_that_may_have_none(tmp_path, name, place):
    """The error names the file, where the document begins, its size, and what to do."""
    path = f"{tmp_path}/{name}"
    with open(path, "wb") as file:
        file.write(b'{"text": "fine"}\n{"text": "' + b"x" * 200 + b'"}\n')
    with pytest.raises(BadDocument, match="a document is too long") as caught:
        read_all(path, ReadOptions(separator="\n", batch_bytes=10, document_bytes=100))
    message = caught.value.text
    assert path in message
    assert place in message
    assert "212 bytes" in message
    assert "larger --max-document-bytes" in message


def test_what_is_kept_of_a_bad_row_is_short(tmp_path):
    """The first 64 KiB; the hash is that of all of it."""
    path = f"{tmp_path}/x.jsonl"
    line = b"no object " * 10_000
    with open(path, "wb") as file:
        file.write(line)
    _, (bad,) = read_all_and_bad(path, ReadOptions(on_bad="quarantine"))
    assert (bad.raw, bad.blake3) == (line[: 64 << 10], blake3(line).hexdigest())
    assert "no object" in bad.detail


def test_a_huge_line_costs_each_range_its_own_bytes_only(tmp_path):
    """A range in the middle of a line that began before and ends after it finds that out from its own bytes."""
    path = f"{tmp_path}/x.jsonl"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # a hole: no disk is used, and reading all of it would take hours
    options = ReadOptions(on_bad="quarantine", document_bytes=1000)
    assert list(sources.read_documents(source(path), Slice(1 << 30, (1 << 30) + (1 << 20)), options)) == []
    os.truncate(path, 0)
