"""The log of all erasures of a store, as JSON Lines. It never holds text or tokens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.exports.erase_done import ExportErasure
from tokenmill.storage import Folder
from tokenmill.store import tables
from tokenmill.store.erasures import (
    ERASURE_LOG,
    ErasureRecord,
    changed_files,
    erased_documents,
)
from tokenmill.store.job import Run


def append_log(folder: Folder, run: Run, record: ErasureRecord, exports: Sequence[ExportErasure]) -> None:
    """Add the lines of an erasure: its request, then documents, rows in quarantine and changed files.

    The file is replaced as a whole, so a killed writer leaves no part of a line. The lines of other erasures stay.
    """
    own = b'{"request":' + msgspec.json.encode(record.request) + b","
    before = list(folder.ranges.lines(ERASURE_LOG)) if folder.exists(ERASURE_LOG) else []
    with folder.publish(ERASURE_LOG) as file:
        file.writelines(line for line in before if not line.startswith(own))
        file.write(_request_line(folder, record, exports))
        for row in record.quarantined:
            file.write(_line(record, "quarantined", source=row.file, row=row.row))
        if record.change is not None:
            paths = tables.read_sources(folder, run)["path"].combine_chunks()
            file.write(_document_lines(own, erased_documents(folder.root, record.change), paths))
            for entry in changed_files(folder, record).to_pylist():
                file.write(_line(record, "file", **entry))
        for export in exports:
            for shard in export.shards:
                for old, new in zip(shard.before, shard.after, strict=True):
                    path = f"{export.directory}/{old.name}"
                    file.write(_line(record, "file", name=path, before=old.xxh3, after=new.xxh3))


def _request_line(folder: Folder, record: ErasureRecord, exports: Sequence[ExportErasure]) -> bytes:
    fields = {name: getattr(record, name) for name in ("time", "reason", "selector", "selector_sha256")}
    change = record.change
    return _line(
        record,
        "erasure",
        store=folder.root,
        **fields,
        documents=change.documents if change else 0,
        tokens=change.tokens if change else 0,
        matched_before=record.matched_before,
        not_found=record.not_found,
        exports=[export.directory for export in exports if not export.problem],
        unreached={export.directory: export.problem for export in exports if export.problem},
    )


def _line(record: ErasureRecord, event: str, **fields: object) -> bytes:
    return msgspec.json.encode({"request": record.request, "event": event, **fields}) + b"\n"


def _document_lines(start: bytes, documents: pa.Table, paths: pa.Array) -> bytes:
    """A line for each document: source, row, tokens and the hash of its tokens."""
    used, index = np.unique(documents["source"].to_numpy(), return_inverse=True)
    quoted = pa.array([msgspec.json.encode(paths[number].as_py()).decode() for number in used.tolist()], pa.string())
    row, tokens, xxh3 = (documents[name].combine_chunks().cast(pa.string()) for name in ("row", "tokens", "xxh3"))
    first = start.decode() + '"event":"document","source":'
    texts = [first, quoted.take(pa.array(index)), ',"row":', row, ',"tokens":', tokens, ',"xxh3":"', xxh3, '"}\n']
    lines = pc.binary_join_element_wise(*texts, "")
    return "".join(lines.to_pylist()).encode()
