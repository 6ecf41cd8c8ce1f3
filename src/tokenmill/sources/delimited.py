"""Read the bytes of a file, decompressed, and split them at a separator: lines of JSON Lines, documents of text.

Segments are those of `re.split`: matches are taken from left to right and do not overlap. A line end in a separator of
documents matches CRLF, too. A segment starts at byte 0 or right after a match. Matching from the start of any segment
finds the same later matches. So a file can be read in byte ranges: a range owns the segments that start in it.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources.bad_rows import LongRow
from tokenmill.sources.documents import BadRow, Int64Array, ReadOptions, Slice, Slices, SourceFile, Span

CODECS = {".gz": "gzip", ".zst": "zstd"}
# Assumed ratio of text to compressed file size, for planning.
EXPECTED_COMPRESSION = 4
# Chunk size when searching for the start of a segment.
SCAN_BYTES = 1 << 16
# How much of a file is read before planning: what a file is, and which columns it has, is decided by its start.
SAMPLE_BYTES = 256 << 10
PIECE_BYTES = 1 << 14
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
# The bytes of a compressed file from which its compression is measured.
RATIO_BYTES = 1 << 18

# A chunk, and the starts and ends of the matches that end in it, relative to its start. A match may start before it.
Scanned = tuple[bytes, Int64Array, Int64Array]


@dataclass(frozen=True, slots=True)
class Separator:
    """What separates two segments. At each start there is at most one match, whatever follows it.

    `max_bytes` is the length of the longest match.
    """

    pattern: re.Pattern[bytes]
    max_bytes: int

    def matches(self, data: bytes) -> tuple[Int64Array, Int64Array]:
        """The starts and ends of the matches."""
        if self.pattern.pattern in {LINE_END.pattern.pattern, ANY_LINE_END}:
            found = np.frombuffer(data, dtype=np.uint8)
            starts = np.flatnonzero(found == ord("\n")).astype(np.int64)
            ends = starts + 1
            if self.max_bytes > 1:
                starts = starts - ((starts > 0) & (found[np.maximum(starts - 1, 0)] == ord("\r")))
            return starts, ends
        spans = [match.span() for match in self.pattern.finditer(data)]
        starts, ends = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        return starts, ends

    def spanning(self, data: bytes, position: int) -> int | None:
        """The start of the first occurrence that begins before a position and ends after it. It may overlap others."""
        for match in re.finditer(b"(?=(" + self.pattern.pattern + b"))", data):
            if match.start() < position < match.end(1):
                return match.start()
        return None


LINE_END = Separator(re.compile(re.escape(b"\n")), 1)
ANY_LINE_END = rb"\r?\n"


def text_separator(text: str) -> Separator:
    """A separator of documents, each line end of which matches CRLF, too."""
    pieces = re.split(rb"(?<!\r)\n", text.encode())
    pattern = ANY_LINE_END.join(map(re.escape, pieces))
    return Separator(re.compile(pattern), len(text.encode()) + len(pieces) - 1)


class ByteStream(Protocol):
    """What segments are read from: a file, or what is made of its bytes."""

    def read(self, size: int) -> bytes:
        """The next bytes, at most `size`; none at the end."""


@dataclass(frozen=True, slots=True)
class Block:
    """Whole segments: segment i is data[start[i]:stop[i]], without its separator. `offset` is the file offset of data.

    `bad` is a segment that is too long; such a block holds nothing else.
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
    """The compression codec for the file's extension."""
    return next((codec for extension, codec in CODECS.items() if path.lower().endswith(extension)), None)


def compression_ratio(file: SourceFile) -> float:
    """The bytes of the content for each byte of a file, measured at its start. 1 if the file is not compressed."""
    codec = codec_of(file.path)
    if not codec:
        return 1.0
    with storage.open_input(file.info, [(0, min(file.size, RATIO_BYTES))]) as stream:
        start = stream.read(RATIO_BYTES)
    content = 0
    with contextlib.suppress(OSError):
        for piece in _decompressed(start, codec):
            content += len(piece)
    return content / len(start) if content else float(EXPECTED_COMPRESSION)


def slice_byte_ranges(file: SourceFile, file_slice: Slice | None, separator: Separator) -> list[Span]:
    """The bytes that reading the segments of a slice needs, unless the last segment ends far after the slice."""
    if file_slice is None or codec_of(file.path):
        return [(0, file.size)]
    return [(max(file_slice.start - 2 * separator.max_bytes, 0), min(file_slice.stop + SCAN_BYTES, file.size))]


