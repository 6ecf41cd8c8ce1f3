"""What is in files that may be damaged, told by pyarrow, json, gzip and zstandard alone.

    python plain_reader.py SEPARATOR OUT FILE...

Each file is read in a process of its own, since damage may end it. OUT gets one JSON object a line: the file, and its
rows with their texts (`false` for a row that is no valid text), or why it cannot be read.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import resource
import signal
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

Row = tuple[int, "str | bool | None"]
MAX_SECONDS = 30
MAX_BYTES = 4 << 30


def read(path: str, separator: str) -> list[Row]:
    """The rows of a file."""
    if path.endswith(".parquet"):
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            return _column(file.read(columns=["text"], use_threads=False)["text"])
    if path.endswith(".arrow"):
        return _column(_arrow(path)["text"])
    with open(path, "rb") as file:
        data = _plain(path, file.read())
    if ".jsonl" in path:
        return _lines(data)
    if not separator:
        return [(0, _text(data))]
    return [(place, _text(piece)) for place, piece in _pieces(data, separator.encode()) if piece]


def _arrow(path: str) -> pa.Table:
    with open(path, "rb") as file:
        data = file.read()
    if data[:6] == b"ARROW1":
        return pa.ipc.open_file(pa.BufferReader(data)).read_all()
    return pa.ipc.open_stream(pa.BufferReader(data)).read_all()


def _column(column: pa.ChunkedArray) -> list[Row]:
    values = []
    for chunk in column.chunks:
        binary = chunk.cast(pa.large_binary())
        binary.validate(full=True)
        values += binary.to_pylist()
    return [(row, None if value is None else _text(value)) for row, value in enumerate(values)]


def _plain(path: str, data: bytes) -> bytes:
    if path.endswith(".gz"):
        return gzip.decompress(data) if data else _fail("a compressed file is empty")
    if not path.endswith(".zst"):
        return data
    if not data:
        return _fail("a compressed file is empty")
    pieces = []
    while data:
        frame = zstandard.ZstdDecompressor().decompressobj()
        pieces.append(frame.decompress(data))
        if not frame.eof:
            return _fail("the last frame is cut off")
        data = frame.unused_data
    return b"".join(pieces)


def _fail(reason: str) -> bytes:
    raise ValueError(reason)


def _lines(data: bytes) -> list[Row]:
    rows: list[Row] = []
    for number, (place, line) in enumerate(_pieces(data, b"\n")):
        bare = line.removeprefix(b"\xef\xbb\xbf") if number == 0 else line
        if bare.strip(b" \t\r\n"):
            rows.append((place + len(line) - len(bare), _value(bare)))
    return rows


def _value(line: bytes) -> str | bool | None:
    try:
        record = json.loads(line.decode("utf-8", "surrogateescape"), strict=False, parse_int=float)
    except (ValueError, RecursionError):
        return False
    value = record.get("text") if isinstance(record, dict) else False
    if not isinstance(value, str):
        return None if value is None else False
    try:
        raw = value.encode("utf-8", "surrogateescape")  # bytes that are no UTF-8 come back
    except UnicodeEncodeError:  # an escaped lone surrogate: it becomes U+FFFD
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return _text(raw)


def _pieces(data: bytes, separator: bytes) -> list[tuple[int, bytes]]:
    found, place = [], 0
    for piece in data.split(separator):
        found.append((place, piece))
        place += len(piece) + len(separator)
    return found


def _text(data: bytes) -> str | bool:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return False


def _answer(path: str, separator: str) -> dict[str, object]:
    try:
        return {"file": path, "rows": read(path, separator)}
    except Exception as error:  # noqa: BLE001 - whatever is wrong with the file is the answer
        return {"file": path, "error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Read each file in a child, and write down what came of it."""
    separator, out, *paths = sys.argv[1:]
    for path in paths:
        child = os.fork()
        if not child:
            signal.alarm(MAX_SECONDS)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
            with contextlib.suppress(BaseException), open(out, "a") as file:
                file.write(json.dumps(_answer(path, separator)) + "\n")
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            with open(out, "a") as file:
                file.write(json.dumps({"file": path, "error": f"the reader died: {status}"}) + "\n")


if __name__ == "__main__":
    main()
