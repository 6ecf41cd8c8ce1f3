"""Encrypted Parquet: found out before pyarrow is asked for a column that it cannot decrypt, which ends the process."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.errors import SourceError
from tokenmill.sources.documents import SourceFile

ENCRYPTED_MAGIC = b"PARE"
"""The last bytes of a file whose footer is encrypted. All others end with PAR1."""

SIGNATURE_BYTES = 28
"""A plain footer of a file with encrypted columns is followed by a signature: a nonce of 12 bytes, a tag of 16."""

TRAILER_BYTES = 8
"""The length of the footer and the magic, at the end of a file."""


def refuse_encrypted_footer(file: SourceFile, stream: pa.NativeFile) -> None:
    """Raise SourceError if the footer of a file is encrypted."""
    if _trailer(stream)[4:] == ENCRYPTED_MAGIC:
        raise _encrypted(file, "footer")


def refuse_encrypted_column(file: SourceFile, stream: pa.NativeFile, metadata: pq.FileMetaData, column: str) -> None:
    """Raise SourceError if a column is encrypted; other columns of the file may be."""
    footer_bytes = int.from_bytes(_trailer(stream)[:4], "little")
    if footer_bytes != metadata.serialized_size + SIGNATURE_BYTES or not metadata.num_row_groups:
        return
    try:  # a reader raises, where the metadata of the column would end the process
        next(
            pq.ParquetFile(stream, pre_buffer=False).iter_batches(batch_size=1, row_groups=[0], columns=[column]), None
        )
    except OSError as error:
        if "decrypt" not in str(error).lower():
            raise
        raise _encrypted(file, f"column {column}") from error


def _trailer(stream: pa.NativeFile) -> bytes:
    size = stream.size()
    if size < TRAILER_BYTES:
        return bytes(TRAILER_BYTES)
    stream.seek(-TRAILER_BYTES, os.SEEK_END)
    return bytes(stream.read(TRAILER_BYTES))


def _encrypted(file: SourceFile, what: str) -> SourceError:
    return SourceError(
        "encrypted Parquet is not supported",
        f"file         {file.path}",
        f"encrypted    {what}",
        "Write a copy that is not encrypted, and use that.",
    )
