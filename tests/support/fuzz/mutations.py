"""How bytes are damaged: blindly, and by people who know what they mean (JSON, Arrow, Parquet, gzip)."""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

MAX_BYTES = 1 << 18
INTEGERS = [0, 1, -1, 2, 7, 127, 128, 255, 256, 32767, 65535, 65536, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]
INTEGERS += [1 << 32, 1 << 40, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 1 << 64, 10**18, 10**30]
VALUES: list[object] = [*INTEGERS, None, True, False, 0.5, -1.5, 1e308, "", "none", "0.5", "nan"]
VALUES += ["uint32", "../../x", "/etc/passwd"]
VALUES += ["a\0b", "\u202e\x1b[2J", "x" * 5000, [], {}, [[]], [1, 2, 3], {"a": 1}, "first-shard", "a/b", "."]


def mutate(data: bytes, kind: str, others: list[bytes], rng: random.Random) -> bytes:
    """Damaged bytes: one way that knows the format now and then, and one or more that do not."""
    aware = {"json": _json, "arrow": _arrow, "parquet": _parquet, "gzip": _gzip}.get(kind)
    if aware is not None and rng.random() < 0.4:
        try:
            data = aware(data, rng)
        except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, OSError, EOFError):
            data = _blind(data, others, rng)
        except (pa.ArrowException, NotImplementedError, zlib.error, AttributeError):
            data = _blind(data, others, rng)
        if rng.random() < 0.7:
            return data[:MAX_BYTES]
    for _ in range(rng.choice([1, 1, 1, 2, 4, 8])):
        data = _blind(data, others, rng)
    return data[:MAX_BYTES]


