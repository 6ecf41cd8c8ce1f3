"""Writes the tokens of a unit of a dataset as an Arrow stream, which `datasets` maps into memory. Runs in a worker."""

from __future__ import annotations

import os
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tokenmill.errors import StoreError
from tokenmill.pipeline.unit.documents import WorkerLimits, loaded_tokenizer, unit_tokens
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.checksum import xxh3_of
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store.job import Job
from tokenmill.tokenization.tokenize_fn import token_columns
from tokenmill.tokenization.tokenizer import Tokenizer

ROWS = "rows"
# The ending of the files that describe row files.
RECORD = "json"


def rows_name(unit: int) -> str:
    """The name of a unit's rows inside the run directory."""
    return f"{ROWS}/{unit:08d}.arrow"


def rows_schema(job: Job) -> pa.Schema:
    """The columns: `ids`, of the vocabulary's type, and `len`."""
    return pa.schema([("ids", pa.list_(pa.from_numpy_dtype(job.tokenizer.dtype))), ("len", pa.int64())])


class RowsRecord(msgspec.Struct, frozen=True):
    """Describes the row file of a unit: its run and unit, size, modification time and checksum (XXH3, 128 bits)."""

    run: str
    unit: int
    bytes: int
    mtime_ns: int
    xxh3: str


def commit_rows(folder: Folder, rows: str, run: str, unit: int = 0) -> None:
    """Publish the record of a row file, which commits it."""
    status = os.stat(folder.path(rows))
    record = RowsRecord(run, unit, status.st_size, status.st_mtime_ns, xxh3_of(folder, rows))
    with folder.publish(_record_name(rows), durable=False) as file:
        file.write(msgspec.json.encode(record))


def are_intact(folder: Folder, rows: str, run: str, unit: int = 0) -> bool:
    """Whether a row file is the one that this run wrote. It is read only if it was touched."""
    try:
        record = decode(folder.read(_record_name(rows)), RowsRecord)
        status = os.stat(folder.path(rows))
        if (record.run, record.unit, record.bytes) != (run, unit, status.st_size):
            return False
        return record.mtime_ns == status.st_mtime_ns or record.xxh3 == xxh3_of(folder, rows)
    except (MalformedDataError, StoreError, OSError):
        return False


def _record_name(rows: str) -> str:
    return rows.removesuffix("arrow") + RECORD


class Mapped(msgspec.Struct, frozen=True):
    """What a worker reports about a unit whose rows it has written."""

    tokens: int
    text_bytes: int
    notices: tuple[str, ...]
    mismatch: str | None = None


@dataclass(frozen=True, slots=True)
class MapRows:
    """The function that writes the rows of a unit batch by batch, so it may have any size. Null text stays null."""

    directory: str
    job: Job
    run: str
    engine: str
    limits: WorkerLimits

    def __call__(self, task: UnitTask) -> Mapped:
        """Read, encode and publish one unit; a failed audit starts it again with the reference engine."""
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine)
        tokens, text_bytes = tokenizer.retry_with_reference(lambda: self._write(task, tokenizer))
        return Mapped(tokens, text_bytes, tokenizer.take_notices(), tokenizer.mismatch)

    def _write(self, task: UnitTask, tokenizer: Tokenizer) -> tuple[int, int]:
        schema = rows_schema(self.job)
        tokens = text_bytes = 0
        folder, name = folder_at(self.directory), rows_name(task.unit)
        with folder.publish(name, durable=False) as file, pa.ipc.new_stream(file, schema) as writer:
            for _, documents, encoded in unit_tokens(self.directory, task, self.job, tokenizer, self.limits):
                is_null = documents.null_mask() if documents.text.null_count else None
                writer.write_batch(pa.record_batch(token_columns(encoded, is_null), schema=schema))
                tokens += len(encoded.tokens)
                text_bytes += documents.text_bytes()
        commit_rows(folder, name, self.run, task.unit)
        return tokens, text_bytes