def open_stream(file: SourceFile, expected: list[Span]) -> pa.NativeFile:
    """The decompressed content. Reading raises OSError if the compressed stream is truncated or damaged."""
    codec = codec_of(file.path)
    if codec and file.size == 0:
        raise SourceError(
            "a compressed source is empty", f"file         {file.path}", "It was never written, or cut off."
        )
    stream = storage.open_input(file.info, expected, keep=True)
    return pa.CompressedInputStream(stream, codec) if codec else stream


def read_segments(file: SourceFile, file_slice: Slice, separator: Separator, options: ReadOptions) -> Iterator[Block]:
    """The segments that start in the slice, in blocks of about `batch_bytes`, or of one longer segment."""
    start, stop = file_slice.start, file_slice.stop
    with open_stream(file, slice_byte_ranges(file, file_slice, separator)) as stream:
        if codec_of(file.path):
            yield from stream_segments(stream, separator, options)
            return
        first = _segment_start(stream, start, min(stop, file.size), separator)
        if first >= stop:  # no segment starts in this range
            return
        end = _segment_start(stream, stop, file.size, separator)
        stream.seek(first)
        yield from _blocks(stream, first, end, separator, options)


def stream_segments(stream: ByteStream, separator: Separator, options: ReadOptions) -> Iterator[Block]:
    """The segments of a whole stream, in blocks as `read_segments` yields them."""
    yield from _blocks(stream, 0, None, separator, options)


def read_whole(stream: pa.NativeFile, options: ReadOptions) -> tuple[bytearray, tuple[BadRow, ...]]:
    """The content of a stream, or one bad row if it is longer than `options.document_bytes`."""
    held, limit, long = bytearray(), options.document_bytes, None
    for data in iter(lambda: stream.read(options.batch_bytes), b""):
        held += data
        if long is None and limit is not None and len(held) > limit:
            long = LongRow(0)
        if long is not None:
            long.take(held, len(held))
    return held, () if long is None else (long.as_bad_row(),)


def _blocks(
    stream: ByteStream, offset: int, stop: int | None, separator: Separator, options: ReadOptions
) -> Iterator[Block]:
    held = [bytearray()]  # popped when yielded, so that no reference here keeps a huge document alive
    limit = None if stop is None else stop - offset
    max_bytes = math.inf if options.document_bytes is None else options.document_bytes
    scan = _scan(stream, limit, separator, options.batch_bytes)
    for data, match_starts, match_ends in scan:
        stops, ends = match_starts + len(held[0]), match_ends + len(held[0])
        held[0] += data
        if not len(ends) and len(held[0]) - separator.max_bytes >= max_bytes:
            long, stops, ends, skipped = _skip_long(scan, held[0], separator, offset)
            yield _long_block(long.as_bad_row())
            offset += skipped
        if not len(ends):
            continue
        cut = int(ends[-1])
        rest = held[0][cut:]
        del held[0][cut:]
        starts = np.append(0, ends[:-1])
        if (stops - starts > max_bytes).any():
            yield from _split_out_long(Block(offset, held.pop(), starts, stops), int(max_bytes))
        else:
            yield Block(offset, held.pop(), starts, stops)
        held.append(rest)
        offset += cut
    if len(held[0]) > max_bytes:
        yield from _split_out_long(Block(offset, held[0], np.array([0]), np.array([len(held[0])])), int(max_bytes))
    elif held[0]:
        stops = np.array([len(held[0])])
        yield Block(offset, held.pop(), np.array([0]), stops)


def _skip_long(
    scan: Iterator[Scanned], held: bytearray, separator: Separator, row: int
) -> tuple[LongRow, Int64Array, Int64Array, int]:
    """Skip to the end of a segment that is too long; `held` keeps what follows.

    Returns the starts and ends of matches in `held`, and how many bytes the segment and its separator have.
    """
    long = LongRow(row)
    overlap = separator.max_bytes - 1  # these bytes may be the start of a separator that continues in the next chunk
    long.take(held, len(held) - overlap)
    for data, match_starts, match_ends in scan:
        stops, ends = match_starts + len(held), match_ends + len(held)
        held += data
        if len(ends):
            long.take(held, int(stops[0]))
            matched = int(ends[0] - stops[0])
            del held[:matched]
            return long, stops[1:] - ends[0], ends[1:] - ends[0], long.size + matched
        long.take(held, len(held) - overlap)
    long.take(held, len(held))
    nothing = np.empty(0, dtype=np.int64)
    return long, nothing, nothing, long.size


