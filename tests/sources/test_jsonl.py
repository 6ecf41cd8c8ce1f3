"""JSON Lines: what a line may be, and how damage is named."""

from __future__ import annotations

import gzip
import json
import random
import re
import tempfile
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.source_files import read_all, source, texts
from tokenmill import sources
from tokenmill.errors import BadDocument, SourceError
from tokenmill.sources.documents import ReadOptions, Slice
from tokenmill.sources.missing_column import check_first_lines

SMALL = ReadOptions(batch_bytes=16)  # blocks of a line or two


@pytest.fixture
def write(tmp_path):
    """Write bytes to a file and return its path."""

    def write_bytes(content: bytes, name: str = "file.jsonl") -> str:
        (tmp_path / name).write_bytes(content)
        return f"{tmp_path}/{name}"

    return write_bytes


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (rb'{"text": "\ud800"}', "\ufffd"),
        (rb'{"text": "a\udc00b\ud83d\ude00"}', "a\ufffdb😀"),
        (rb'{"text": "x", "y": "\ud800"}', "x"),
        (b'{"text": "first", "text": "second"}', "second"),
        (b'{"text": "x", "n": 1e400}', "x"),
        (b'{"text": "x", "n": ' + b"1" * 5000 + b"}", "x"),
        (b'{"text": "x", "n": [NaN, Infinity, -Inf]}', "x"),
        (b'{"text": "x", "url": "\xff"}', "x"),
        (b'{"text": "x", "deep": ' + b"[" * 5000 + b"]" * 5000 + b"}", "x"),
        (b'  {"text": "x"}\t ', "x"),
        (b'{"te\\u0078t": "x"}', "x"),
        (b'{"a": {"text": 1}, "text": null}', None),
        (b'{"other": 1}', None),
        (rb'{"text": "\u0000\u2028"}', "\x00\u2028"),
    ],
)
def test_unusual_lines_are_read_whatever_stands_beside_them(write, line, text):
    """What a line gives depends on the line alone, not on which parser its block went to."""
    for neighbour, also in ((b'{"text": "plain"}', "plain"), (rb'{"text": "\ud800"}', "\ufffd")):
        path = write(b"\n".join([neighbour, line, neighbour]))
        assert texts(path) == texts(path, SMALL) == [also, text, also]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"text": 1}', "is 1"),
        (b'{"text": ["a"]}', 'is ["a"]'),
        (b'{"text": {"a": 1}}', 'is {"a": 1.0}'),
        (b'{"text": true}', "is true"),
        (b"null", "not a JSON object"),
        (b"[]", "not a JSON object"),
        (b'"text"', "not a JSON object"),
        (b'{"text": "a"', "not a JSON object"),
        (b'{"text": "a"} {"text": "b"}', "not a JSON object"),
        (b'{"text": "a"}null', "not a JSON object"),
        (b'{"text": "a"},', "not a JSON object"),
        (b'{"text":\n"a"}', "not a JSON object"),
        (b'{"a":\n{"b": 1}, "text": "x"}{"text": "y"}', "not a JSON object"),
        (b'{"text": "tab\there"}', "not a JSON object"),
        (b"\x0b", "not a JSON object"),
        (b'{"text": "\xff"}', "not valid UTF-8"),
        (b'{"text": "\xed\xa0\x80"}', "not valid UTF-8"),
    ],
)
def test_bad_lines_are_named_by_file_and_byte(write, line, reason):
    """A line that is no object or holds no text stops the read and is named."""
    start = b'{"text": "fine"}\n'
    path = write(start * 3 + line + b"\n" + start)
    for options in (ReadOptions(), SMALL):
        with pytest.raises(BadDocument, match=re.escape(reason)) as caught:
            read_all(path, options)
        assert path in str(caught.value)
        assert str(3 * len(start)) in str(caught.value)


def test_a_file_of_bare_nulls_is_an_error_and_no_crash(write):
    """The parser of pyarrow dies of it, so it never sees it."""
    with pytest.raises(BadDocument, match="not a JSON object"):
        read_all(write(b"null\nnull\n"))


def test_blank_lines_are_no_documents(write):
    """White space alone is skipped, and rows still tell the byte."""
    path = write(b'\n  \r\n{"text": "a"}\r\n\t\n\n{"text": "b"}')
    assert read_all(path) == read_all(path, SMALL, 3) == [(5, "a"), (23, "b")]
    assert read_all(write(b"\n\n \n")) == []


def test_a_byte_order_mark_is_skipped(write):
    """At the start of the file only, however it is cut."""
    path = write(b'\xef\xbb\xbf{"text": "a"}\n{"text": "b"}\n')
    for unit_bytes in (1, 2, 3, 4, 100):
        assert read_all(path, SMALL, unit_bytes) == [(3, "a"), (17, "b")]


def test_a_line_without_the_column_is_a_row_without_text(write):
    """Wherever it stands, and if no line of the slice has it."""
    path = write(b'{"id": 1, "body": "x"}\n{"id": 2, "url": "y"}\n')
    assert texts(path) == [None, None]
    assert texts(path, ReadOptions(column="body")) == ["x", None]
    assert texts(write(b'{"text": null}\n{"id": 1}\n')) == [None, None]


