"""Files as people bring them: each with what tokenmill must read from it, or with what it must say.

`python -m tests.support.shapes DIR` writes all of them to a directory.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import zstandard

TEXTS = ['First text.\nTwo lines, "quoted".', "Zweiter Text: äöü, 日本語", ""]


@dataclass(frozen=True)
class Shape:
    """A file, the options to read it with, and its texts; or parts of the message that refuses it."""

    name: str
    content: bytes
    texts: Sequence[str | None] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    refused: tuple[str, ...] = ()


def _parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink)
    return sink.getvalue()


def _arrow(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    feather.write_feather(pa.Table.from_pylist(rows), sink, compression="uncompressed")
    return sink.getvalue()


def _lines(rows: list[dict[str, Any]], end: str = "\n", **options: Any) -> bytes:
    return "".join(json.dumps(row, **options) + end for row in rows).encode()


def _zip(name: str, content: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), content)
    return sink.getvalue()


ROWS: list[dict[str, Any]] = [{"text": text, "id": number} for number, text in enumerate(TEXTS)]
NESTED: list[dict[str, Any]] = [{"data": {"text": text, "n": 1}} for text in TEXTS]
CHAT: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]},
    {"messages": [{"role": "user", "content": "Alone"}]},
]
LISTS: list[dict[str, Any]] = [{"text": ["One.", "Two."]}, {"text": ["Three."]}]
TITLED: list[dict[str, Any]] = [{"title": "T", "body": "B"}, {"title": None, "body": "only"}]
CSV = 'text,id\n"First text.\nTwo lines, ""quoted"".",0\n"Zweiter Text: äöü, 日本語",1\n,2\n'
LINES = _lines(ROWS)
LATIN = "Größe, Übung, año, café, naïve, Ærø".encode("latin-1")
WET = (
    b"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://a.example/\r\nContent-Length: 5\r\n\r\nhello\r\n\r\n"
)

SHAPES = [
    # read exactly
    Shape("plain.jsonl", LINES, TEXTS),
    Shape("escaped.ndjson", _lines(ROWS, ensure_ascii=True), TEXTS),
    Shape("unescaped.jsonl", _lines(ROWS, ensure_ascii=False), TEXTS),
    Shape("windows.jsonl", _lines(ROWS, "\r\n"), TEXTS),
    Shape("byte-order-mark.jsonl", b"\xef\xbb\xbf" + LINES, TEXTS),
    Shape("blank-lines.jsonl", LINES.replace(b"\n", b"\n\n"), TEXTS),
    Shape("no-last-line-end.jsonl", LINES.rstrip(), TEXTS),
    Shape("lines.json", LINES, TEXTS),
    Shape("gzip.jsonl.gz", gzip.compress(LINES, mtime=0), TEXTS),
    Shape("members.jsonl.gz", b"".join(gzip.compress(line + b"\n", mtime=0) for line in LINES.splitlines()), TEXTS),
    Shape("zstd.jsonl.zst", zstandard.compress(LINES), TEXTS),
    Shape("nested.jsonl", _lines(NESTED), TEXTS, {"column": "data.text"}),
    Shape("chat.jsonl", _lines(CHAT), ["Hi\nHo", "Alone"], {"column": "messages.content", "join": "\n"}),
    Shape("lists.jsonl", _lines(LISTS), ["One. Two.", "Three."], {"join": " "}),
    Shape("titled.jsonl", _lines(TITLED), ["T\n\nB", None], {"template": "{title}\n\n{body}"}),
    Shape("plain.parquet", _parquet(ROWS), TEXTS),
    Shape("UPPER.PARQUET", _parquet(ROWS), TEXTS),
    Shape("nested.parquet", _parquet(NESTED), TEXTS, {"column": "data.text"}),
    Shape("chat.parquet", _parquet(CHAT), ["Hi\nHo", "Alone"], {"column": "messages.content", "join": "\n"}),
    Shape("lists.parquet", _parquet(LISTS), ["One.\nTwo.", "Three."]),
    Shape(
        "titled.parquet",
        _parquet(TITLED),
        ["T\n\nB", "\n\nonly"],
        {"template": "{title}\n\n{body}", "null": "empty"},
    ),
    Shape("plain.arrow", _arrow(ROWS), TEXTS),
    Shape("chat.feather", _arrow(CHAT), ["Hi\nHo", "Alone"], {"column": "messages.content", "join": "\n"}),
    Shape("plain.csv", CSV.encode(), TEXTS),
    Shape(
        "excel.csv", b"\xef\xbb\xbf" + CSV.replace("\n", "\r\n").encode(), [TEXTS[0].replace("\n", "\r\n"), *TEXTS[1:]]
    ),
    Shape("semicolons.csv", b"id;text\n1;a, b\n2;c\n", ["a, b", "c"]),
    Shape("tabs.tsv", b"id\ttext\n1\ta, b\n2\tc\n", ["a, b", "c"]),
    Shape("gzip.csv.gz", gzip.compress(CSV.encode(), mtime=0), TEXTS),
    Shape("zstd.tsv.zst", zstandard.compress(b"text\tid\na\t1\n"), ["a"]),
    Shape("titled.csv", b"title,body\nT,B\n", ["T: B"], {"template": "{title}: {body}"}),
    Shape("array.json", json.dumps(ROWS).encode(), TEXTS),
    Shape("pretty-array.json", json.dumps(ROWS, indent=2).encode(), TEXTS),
    Shape("array.json.gz", gzip.compress(json.dumps(ROWS).encode(), mtime=0), TEXTS),
    Shape("array.json.zst", zstandard.compress(b"\xef\xbb\xbf" + json.dumps(ROWS, indent="\t").encode()), TEXTS),
    Shape("pretty.json", "\n".join(json.dumps(row, indent=2) for row in ROWS).encode(), TEXTS),
    Shape("nested-array.json", json.dumps(NESTED, indent=4).encode(), TEXTS, {"column": "data.text"}),
    Shape("book.txt", TEXTS[1].encode(), [TEXTS[1]]),
    Shape("separated.txt", b"a\n\nb\n\n\n\nc", ["a", "b", "c"], {"separator": "\n\n"}),
    Shape("text.txt.gz", gzip.compress(b"words", mtime=0), ["words"]),
    # refused
    Shape("strings.json", json.dumps(TEXTS).encode(), refused=("JSON array", "not objects", "jq -c", "size")),
    Shape("array.jsonl", json.dumps(ROWS).encode(), refused=("not JSON Lines", "mv ", "array.json")),
    Shape("array.jsonl.gz", gzip.compress(json.dumps(ROWS).encode(), mtime=0), refused=("mv ", "array.json.gz")),
    Shape("pretty.jsonl", json.dumps(ROWS[0], indent=2).encode(), refused=("not JSON Lines", "mv ", "pretty.json")),
    Shape("utf-16.jsonl", LINES.decode().encode("utf-16"), refused=("UTF-16", "iconv -f UTF-16 -t UTF-8")),
    Shape("no-mark.txt", "Windows text".encode("utf-16-le"), refused=("UTF-16", "iconv -f UTF-16LE -t UTF-8")),
    Shape("utf-16.csv", CSV.encode("utf-16"), refused=("UTF-16", "iconv -f UTF-16 -t UTF-8")),
    Shape("latin-1.txt", LATIN, refused=("Windows-1252 or Latin-1", "iconv -f WINDOWS-1252 -t UTF-8")),
    Shape("latin-1.csv", b"text\n" + LATIN, refused=("Windows-1252 or Latin-1", "iconv -f WINDOWS-1252")),
    Shape("crawl.wet.gz", gzip.compress(WET, mtime=0), refused=("WET", "warcio", "crawl.jsonl")),
    Shape("crawl.warc.gz", gzip.compress(WET, mtime=0), refused=("WARC", ".wet")),
    Shape("wet.txt", WET, refused=("a web archive", "warcio")),
    Shape("hidden-gzip.jsonl", gzip.compress(LINES, mtime=0), refused=("gzip", "mv ", ".gz")),
    Shape("hidden-zstd.jsonl", zstandard.compress(LINES), refused=("zstd", "mv ", ".zst")),
    Shape("hidden-parquet.jsonl", _parquet(ROWS), refused=("a Parquet file", "mv ", "hidden-parquet.parquet")),
    Shape("lines.jsonl.bz2", bz2.compress(LINES), refused=("bzip2", "bunzip2")),
    Shape("lines.jsonl.xz", lzma.compress(LINES), refused=("xz", "xz --decompress")),
    Shape("lines.zip", _zip("lines.jsonl", LINES), refused=("zip archive", "unzip")),
    Shape("sheet.xlsx", _zip("xl/workbook.xml", b"<x/>"), refused=("Excel", "read_excel")),
    Shape("page.html", b"<html></html>", refused=("HTML", "pandoc")),
    Shape("paper.pdf", b"%PDF-1.7", refused=("PDF", "pdftotext")),
    Shape(
        "pointer.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", refused=("LFS", "git lfs pull")
    ),
    Shape("other-column.jsonl", b'{"content": "x"}\n', refused=("'text'", "columns      content", "--column NAME")),
    Shape("other-column.csv", b"content,id\nx,1\n", refused=("'text'", "content", "--column NAME")),
    Shape("struct.parquet", _parquet([{"text": {"body": "x", "n": 1}}]), refused=("its text fields are text.body",)),
    Shape("numbers.parquet", _parquet([{"text": 5}]), refused=("not text", "--column NAME")),
    Shape("ragged.csv", b"text,id\na,1\nb,2,3\n", refused=("Expected 2 columns, got 3", "quotes")),
    Shape("empty.csv", b"", refused=("no header",)),
    Shape("notes.xyz", b"?", refused=("unsupported file type: .xyz", "supported")),
]


def write_shapes(directory: Path) -> None:
    """Write every shape to a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for shape in SHAPES:
        (directory / shape.name).write_bytes(shape.content)


if __name__ == "__main__":
    write_shapes(Path(sys.argv[1]))
