"""Measures the compression ratio at the beginning of a file, for `bench`. Runs in a worker.

The size of a compressed file says little about its text: one kind shrinks to a half, another to a twentieth.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from tokenmill import storage
from tokenmill.sources.delimited import codec_of
from tokenmill.sources.documents import SourceFile

READ_BYTES = 1 << 20
# pyarrow reads compressed files in chunks of this size. On average, half of the last chunk is not decompressed yet.
CHUNK_BYTES = 1 << 16


class CompressedPrefix(msgspec.Struct, frozen=True):
    """A compressed file, and how many bytes to decompress from its beginning."""

    file: SourceFile
    text_bytes: int


def compression_ratio(prefix: CompressedPrefix) -> float:
    """Compressed bytes per decompressed byte at the beginning of a file."""
    file, text_bytes = prefix.file, 0
    with storage.open_input(file.info, keep=True) as compressed:
        stream = pa.CompressedInputStream(compressed, codec_of(file.path))
        while text_bytes < prefix.text_bytes and (data := stream.read(READ_BYTES)):
            text_bytes += len(data)
        read = compressed.tell()
    read -= CHUNK_BYTES // 2 if CHUNK_BYTES < read < file.size else 0
    return float(read / max(text_bytes, 1))
