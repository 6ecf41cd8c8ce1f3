"""The first bytes of a file, decompressed: what a file is, and which columns it has, is decided by them."""

from __future__ import annotations

import pyarrow as pa

from tokenmill import storage
from tokenmill.sources.delimited import codec_of
from tokenmill.sources.documents import SourceFile

# How much of a file is read before planning.
SAMPLE_BYTES = 256 << 10
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_sample(file: SourceFile) -> tuple[bytes, bool]:
    """The first bytes of the content, decompressed, and whether that is all of it."""
    data = storage.read_start(file.info, SAMPLE_BYTES)
    is_all = len(data) == file.size
    codec = codec_of(file.path)
    if codec:
        data, is_end = _decompress_start(data, codec)
        is_all &= is_end
    return data, is_all


def _decompress_start(data: bytes, codec: str) -> tuple[bytes, bool]:
    """The content at the start of a compressed file, and whether that is all of it."""
    content = b""
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while len(content) < SAMPLE_BYTES:
                more = stream.read(1 << 14)
                if not more:
                    return content, True
                content += more
    except OSError:  # the stream continues after the sample, or is damaged
        return content, False
    return content, False
