"""Damage for files, and two readers of damaged files to compare: ours, and the plainest one. Both run in workers."""

from __future__ import annotations

import gzip
import io
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.json
import pyarrow.parquet as pq
import zstandard

from tests.support.source_files import SEPARATOR, read_all_and_bad
from tokenmill.errors import SourceError
from tokenmill.sources.documents import ReadOptions
from tokenmill.system import status_page

HANG_SECONDS = 30.0
BAD = "(bad)"
Rows = list[tuple[int, str | None]]


def damage(rng: random.Random, data: bytes, kind: str) -> tuple[str, bytes]:
    """What was done, and the bytes after it. Half of the time it is done to the end, if the kind has a footer."""
    start = max(0, len(data) - 1200) if kind.startswith(("parquet", "arrow")) and rng.random() < 0.5 else 0
    place = rng.randint(start, len(data))
    how = rng.choice(list(HARM))
    return f"{how} at byte {place:,} of {len(data):,}", HARM[how](rng, data, place)


def _flip(rng: random.Random, data: bytes, place: int) -> bytes:
    flipped = bytearray(data)
    for _ in range(rng.randint(1, 8) if data else 0):
        at = min(len(data) - 1, max(0, place + rng.randint(-40, 40)))
        flipped[at] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _flip_one(rng: random.Random, data: bytes, place: int) -> bytes:
    at = min(place, len(data) - 1)
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :] if data else data


