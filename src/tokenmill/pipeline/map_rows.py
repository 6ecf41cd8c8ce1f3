"""Writes the tokens of a unit of a dataset as an Arrow stream, which `datasets` maps into memory. Runs in a worker."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tokenmill.pipeline.plan import UnitTask
from tokenmill.pipeline.units import WorkerLimits, loaded_tokenizer, unit_tokens
from tokenmill.storage import folder_at
from tokenmill.store.job import Job
from tokenmill.tokenizers.tokenize_fn import token_columns
from tokenmill.tokenizers.tokenizer import Tokenizer

ROWS = "rows"


def rows_name(unit: int) -> str:
    """The name of a unit's rows inside the run directory."""
    return f"{ROWS}/{unit:08d}.arrow"


def rows_schema(job: Job) -> pa.Schema:
    """The columns: `ids`, of the vocabulary's type, and `len`."""
    return pa.schema([("ids", pa.list_(pa.from_numpy_dtype(job.tokenizer.dtype))), ("len", pa.int64())])


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
        with (
            folder_at(self.directory).publish(rows_name(task.unit), durable=False) as file,
            pa.ipc.new_stream(file, schema) as writer,
        ):
            for _, documents, encoded in unit_tokens(task, self.job, tokenizer, self.limits):
                is_null = documents.null_mask() if documents.text.null_count else None
                writer.write_batch(pa.record_batch(token_columns(encoded, is_null), schema=schema))
                tokens += len(encoded.tokens)
                text_bytes += documents.text_bytes()
        return tokens, text_bytes
