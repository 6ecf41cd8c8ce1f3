"""Bytes cut at a separator: lines of JSON Lines, documents of text.

Pieces are those of `data.split(separator)`: matches are taken from left to right and do not overlap. A piece starts at
byte 0 or right after a match, and whoever reads from the start of a piece finds the same matches from there on. So a
file can be read in byte ranges: a range owns the pieces that start in it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources.bad_rows import LongRow
from tokenmill.sources.documents import BadRow, Int64Array, ReadOptions, Slice, Slices, SourceFile, Span

CODECS = {".gz": "gzip", ".zst": "zstd"}
EXPECTED_COMPRESSION = 4
SCAN_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Block:
    """Some whole pieces: piece i is data[start[i]:stop[i]], without its separator; `offset` is where data begins.

    `bad` is a piece that is too long; such a block holds nothing else.
    """

    offset: int
    data: bytearray
    start: Int64Array
    stop: Int64Array
    bad: tuple[BadRow, ...] = ()


def split_bytes(file: SourceFile, unit_bytes: int) -> Slices:
    """Byte ranges of about `unit_bytes`; a compressed file is one range."""
    if codec_of(file.path):
        return one_slice(file)
    start = np.arange(0, file.size, max(unit_bytes, 1), dtype=np.int64)
    stop = np.append(start[1:], file.size)[: len(start)]
    return Slices(start, stop, stop - start, None)


def one_slice(file: SourceFile) -> Slices:
    """The whole file as one slice."""
    text_bytes = file.size * (EXPECTED_COMPRESSION if codec_of(file.path) else 1)
    start, stop, size = (np.array([value], dtype=np.int64) for value in (0, file.size, text_bytes))
    return Slices(start, stop, size, None)


def codec_of(path: str) -> str | None:
    """The compression that the file's ending tells."""
    return next((codec for ending, codec in CODECS.items() if path.lower().endswith(ending)), None)


def reach_of(file: SourceFile, piece: Slice | None, separator: bytes) -> list[Span]:
    """The bytes that reading the pieces of a slice takes, unless the last one goes on for long."""
    if piece is None or codec_of(file.path):
        return [(0, file.size)]
    return [(max(piece.start - 2 * len(separator), 0), min(piece.stop + SCAN_BYTES, file.size))]


def open_stream(file: SourceFile, expected: list[Span]) -> pa.NativeFile:
    """The file's content, decompressed; a stream that breaks off or is damaged raises OSError when it is read."""
    codec = codec_of(file.path)
    if codec and file.size == 0:
        raise SourceError(
            "a compressed source is empty", f"file         {file.path}", "It was never written, or cut off."
        )
    stream = storage.open_input(file.info, expected, keep=True)
    return pa.CompressedInputStream(stream, codec) if codec else stream


def read_pieces(file: SourceFile, piece: Slice, separator: bytes, options: ReadOptions) -> Iterator[Block]:
    """The pieces that start in the slice, in blocks of about `batch_bytes`, or of one longer piece."""
    start, stop = piece.start, piece.stop
    with open_stream(file, reach_of(file, piece, separator)) as stream:
        if codec_of(file.path):
            yield from _blocks(stream, 0, None, separator, options)
            return
        first = _piece_start(stream, start, min(stop, file.size), separator)
        if first >= stop:  # a piece that goes on through all of the range is the business of another one
            return
        end = _piece_start(stream, stop, file.size, separator)
        stream.seek(first)
        yield from _blocks(stream, first, end, separator, options)


def read_whole(stream: pa.NativeFile, options: ReadOptions) -> tuple[bytearray, tuple[BadRow, ...]]:
    """All that a stream holds, or the row that it is if that is too much."""
    held = bytearray()
    for data in iter(lambda: stream.read(options.batch_bytes), b""):
        held += data
        if options.document_bytes is not None and len(held) > options.document_bytes:
            return bytearray(), (_pass_by(stream, held, options),)
    return held, ()


def _pass_by(stream: pa.NativeFile, held: bytearray, options: ReadOptions) -> BadRow:
    long = LongRow(0)
    long.take(held, len(held))
    for data in iter(lambda: stream.read(options.batch_bytes), b""):
        long.take(bytearray(data), len(data))
    return long.told()


