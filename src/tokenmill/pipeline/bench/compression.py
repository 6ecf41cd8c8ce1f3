"""What the beginning of a compressed file unpacks to, for `bench`. Runs in a worker.

Its size alone tells little: text of one kind shrinks to a half, of another to a twentieth.
"""

from __future__ import annotations

import msgspec
import pyarrow as pa

from tokenmill import storage
from tokenmill.sources.delimited import codec_of
from tokenmill.sources.documents import SourceFile

READ_BYTES = 1 << 20
FETCHED_BYTES = 1 << 16
"""What pyarrow takes from a compressed file at once: half of it, by and large, is not unpacked yet."""


class Beginning(msgspec.Struct, frozen=True):
    """A compressed file, of which this much is to be unpacked."""

    file: SourceFile
    unpacked_bytes: int


def packed_share(beginning: Beginning) -> float:
    """How many bytes the beginning of a compressed file has for each byte that it unpacks to."""
    file, unpacked = beginning.file, 0
    with storage.open_input(file.info, keep=True) as packed:
        stream = pa.CompressedInputStream(packed, codec_of(file.path))
        while unpacked < beginning.unpacked_bytes and (data := stream.read(READ_BYTES)):
            unpacked += len(data)
        taken = packed.tell()
    taken -= FETCHED_BYTES // 2 if FETCHED_BYTES < taken < file.size else 0
    return float(taken / max(unpacked, 1))