@pytest.mark.parametrize(
    "options", [ReadOptions(), SMALL, ReadOptions(join="-"), ReadOptions(join="-", batch_bytes=16)]
)
@pytest.mark.parametrize("neighbour", [b'{"text": "plain"}', rb'{"text": "\ud800"}'])
@pytest.mark.parametrize(
    ("line", "is_missing"),
    [
        (b'{"text": null}', False),
        (b'{"te\\u0078t": null}', False),
        (b'  {"n": 1, "text" : null}\t', False),
        (b'{"n": "text"}', True),
        (b'{"n": {"text": null}}', True),
        (b"{}", True),
        (b'{"n": "\\u0078"}', True),
    ],
)
def test_a_missing_key_is_not_a_null(write, options, neighbour, line, is_missing):
    """It is counted apart, whichever parser its block went to."""
    path = write(b"\n".join([neighbour, line, neighbour]))
    file = source(path)
    batches = list(sources.read_documents(file, Slice(0, file.size), options))
    found = [(reason, rows.tolist()) for batch in batches for reason, rows in batch.reasons().items()]
    assert found == [("missing" if is_missing else "null", [len(neighbour) + 1])]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"data": null}', "null"),
        (b'{"data": {"text": null}}', "null"),
        (b'{"data.text": null}', "null"),
        (b'{"data": {"body": "x"}}', "missing"),
        (b'{"text": "x"}', "missing"),
    ],
)
def test_a_missing_path_is_not_a_null(write, line, reason):
    """A null in the middle of a path is null."""
    file = source(write(line))
    (batch,) = sources.read_documents(file, Slice(0, file.size), ReadOptions(column="data.text"))
    assert {name: rows.tolist() for name, rows in batch.reasons().items()} == {reason: [0]}


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(
        st.none() | st.text(st.characters() | st.sampled_from("\ud800\udfff\n\r"), max_size=8), max_size=12
    ),
    unit_bytes=st.integers(1, 100),
    batch_bytes=st.integers(1, 200),
)
def test_lone_surrogates_become_what_tiktoken_makes_of_them(values, unit_bytes, batch_bytes):
    """Any string that JSON can spell is read, in any cut, with U+FFFD for each lone surrogate."""
    lines = [json.dumps({"text": value}) for value in values]
    expected = [value and value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for value in values]
    with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
        file.write("\n".join(lines).encode())
        file.flush()
        stream = read_all(file.name, ReadOptions(batch_bytes=batch_bytes), unit_bytes)
    assert [text for _, text in stream] == expected


@pytest.mark.parametrize("name", ["file.jsonl.gz", "file.jsonl.zst"])
def test_damaged_compression_is_an_error(write, name):
    """A stream with a flipped bit, something after its end, or its last member cut off is refused."""
    content = b"".join(json.dumps({"text": f"document {i * 7919 % 10007}"}).encode() + b"\n" for i in range(2000))
    compress = gzip.compress if name.endswith("gz") else zstandard.ZstdCompressor(write_checksum=True).compress
    member = compress(content)
    middle = len(member) // 2
    flipped = member[:middle] + bytes([member[middle] ^ 4]) + member[middle + 1 :]
    assert len(texts(write(member + member, name))) == 4000
    for damaged in (flipped, member + b"garbage", member + member[:-1], member + member[:6], member[:3], b""):
        path = write(damaged, name)
        with pytest.raises(SourceError, match=path):
            read_all(path)


def test_empty_members_do_not_end_a_stream(write):
    """As bgzip and parallel compressors write them."""
    line = b'{"text": "x"}\n'
    for name, compress in (("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zstandard.ZstdCompressor().compress)):
        empty = compress(b"")
        path = write(empty + compress(line) + empty * 3000 + compress(line) + empty, name)
        assert texts(path) == ["x", "x"]


@pytest.mark.parametrize("name", ["file.jsonl", "file.jsonl.gz", "file.jsonl.zst"])
def test_a_column_that_the_first_lines_lack_is_seen_before_a_file_is_read(write, name):
    """One short read tells it, also where lines are bad, blank, cut off by the end of that read, or compressed."""
    compressors: dict[str, Callable[[bytes], bytes]] = {
        "l": bytes,
        "z": gzip.compress,
        "t": zstandard.ZstdCompressor().compress,
    }
    compress = compressors[name[-1]]
    lines = b"\xef\xbb\xbf" + b'{"id": 1, "body": "x"}\n\nno object\n' + b'{"id": 2, "url": "yyyyy"}\n' * 40_000
    file = source(write(compress(lines), name))
    has_it, error = check_first_lines(file, "text")
    assert not has_it
    told = rf"(?s)'text'.*file +{file.path}\n.*the first \d+,\d{{3}} lines\n.*columns +id, body, url\n"
    assert re.search(told, str(error))
    assert check_first_lines(file, "body") == (True, None)
    short = source(write(compress(b'{"id": 1}'), name))
    assert "looked at" not in str(check_first_lines(short, "text")[1])
    later = source(write(compress(b'{"id": 1}\n' * 9 + b'{"text": null}\n' + lines), name))
    assert check_first_lines(later, "text") == (True, None)
    for nothing in (b"", b"\n \n", b"null\n[]\n", b'{"body": "' + random.Random(0).randbytes(400_000).hex().encode()):
        assert check_first_lines(source(write(compress(nothing), name)), "text") == (False, None)
