"""Refuse encrypted Parquet before pyarrow reads a column that it cannot decrypt, because that crashes the process."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources.documents import SourceFile

# The last bytes of a file whose footer is encrypted. All other Parquet files end with PAR1.
ENCRYPTED_MAGIC = b"PARE"
# The signature after the plain footer of a file with encrypted columns: a nonce of 12 bytes and a tag of 16 bytes.
SIGNATURE_BYTES = 28
# The end of a file: the length of the footer and the magic.
TRAILER_BYTES = 8


def refuse_encrypted_footer(file: SourceFile, stream: pa.NativeFile) -> None:
    """Raise SourceError if the footer of a file is encrypted."""
    if _trailer(stream)[4:] == ENCRYPTED_MAGIC:
        raise _encrypted(file, "footer")


def has_encrypted_columns(stream: pa.NativeFile, metadata: pq.FileMetaData) -> bool:
    """Whether the footer of a file has the signature of encrypted columns."""
    footer_bytes = int.from_bytes(_trailer(stream)[:4], "little")
    return bool(footer_bytes == metadata.serialized_size + SIGNATURE_BYTES and metadata.num_row_groups)


def refuse_encrypted_column(file: SourceFile, column: str) -> None:
    """Raise SourceError if this column is encrypted. Other columns of the file may be encrypted."""
    try:  # a reader raises here; reading the column's metadata would crash the process
        with storage.open_input(file.info) as stream:
            reader = pq.ParquetFile(stream, pre_buffer=False)
            next(reader.iter_batches(batch_size=1, row_groups=[0], columns=[column]), None)
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