def _blocks(
    stream: pa.NativeFile, offset: int, stop: int | None, separator: bytes, options: ReadOptions
) -> Iterator[Block]:
    held = [bytearray()]  # popped when it is handed over, so that nothing here keeps what may be one huge document
    limit = None if stop is None else stop - offset
    most = math.inf if options.document_bytes is None else options.document_bytes
    scan = _scan(stream, limit, separator, options.batch_bytes)
    for data, found in scan:
        ends = found + len(held[0])
        held[0] += data
        if not len(ends) and len(held[0]) - len(separator) >= most:
            long, ends = _skip(scan, held[0], separator, offset)
            yield _long_block(long.told())
            offset += long.size + len(separator)
        if not len(ends):
            continue
        cut = int(ends[-1])
        rest = held[0][cut:]
        del held[0][cut:]
        starts, stops = np.append(0, ends[:-1]), ends - len(separator)
        if (stops - starts > most).any():
            yield from _apart(Block(offset, held.pop(), starts, stops), int(most))
        else:
            yield Block(offset, held.pop(), starts, stops)
        held.append(rest)
        offset += cut
    if len(held[0]) > most:
        yield from _apart(Block(offset, held[0], np.array([0]), np.array([len(held[0])])), int(most))
    elif held[0]:
        stops = np.array([len(held[0])])
        yield Block(offset, held.pop(), np.array([0]), stops)


def _skip(
    scan: Iterator[tuple[bytes, Int64Array]], held: bytearray, separator: bytes, row: int
) -> tuple[LongRow, Int64Array]:
    """Go on to the end of a piece too long to be held; `held` keeps what follows it, with the ends of its matches."""
    long = LongRow(row)
    reach = len(separator) - 1  # bytes that may belong to a separator which goes on in the next chunk
    long.take(held, len(held) - reach)
    for data, found in scan:
        ends = found + len(held)
        held += data
        if len(ends):
            long.take(held, int(ends[0]) - len(separator))
            del held[: len(separator)]
            return long, ends[1:] - ends[0]
        long.take(held, len(held) - reach)
    long.take(held, len(held))
    return long, np.empty(0, dtype=np.int64)


def _apart(block: Block, most_bytes: int) -> Iterator[Block]:
    """The pieces of a block with those that are too long taken out of it."""
    too_long = np.flatnonzero(block.stop - block.start > most_bytes).tolist()
    first = 0
    for index in [*too_long, len(block.start)]:
        if index > first:
            begin = int(block.start[first])
            end = int(block.start[index]) if index < len(block.start) else len(block.data)
            start, stop = block.start[first:index] - begin, block.stop[first:index] - begin
            yield Block(block.offset + begin, block.data[begin:end], start, stop)
        if index < len(block.start):
            long = LongRow(block.offset + int(block.start[index]))
            piece = block.data[block.start[index] : block.stop[index]]
            long.take(piece, len(piece))
            yield _long_block(long.told())
        first = index + 1


def _long_block(bad: BadRow) -> Block:
    nothing = np.empty(0, dtype=np.int64)
    return Block(bad.row, bytearray(), nothing, nothing, (bad,))


def _scan(
    stream: pa.NativeFile, limit: int | None, separator: bytes, chunk_bytes: int
) -> Iterator[tuple[bytes, Int64Array]]:
    """What is read, chunk by chunk, with the ends of the matches, counted from the chunk's start."""
    tail = b""  # what a match that goes on in the next chunk may begin with
    while limit is None or limit > 0:
        data = stream.read(chunk_bytes if limit is None else min(chunk_bytes, limit))
        if not data:
            break
        seen = tail + data if tail else data
        ends = _match_ends(seen, separator)
        unmatched = int(ends[-1]) if len(ends) else 0
        ends -= len(tail)
        tail = seen[max(unmatched, len(seen) - len(separator) + 1) :]
        yield data, ends
        limit = None if limit is None else limit - len(data)
    if limit:
        raise EOFError(f"the file ends {limit} bytes too early")


def _match_ends(data: bytes, separator: bytes) -> Int64Array:
    if len(separator) == 1:
        return np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == separator[0]).astype(np.int64) + 1
    matches = re.finditer(re.escape(separator), data)
    return np.fromiter((match.end() for match in matches), dtype=np.int64)


def _piece_start(stream: pa.NativeFile, position: int, limit: int, separator: bytes) -> int:
    """Where the first piece that starts at or after a position starts; `limit` if there is none before it."""
    if position <= 0 or position >= limit:
        return min(max(position, 0), limit)
    scanned = _free_position(stream, separator, position - len(separator))
    stream.seek(scanned)
    for data, ends in _scan(stream, limit - scanned, separator, SCAN_BYTES):
        later = ends[ends + scanned >= position]
        if len(later):
            return scanned + int(later[0])
        scanned += len(data)
    return limit


def _free_position(stream: pa.NativeFile, separator: bytes, position: int) -> int:
    r"""The nearest place at or before a position that surely lies in no match.

    In `a\n\n\nb` the second and third line end look like a separator too, but the match before has used up the second.
    A place that no occurrence spans, taken or not, is free of such doubt: from there on matching gives what it would
    give from byte 0. Going back from one occurrence to the one that it overlaps reaches such a place.
    """
    reach = len(separator) - 1
    while position > 0 and reach:
        window_start = max(position - reach, 0)
        stream.seek(window_start)
        spanning = stream.read(position - window_start + reach).find(separator)
        if spanning < 0:
            break
        position = window_start + spanning
    return max(position, 0)
