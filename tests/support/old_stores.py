"""Stores of format 5, made from stores of today: parts without slice and XXH3, and a manifest without both."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.storage import Folder, folder_at
from tokenmill.store import layout, quarantine, tables
from tokenmill.store.job import Job
from tokenmill.store.manifest import LATER_COLUMNS, read_manifest
from tokenmill.store.part import PartSummary, open_part, part_name, write_columns
from tokenmill.store.part_checksum import checksum
from tokenmill.store.run import require_run

OLD_FIELDS = ("unit", "job", "documents", "tokens", "text_bytes", "sha256", "skipped")


def as_format_5(directory: str) -> str:
    """Rewrite a complete store as tokenmill 0.1 would have written it."""
    folder = folder_at(directory)
    run = require_run(folder)
    manifest = read_manifest(folder, run)
    job = msgspec.structs.replace(run.job, document_bytes=None)
    checksums = [_old_part(folder, unit, job) for unit in range(run.units)]
    names = [name for name in tables.MANIFEST_SCHEMA.names if name not in {*LATER_COLUMNS, "sha256"}]
    table = manifest.select(names).append_column("sha256", pa.array(checksums)).replace_schema_metadata()
    with folder.publish(layout.MANIFEST) as file:
        pq.write_table(table, file, compression="zstd")
    record = json.loads(layout.json_bytes(run)) | {"format": 5}
    del record["job"]["document_bytes"]
    layout.publish_json(folder, layout.RUN, record)
    return directory


def _old_part(folder: Folder, unit: int, job: Job) -> str:
    """Replace a part and its records of bad rows; return the checksum of the part."""
    summary, content = open_part(folder, unit)
    plain: PartSummary = msgspec.structs.replace(summary, job=job.digest(), sha256="", slice="", text="", xxh3="")
    old = msgspec.structs.replace(plain, sha256=checksum(content, plain))
    if old.quarantined_rows:
        quarantine.publish_unit_file(folder, old, quarantine.read_unit_file(folder, summary))
        folder.discard(quarantine.unit_file(summary))
    fields: dict[str, Any] = {name: getattr(old, name) for name in OLD_FIELDS}
    with folder.publish(part_name(unit)) as file:
        write_columns(file, content, {"tokenmill.format": "1", "tokenmill.part": msgspec.json.encode(fields)})
    return old.sha256