def _split_out_long(block: Block, max_bytes: int) -> Iterator[Block]:
    """Split a block so that each segment that is too long becomes a block of its own."""
    too_long = np.flatnonzero(block.stop - block.start > max_bytes).tolist()
    first = 0
    for index in [*too_long, len(block.start)]:
        if index > first:
            begin = int(block.start[first])
            end = int(block.start[index]) if index < len(block.start) else len(block.data)
            start, stop = block.start[first:index] - begin, block.stop[first:index] - begin
            yield Block(block.offset + begin, block.data[begin:end], start, stop)
        if index < len(block.start):
            long = LongRow(block.offset + int(block.start[index]))
            segment = block.data[block.start[index] : block.stop[index]]
            long.take(segment, len(segment))
            yield _long_block(long.as_bad_row())
        first = index + 1


def _long_block(bad: BadRow) -> Block:
    empty = np.empty(0, dtype=np.int64)
    return Block(bad.row, bytearray(), empty, empty, (bad,))


def _scan(stream: ByteStream, limit: int | None, separator: Separator, chunk_bytes: int) -> Iterator[Scanned]:
    """Read chunk by chunk. Yields each chunk with the starts and ends of matches that end in it."""
    tail = b""  # the end of the last chunk, in which a match may begin that ends in the next chunk
    while limit is None or limit > 0:
        data = stream.read(chunk_bytes if limit is None else min(chunk_bytes, limit))
        if not data:
            break
        window = tail + data if tail else data
        starts, ends = separator.matches(window)
        unmatched = int(ends[-1]) if len(ends) else 0
        starts, ends = starts - len(tail), ends - len(tail)
        tail = window[max(unmatched, len(window) - separator.max_bytes + 1) :]
        yield data, starts, ends
        limit = None if limit is None else limit - len(data)
    if limit:
        raise EOFError(f"the file ends {limit} bytes too early")


def _segment_start(stream: pa.NativeFile, position: int, limit: int, separator: Separator) -> int:
    """The start of the first segment that starts at or after `position`; `limit` if none starts before `limit`."""
    if position <= 0 or position >= limit:
        return min(max(position, 0), limit)
    scanned = _unspanned_position(stream, separator, position - separator.max_bytes)
    stream.seek(scanned)
    for data, _, ends in _scan(stream, limit - scanned, separator, SCAN_BYTES):
        later = ends[ends + scanned >= position]
        if len(later):
            return scanned + int(later[0])
        scanned += len(data)
    return limit


def _unspanned_position(stream: pa.NativeFile, separator: Separator, position: int) -> int:
    r"""The nearest position, at or before the given one, that no occurrence of the separator spans.

    With the separator `\n\n`, the second and third line end of `a\n\n\nb` are an occurrence but not a match, because
    the match before uses the second one. From a position that no occurrence spans, matching finds the same matches as
    from byte 0. Going back from an occurrence to the one that it overlaps reaches such a position.
    """
    overlap = separator.max_bytes - 1
    while position > 0 and overlap:
        window_start = max(position - overlap, 0)
        stream.seek(window_start)
        window = stream.read(position - window_start + overlap)
        spanning = separator.spanning(window, position - window_start)
        if spanning is None:
            break
        position = window_start + spanning
    return max(position, 0)


def read_sample(file: SourceFile, limit_bytes: int = SAMPLE_BYTES) -> tuple[bytes, bool]:
    """The first bytes of the content, decompressed, and whether that is all of it."""
    data = storage.read_start(file.info, limit_bytes)
    is_all = len(data) == file.size
    codec = codec_of(file.path)
    if codec:
        data, is_end = _decompress_start(data, codec, limit_bytes)
        is_all &= is_end
    return data, is_all


def _decompress_start(data: bytes, codec: str, limit_bytes: int) -> tuple[bytes, bool]:
    """The content at the start of a compressed file, and whether that is all of it."""
    content = b""
    try:
        for piece in _decompressed(data, codec):
            content += piece
            if len(content) >= limit_bytes:
                return content, False
    except OSError:  # the stream continues after the sample, or is damaged
        return content, False
    return content, True


def _decompressed(start: bytes, codec: str) -> Iterator[bytes]:
    """The content at the start of a compressed file. Raises OSError if this start ends within a block."""
    with pa.CompressedInputStream(pa.BufferReader(start), codec) as stream:
        while piece := stream.read(PIECE_BYTES):
            yield piece
