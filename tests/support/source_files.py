"""Files of every kind for the tests of sources, written and read back."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

from tokenmill import sources, storage
from tokenmill.sources.documents import BadRow, ReadOptions, Slice, SourceFile

SEPARATOR = "<|end|>"
Stream = list[tuple[int, str | None]]


def source(path: str) -> SourceFile:
    """The file as planning would see it now."""
    info = storage.stat(str(path))
    return SourceFile(0, info.path, sources.kind_of(info.path) or "jsonl", info.size, info.fingerprint)


def read_slice(file: SourceFile, start: int, stop: int, options: ReadOptions) -> Stream:
    """The rows and texts of one slice."""
    return read_slice_and_bad(file, start, stop, options)[0]


def read_slice_and_bad(file: SourceFile, start: int, stop: int, options: ReadOptions) -> tuple[Stream, list[BadRow]]:
    """The rows and texts of one slice, and its rows that are no documents."""
    stream: Stream = []
    bad: list[BadRow] = []
    for documents in sources.read_documents(file, Slice(start, stop), options):
        assert documents.text.type == pa.large_string()
        assert len(documents.text) == len(documents.rows)
        assert len(documents.rows) + len(documents.bad) > 0
        stream.extend(zip(documents.rows.tolist(), documents.text.to_pylist(), strict=True))
        bad.extend(documents.bad)
    return stream, bad


def read_all(path: str, options: ReadOptions | None = None, unit_bytes: int = 1 << 20) -> Stream:
    """The rows and texts of a file, read slice by slice."""
    return read_all_and_bad(path, options or ReadOptions(), unit_bytes)[0]


def read_all_and_bad(path: str, options: ReadOptions, unit_bytes: int = 1 << 20) -> tuple[Stream, list[BadRow]]:
    """The rows and texts of a file, read slice by slice, and its rows that are no documents."""
    file = source(path)
    slices = sources.split_file(file, options, unit_bytes)
    stream: Stream = []
    bad: list[BadRow] = []
    for start, stop in zip(slices.start.tolist(), slices.stop.tolist(), strict=True):
        found, found_bad = read_slice_and_bad(file, start, stop, options)
        stream += found
        bad += found_bad
    return stream, bad


def texts(path: str, options: ReadOptions | None = None) -> list[str | None]:
    """The texts of a file."""
    return [text for _, text in read_all(path, options)]


def batches(documents: Sequence[str | None], rows: int) -> list[pa.RecordBatch]:
    """Record batches of some rows each, with a column before and one after the text."""
    schema = pa.schema([("id", pa.string()), ("text", pa.string()), ("score", pa.float64())])
    chunks = [documents[start : start + rows] for start in range(0, len(documents), rows)]
    return [
        pa.record_batch([pa.array(["x"] * len(c)), pa.array(c, pa.string()), pa.array([0.5] * len(c))], schema=schema)
        for c in chunks
    ]


def write_parquet(path: str, documents: Sequence[str | None], group_rows: int) -> list[int]:
    """Row groups of some rows each."""
    table = pa.table({"id": pa.array(range(len(documents))), "text": pa.array(documents, pa.string())})
    pq.write_table(table, path, row_group_size=group_rows)
    return list(range(len(documents)))


def write_arrow_file(path: str, documents: Sequence[str | None], group_rows: int) -> list[int]:
    """An IPC file."""
    return _write_ipc(pa.ipc.new_file, path, documents, group_rows)


def write_arrow_stream(path: str, documents: Sequence[str | None], group_rows: int) -> list[int]:
    """An IPC stream."""
    return _write_ipc(pa.ipc.new_stream, path, documents, group_rows)


def _write_ipc(new: Callable[..., pa.RecordBatchWriter], path: str, documents, group_rows: int) -> list[int]:
    schema = batches(["x"], 1)[0].schema
    with new(path, schema) as writer:
        for batch in batches(documents, group_rows):
            writer.write_batch(batch)
    return list(range(len(documents)))


def write_jsonl(path: str, documents: Sequence[str | None], group_rows: int) -> list[int]:
    """JSON Lines, half of it escaped, half in plain UTF-8."""
    lines = [
        json.dumps({"id": i, "text": text}, ensure_ascii=i % 2 == 0).encode() + (b"\r\n" if i % 3 == 0 else b"\n")
        for i, text in enumerate(documents)
    ]
    return _write_pieces(path, lines, group_rows)


def write_text(path: str, documents: Sequence[str | None], group_rows: int) -> list[int]:
    """Documents between separators."""
    return _write_pieces(path, [((text or "") + SEPARATOR).encode() for text in documents], group_rows)


def _write_pieces(path: str, pieces: list[bytes], group_rows: int) -> list[int]:
    compress = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress}.get(path.rsplit(".", 1)[1], bytes)
    with open(path, "wb") as file:
        groups = (pieces[start : start + group_rows] for start in range(0, len(pieces) or 1, group_rows))
        file.writelines(compress(b"".join(group)) for group in groups)  # several members in a compressed file
    return [sum(map(len, pieces[:i])) for i in range(len(pieces))]


@dataclass(frozen=True)
class Kind:
    """How documents of one kind are written; the writer returns the row of each."""

    ending: str
    write: Callable[[str, Sequence[str | None], int], list[int]]
    has_nulls: bool = True
    separator: str | None = None


KINDS = {
    "parquet": Kind(".parquet", write_parquet),
    "arrow file": Kind(".arrow", write_arrow_file),
    "arrow stream": Kind(".arrow", write_arrow_stream),
    "jsonl": Kind(".jsonl", write_jsonl),
    "jsonl.gz": Kind(".jsonl.gz", write_jsonl),
    "jsonl.zst": Kind(".jsonl.zst", write_jsonl),
    "text": Kind(".txt", write_text, has_nulls=False, separator=SEPARATOR),
    "text.gz": Kind(".txt.gz", write_text, has_nulls=False, separator=SEPARATOR),
}
