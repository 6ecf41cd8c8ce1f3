"""Rows from pipes: standard input, named pipes and what a shell substitutes for a process. A line is a row."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import BinaryIO

import numpy as np
import pyarrow as pa

from tokenmill.errors import SourceError, UsageError
from tokenmill.humanize import size
from tokenmill.pipeline.rows.stream import LINE, TEXT, RowStream
from tokenmill.sources.delimited import BYTE_ORDER_MARK
from tokenmill.store.spool import ARROW, JSONL

STDIN = "-"
_STDIN_PATHS = (STDIN, "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0")

BLOCK_BYTES = 4 << 20
READ_BYTES = 1 << 20
MAX_LINE_BYTES = 1 << 30
"""A longer line is refused: it is held in memory."""

_MAGIC = {
    b"\x1f\x8b": ("gzip", "Decompress it on the way: zcat FILE | tokenmill prepare - ..."),
    b"\x28\xb5\x2f\xfd": ("zstd", "Decompress it on the way: zstdcat FILE | tokenmill prepare - ..."),
    b"PAR1": ("a Parquet file", "Give the file by its path."),
    b"ARROW1": ("an Arrow file", "Give the file by its path."),
}


def is_pipe(path: str) -> bool:
    """Whether a path is standard input or a pipe, which is read once and has no size."""
    if path in _STDIN_PATHS:
        return True
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def shown_pipe(path: str) -> str:
    """A pipe in words."""
    return "standard input" if path in _STDIN_PATHS else path


def stream_of_pipes(paths: Sequence[str], form: str | None) -> RowStream | None:
    """The lines of pipes, one after the other. `form` is `jsonl`, `text`, or None to recognize JSON Lines.

    Returns None if the only one is a terminal.
    """
    if list(paths) == [STDIN] and (sys.__stdin__ is None or os.isatty(0)):
        return None
    kind, column = (ARROW, TEXT) if form == "text" else (JSONL, LINE)
    return RowStream(kind, chain.from_iterable(_batches(path, form, column) for path in paths))


def _batches(path: str, form: str | None, column: str) -> Iterator[pa.RecordBatch]:
    schema = pa.schema([(column, pa.large_binary())])
    is_first = True
    with open(0 if path in _STDIN_PATHS else path, "rb", buffering=0, closefd=path not in _STDIN_PATHS) as file:
        for block in _line_blocks(file, path):
            if is_first:
                _check_start(block, path, form)
            lines = _texts(block, is_first=is_first) if column == TEXT else _whole_lines(block)
            yield pa.record_batch([lines], schema=schema)
            is_first = False


def _line_blocks(file: BinaryIO, path: str) -> Iterator[bytes]:
    """Blocks of whole lines, each line with its end."""
    held, stop, data = bytearray(), 0, b"-"
    while data:
        try:
            data = file.read(READ_BYTES) or b""
        except OSError as error:
            raise SourceError(f"{shown_pipe(path)} cannot be read", f"reason       {error.strerror}") from error
        end = data.rfind(b"\n")
        stop = len(held) + end + 1 if end >= 0 else stop
        held += data
        if len(held) >= BLOCK_BYTES and stop:
            yield bytes(held[:stop])
            del held[:stop]
            stop = 0
        if len(held) > MAX_LINE_BYTES:
            raise SourceError(f"{shown_pipe(path)} has a line of more than {size(MAX_LINE_BYTES)}")
    if held:
        yield bytes(held) if held.endswith(b"\n") else bytes(held) + b"\n"


def _whole_lines(block: bytes) -> pa.LargeBinaryArray:
    """The lines of a block with their ends."""
    stops = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n")) + 1
    offsets = np.append(0, stops).astype(np.int64)
    return _array(block, offsets)


def _texts(block: bytes, *, is_first: bool) -> pa.LargeBinaryArray:
    """The lines of a block that are not empty, without their ends: LF, or CR and LF."""
    content = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(content == ord("\n"))
    starts = np.append(0, ends[:-1] + 1)
    if is_first and block.startswith(BYTE_ORDER_MARK):
        starts[0] = len(BYTE_ORDER_MARK)
    stops = ends - ((ends > starts) & (content[ends - 1] == ord("\r")))
    bounds = np.append(np.stack([starts, stops], axis=1).ravel(), len(block)).astype(np.int64)
    is_text = np.zeros(len(bounds) - 1, np.bool_)
    is_text[::2] = stops > starts
    return _array(block, bounds).filter(pa.array(is_text))


def _array(block: bytes, offsets: np.typing.NDArray[np.int64]) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(block)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _check_start(block: bytes, path: str, form: str | None) -> None:
    """Refuse what is not text, and what is not known to be JSON Lines unless the user says what it is."""
    found = next((each for magic, each in _MAGIC.items() if block.startswith(magic)), None)
    if found is not None:
        raise UsageError(f"{shown_pipe(path)} is {found[0]}, not lines of text", found[1])
    line = block.removeprefix(BYTE_ORDER_MARK).lstrip().split(b"\n", 1)[0]
    if form is None and not _is_object(line):
        start = "".join(char if char.isprintable() else "\ufffd" for char in line[:60].decode("utf-8", "replace"))
        raise UsageError(
            f"the first line of {shown_pipe(path)} is not a JSON object",
            f"found        {start}",
            "Say what it is: --stdin text (each line is a document), or --stdin jsonl.",
        )


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
