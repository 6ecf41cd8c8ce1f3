"""The run directory: which files it holds, and how they are read and written.

`run.json` is published after the plan, the sources and the vocabulary, so its existence means that the run is frozen;
`manifest.parquet` is published last of all, so its existence means that the store is complete.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.errors import CorruptStore, IncompleteStore, StoreError
from tokenmill.job import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenmill.part import PartSummary
    from tokenmill.storage import Folder

RUN = "run.json"
SOURCES = "sources.parquet"
PLAN = "plan.parquet"
MANIFEST = "manifest.parquet"
LOG = "log.jsonl"
LOCK = ".lock"
PARTS = "parts"
TOKENIZER = "tokenizer"
FORMAT = 2
"""2 since sources have an identity."""

MANIFEST_SCHEMA = pa.schema(
    [
        ("unit", pa.int64()),
        ("documents", pa.int64()),
        ("tokens", pa.int64()),
        ("text_bytes", pa.int64()),
        ("skipped", pa.int64()),
        ("sha256", pa.string()),
    ]
)


class Run(msgspec.Struct, frozen=True):
    """The frozen run: the job, what it was started with, and the hashes of the files beside it."""

    job: Job
    units: int
    sources: int
    source_bytes: int
    text_bytes: int
    sources_sha256: str
    plan_sha256: str
    engine: str
    versions: dict[str, str]
    format: int = FORMAT


def publish_json(folder: Folder, name: str, record: Any) -> None:
    """Publish a record as indented JSON."""
    with folder.publish(name) as file:
        file.write(msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n")


def publish_table(folder: Folder, name: str, table: pa.Table) -> str:
    """Publish a table as Parquet; returns the SHA-256 of the file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    data = sink.getvalue()
    with folder.publish(name) as file:
        file.write(data)
    return hashlib.sha256(data).hexdigest()


def read_table(folder: Folder, name: str, sha256: str | None = None) -> pa.Table:
    """Read a table that `publish_table` wrote, checked against its hash where one is known."""
    data = folder.read(name)
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise CorruptStore(f"{folder.path(name)} is not the file that {RUN} names")
    try:
        return pq.read_table(pa.BufferReader(data))
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptStore(f"{folder.path(name)} is damaged", str(error)) from error


def read_run(folder: Folder) -> Run | None:
    """The frozen run of a directory, or None if there is none yet."""
    if not folder.exists(RUN):
        return None
    try:
        run = msgspec.json.decode(folder.read(RUN), type=Run)
    except msgspec.MsgspecError as error:
        raise CorruptStore(f"{folder.path(RUN)} is damaged", str(error)) from error
    if run.format != FORMAT:
        raise StoreError(f"{folder.root} was written in format {run.format}; this tokenmill reads format {FORMAT}")
    return run


def require_run(folder: Folder) -> Run:
    """The frozen run of a directory that should have one."""
    run = read_run(folder)
    if run is None:
        raise StoreError(
            f"{folder.root} is not a tokenmill store",
            f"There is no {RUN} in it. `tokenmill prepare SOURCE --tokenizer T --out DIR` makes one.",
        )
    return run


def require_manifest(folder: Folder, run: Run) -> pa.Table:
    """The manifest of a store that should be complete."""
    if folder.exists(MANIFEST):
        return read_table(folder, MANIFEST)
    committed = int(committed_units(folder, run.units).sum())
    raise IncompleteStore(
        f"the store {folder.root} is not complete",
        f"units        {committed:,} of {run.units:,} are committed",
        "Run the same `tokenmill prepare` again to finish it.",
    )


def committed_units(folder: Folder, units: int) -> npt.NDArray[np.bool_]:
    """Which units have a part, by listing the parts once."""
    return numbered_files(folder, PARTS, "arrow", units)


def numbered_files(folder: Folder, directory: str, ending: str, count: int) -> npt.NDArray[np.bool_]:
    """Which of so many files are in a directory, where a file is called by its number, by listing it once."""
    pattern = re.compile(rf"(\d{{8,}})\.{ending}")
    numbers = np.array(
        [int(match[1]) for name in folder.names(directory) if (match := pattern.fullmatch(name))], np.int64
    )
    there = np.zeros(count, np.bool_)
    there[numbers[numbers < count]] = True
    return there


def manifest_columns(summaries: Sequence[PartSummary]) -> pa.Table:
    """Rows of the manifest for some parts."""
    rows = [(s.unit, s.documents, s.tokens, s.text_bytes, s.skipped_rows, s.sha256) for s in summaries]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(MANIFEST_SCHEMA)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, MANIFEST_SCHEMA, strict=True)]
    return pa.table(arrays, schema=MANIFEST_SCHEMA)


def append_log(folder: Folder, event: str, **fields: Any) -> None:
    """Add a line to the run's log: what happened, when, and to what."""
    line = json.dumps({"time": round(time.time(), 3), "event": event, **fields}, ensure_ascii=False)
    folder.append(LOG, line.encode() + b"\n")