def _blind(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    ways = [_flip, _flip, _byte, _integer, _integer, _digits, _remove, _repeat, _cut, _splice, _zero, _insert]
    return rng.choice(ways)(data, others, rng)


def _place(data: bytes, rng: random.Random) -> int:
    """A position, near the ends more often than not: that is where formats describe themselves."""
    size = max(len(data), 1)
    near = min(size, rng.choice([16, 64, 512]))
    return rng.choice([rng.randrange(size), rng.randrange(near), size - 1 - rng.randrange(near)])


def _put(data: bytes, place: int, some: bytes) -> bytes:
    return data[:place] + some + data[place + len(some) :]


def _flip(data: bytes, _: list[bytes], rng: random.Random) -> bytes:
    place = _place(data, rng)
    return _put(data, place, bytes([data[place] ^ 1 << rng.randrange(8)])) if data else b"\0"


def _byte(data: bytes, _: list[bytes], rng: random.Random) -> bytes:
    return _put(data, _place(data, rng), bytes([rng.randrange(256)]))


def _integer(data: bytes, _: list[bytes], rng: random.Random) -> bytes:
    width = rng.choice([1, 2, 4, 8])
    place = _place(data, rng) // width * width
    old = int.from_bytes(data[place : place + width], "little")
    value = rng.choice([*INTEGERS, old + 1, old - 1, old * 2, len(data), rng.randrange(1 << 64)])
    return _put(data, place, (value & (1 << 8 * width) - 1).to_bytes(width, "little"))


def _digits(data: bytes, _: list[bytes], rng: random.Random) -> bytes:
    """Another number in the place of a written one, of the same length half of the time."""
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return data
    number = rng.choice(found)
    same = bytes(rng.choice(b"0123456789") for _ in number[0])
    value = rng.choice([same, same, b"%d" % rng.choice(INTEGERS), b"%d" % (int(number[0][:18]) + 1)])
    return data[: number.start()] + value + data[number.end() :]


def _remove(data: bytes, _: list[bytes], rng: random.Random) -> bytes:
    place, size = _place(data, rng), rng.choice([1, 2, 4, 8, 64, 512])
    return data[:place] + data[place + size :]


def _repeat(data: bytes, _: list[bytes], rng: random.Random) -> bytes:
    place, size = _place(data, rng), rng.choice([1, 4, 8, 64])
    return data[:place] + data[place : place + size] * rng.choice([2, 3, 50]) + data[place + size :]


def _cut(data: bytes, _: list[bytes], rng: random.Random) -> bytes:
    place = _place(data, rng)
    return data[:place] if rng.random() < 0.7 else data[place:]


def _splice(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others) if others else data
    return data[: _place(data, rng)] + other[_place(other, rng) :]


def _zero(data: bytes, _: list[bytes], rng: random.Random) -> bytes:
    return _put(data, _place(data, rng), bytes([rng.choice([0, 255])]) * rng.choice([2, 4, 8, 32]))


def _insert(data: bytes, _: list[bytes], rng: random.Random) -> bytes:
    place = _place(data, rng)
    return data[:place] + rng.choice([b"\0", b"\xff", b"[" * 3000, b'"', b"\n", b" ", b"{}", b"\x80"]) + data[place:]


def _json(data: bytes, rng: random.Random) -> bytes:
    """One value of a JSON text replaced, removed, or given twice; of a single line if it has one value in each."""
    lines = data.splitlines()
    by_line = len(lines) > 1 and lines[0].endswith(b"}")
    place = rng.randrange(len(lines)) if by_line else 0
    content = json.loads(lines[place] if by_line else data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        content = _changed(content, rng)
    text = json.dumps(content).encode()
    return b"\n".join([*lines[:place], text, *lines[place + 1 :], b""]) if by_line else text


def _changed(content: Any, rng: random.Random) -> Any:
    if not isinstance(content, dict | list) or not content or rng.random() < 0.02:
        return rng.choice(VALUES)
    key = rng.choice(list(content)) if isinstance(content, dict) else rng.randrange(len(content))
    if rng.random() < 0.1:
        del content[key]
    elif isinstance(content[key], dict | list) and rng.random() < 0.8:
        content[key] = _changed(content[key], rng)
    else:
        content[key] = rng.choice([*VALUES, content[key] if not isinstance(content[key], int) else content[key] + 1])
    return content


def _gzip(data: bytes, rng: random.Random) -> bytes:
    text = gzip.decompress(data)
    if rng.random() < 0.1:
        return gzip.compress(text + rng.choice([b"\0", b"0,0,0,0,0\r\n", b",", b"\n"]) * (1 << 22))
    return gzip.compress(_blind(text, [], rng), mtime=0)


def _arrow(data: bytes, rng: random.Random) -> bytes:
    """A well-formed Arrow file of other columns, types, batches, compression or metadata."""
    reader = pa.ipc.open_file(pa.py_buffer(data))
    table = reader.read_all()
    table.validate(full=True)
    table = _other_table(table, rng)
    options = pa.ipc.IpcWriteOptions(compression=rng.choice([None, None, "lz4", "zstd"]))
    sink = pa.BufferOutputStream()
    open_writer = pa.ipc.new_file if rng.random() < 0.95 else pa.ipc.new_stream
    with open_writer(sink, table.schema, options=options) as writer:
        for batch in table.to_batches(rng.choice([None, None, None, 1, 3])) * rng.choice([1, 1, 1, 0, 2]):
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def _parquet(data: bytes, rng: random.Random) -> bytes:
    """A well-formed Parquet file of other rows, columns, types, encodings or metadata."""
    table = _other_table(pq.read_table(pa.BufferReader(data)), rng)
    if rng.random() < 0.1:
        table = pa.concat_tables([table] * rng.choice([2, 1000, 50_000])).combine_chunks()
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression=rng.choice(["zstd", "none", "snappy", "gzip"]),
        row_group_size=rng.choice([None, None, 1, 2]),
        use_dictionary=rng.random() < 0.7,
        store_schema=rng.random() < 0.7,
    )
    return sink.getvalue().to_pybytes()


def _other_table(table: pa.Table, rng: random.Random) -> pa.Table:
    metadata = dict(table.schema.metadata or {})
    for _ in range(rng.choice([0, 1, 1, 1, 2])):
        way = rng.randrange(8)
        place = rng.randrange(table.num_columns) if table.num_columns else 0
        if way == 0:
            table = table.remove_column(place)
        elif way == 1:
            table = table.append_column(rng.choice(["extra", "tokens", "unit"]), pa.nulls(len(table), pa.int64()))
        elif way == 2:
            table = table.slice(0, rng.randrange(len(table) + 1))
        elif way == 3:
            table = table.rename_columns(rng.sample(table.column_names, table.num_columns))
        else:
            column = _other_column(table.column(place), rng)
            table = table.set_column(place, table.column_names[place], column)
    if metadata and rng.random() < 0.5:
        key = rng.choice(list(metadata))
        metadata[key] = rng.choice([_json, lambda text, rng: _blind(text, [], rng)])(metadata[key], rng)
    return table.replace_schema_metadata(metadata)


def _other_column(column: pa.ChunkedArray, rng: random.Random) -> pa.ChunkedArray:
    """The same values in another type, or some of them replaced."""
    kinds = [pa.int64(), pa.uint16(), pa.uint32(), pa.uint64(), pa.int8(), pa.float64(), pa.string(), pa.large_string()]
    if rng.random() < 0.3:
        return column.cast(rng.choice(kinds))
    if rng.random() < 0.1:
        return column.dictionary_encode()
    values = column.to_pylist()
    if rng.random() < 0.1:
        return pa.chunked_array([pa.nulls(len(values), column.type)])
    for _ in range(rng.choice([1, 1, 3])):
        if values:
            values[rng.randrange(len(values))] = rng.choice([*VALUES, *_neighbours(values, rng)])
    if pa.types.is_integer(column.type):
        bits = np.dtype(column.type.to_pandas_dtype()).itemsize * 8 - (not str(column.type).startswith("u"))
        values = [value if not isinstance(value, int) else min(value, (1 << bits) - 1) for value in values]
    return pa.chunked_array([pa.array(values, column.type)])


def _neighbours(values: list[Any], rng: random.Random) -> list[Any]:
    value = rng.choice(values)
    return [value, value + 1, value - 1, value * 2] if isinstance(value, int) else [value]