def _length(rng: random.Random, data: bytes) -> int:
    return rng.choice([1, rng.randint(1, 16), rng.randint(1, max(1, len(data) // 2))])


def _overwrite(filling: Callable[[random.Random, int], bytes]) -> Callable[[random.Random, bytes, int], bytes]:
    def overwrite(rng: random.Random, data: bytes, place: int) -> bytes:
        length = min(_length(rng, data), len(data) - place)
        return data[:place] + filling(rng, length) + data[place + length :]

    return overwrite


def _repeat(rng: random.Random, data: bytes, place: int) -> bytes:
    return data[:place] + data[max(0, place - _length(rng, data)) :]


HARM: dict[str, Callable[[random.Random, bytes, int], bytes]] = {
    "cut off": lambda _, data, place: data[:place],
    "a bit flipped": _flip_one,
    "bits flipped": _flip,
    "zeros": _overwrite(lambda _, length: bytes(length)),
    "ones": _overwrite(lambda _, length: b"\xff" * length),
    "noise": _overwrite(lambda rng, length: rng.randbytes(length)),
    "bytes inserted": lambda rng, data, place: data[:place] + rng.randbytes(_length(rng, data)) + data[place:],
    "bytes removed": lambda rng, data, place: data[:place] + data[place + _length(rng, data) :],
    "a block repeated": _repeat,
    "glued to itself": lambda _, data, __: data + data,
    "another end": lambda _, data, place: data[place:] + data[:place],
    "emptied": lambda *_: b"",
}


def _parquet(documents: Sequence[str | None], **options: object) -> bytes:
    table = pa.table({"id": pa.array(range(len(documents))), "text": pa.array(documents, pa.string())})
    file = io.BytesIO()
    pq.write_table(table, file, row_group_size=20, **options)
    return file.getvalue()


def _arrow(
    documents: Sequence[str | None],
    new: Callable[..., pa.RecordBatchWriter],
    codec: str | None = None,
    kind: pa.DataType | str | None = None,
) -> bytes:
    column = pa.array(documents, pa.string())
    column = column.dictionary_encode() if kind == "dictionary" else column.cast(kind or pa.string())
    table = pa.table({"id": pa.array(range(len(documents))), "text": column})
    file = io.BytesIO()
    with new(file, table.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_table(table, max_chunksize=20)
    return file.getvalue()


def _lines(documents: Sequence[str | None]) -> bytes:
    return b"".join(json.dumps({"id": i, "text": text}).encode() + b"\n" for i, text in enumerate(documents))


WRITERS: dict[str, Callable[[Sequence[str | None]], bytes]] = {
    "parquet plain": lambda texts: _parquet(texts, compression="none", use_dictionary=False),
    "parquet zstd": lambda texts: _parquet(texts, compression="zstd", use_dictionary=False),
    "parquet dictionary": lambda texts: _parquet(texts, compression="snappy"),
    "parquet checksums": lambda texts: _parquet(texts, write_page_checksum=True, data_page_version="2.0"),
    "arrow file": lambda texts: _arrow(texts, pa.ipc.new_file),
    "arrow stream": lambda texts: _arrow(texts, pa.ipc.new_stream),
    "arrow dictionary": lambda texts: _arrow(texts, pa.ipc.new_file, kind="dictionary"),
    "arrow views": lambda texts: _arrow(texts, pa.ipc.new_stream, kind=pa.string_view()),
    "arrow lz4": lambda texts: _arrow(texts, pa.ipc.new_stream, "lz4"),
    "jsonl": _lines,
    "jsonl.gz": lambda texts: gzip.compress(_lines(texts), mtime=0),
    "jsonl.zst": lambda texts: zstandard.ZstdCompressor().compress(_lines(texts)),
    "txt": lambda texts: SEPARATOR.join(text for text in texts if text).encode(),
}


def ending(kind: str) -> str:
    """What files of a kind are called."""
    return {"parquet": ".parquet", "arrow": ".arrow"}.get(kind.split(maxsplit=1)[0], f".{kind}")


class Reading(msgspec.Struct, frozen=True):
    """What a reader found: rows, or an error."""

    rows: Rows | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ReadOurs:
    """The function that reads a file with tokenmill, split as planning would."""

    unit_bytes: int = 700

    def __call__(self, path: str) -> Reading:
        """Rows that are no documents are among the others, in their places."""
        status_page.set_status(path.encode(), HANG_SECONDS)
        options = ReadOptions(separator=SEPARATOR, batch_bytes=1000, on_bad="quarantine", document_bytes=100_000)
        try:
            stream, bad = read_all_and_bad(path, options, self.unit_bytes)
        except SourceError as error:
            return Reading(error=str(error))
        return Reading(sorted(stream + [(row.row, BAD) for row in bad], key=lambda row: row[0]))


def read_plainly(path: str) -> Reading:
    """What a few lines with the usual libraries find."""
    status_page.set_status(path.encode(), HANG_SECONDS)
    try:
        return Reading(_plain_rows(path))
    except Exception as error:  # noqa: BLE001 - whatever a reader may raise
        return Reading(error=f"{type(error).__name__}: {error}")


def _plain_rows(path: str) -> Rows:
    with open(path, "rb") as file:
        data = file.read()
    if path.endswith(".parquet"):
        table = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True).read(["text"], use_threads=False)
        return _values(table)
    if path.endswith(".arrow"):
        new = pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream
        only_text = pa.ipc.IpcReadOptions(included_fields=[new(data).schema.get_field_index("text")])
        return _values(new(data, options=only_text).read_all())
    if path.endswith(".gz"):
        data = gzip.decompress(data)
    if path.endswith(".zst"):
        data = zstandard.ZstdDecompressor().stream_reader(data, read_across_frames=True).read()
    separator = SEPARATOR.encode() if path.endswith(".txt") else b"\n"
    value = _text if path.endswith(".txt") else _line
    rows, place = [], 0
    for piece in data.split(separator):
        if piece if path.endswith(".txt") else piece.strip(b" \t\r\n"):
            rows.append((place, value(piece)))
        place += len(piece) + len(separator)
    return rows


def _values(table: pa.Table) -> Rows:
    """The column as bytes. What is damaged has to be found before anything follows it."""
    values: list[bytes | None] = []
    for chunk in table.column("text").chunks:
        chunk.validate()
        if pa.types.is_dictionary(chunk.type):
            pa.DictionaryArray.from_arrays(chunk.indices, pa.nulls(len(chunk.dictionary)), safe=False).validate(
                full=True
            )
            words = _bytes(chunk.dictionary)
            values += [None if index is None else words[index] for index in chunk.indices.to_pylist()]
        else:
            values += _bytes(chunk)
    return [(row, None if value is None else _text(value)) for row, value in enumerate(values)]


def _bytes(array: pa.Array) -> list[bytes | None]:
    kinds = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}
    binary = array.view(kinds.get(array.type, array.type))
    binary.validate(full=True)
    return binary.to_pylist()


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return BAD


def _line(line: bytes) -> str | None:
    try:
        record = json.loads(line)
    except ValueError:
        return _line_by_arrow(line)
    value = record.get("text") if isinstance(record, dict) else BAD
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return None if value is None else BAD


def _line_by_arrow(line: bytes) -> str | None:
    """JSON as pyarrow takes it: bytes that are no UTF-8 in another column are none of our business."""
    line = line.strip(b" \t\r\n")
    schema = pa.schema([("text", pa.large_binary())])
    if not (line.startswith(b"{") and line.endswith(b"}")):
        return BAD
    try:
        column = pa.json.read_json(
            pa.BufferReader(line),
            parse_options=pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
        ).column(0)
    except pa.ArrowInvalid:
        return BAD
    if len(column) != 1:
        return BAD
    value = column[0].as_py()
    return None if value is None else _text(value)
