"""The spool of a store: rows that were given to `prepare` and are in no file, in files of the store's directory.

The record is published after the files, so a spool with a record is complete. It names each file with the hash of its
rows before any erasure: the same rows give the same hashes, and their text is not in the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import BinaryIO

import msgspec
import pyarrow as pa

from tokenmill import storage
from tokenmill.storage import Folder, read_existing
from tokenmill.storage.untrusted.malformed import decode
from tokenmill.store.layout import MAX_JSON_BYTES, SPOOL, errors_of, publish_json

RECORD = f"{SPOOL}/spool.json"

ARROW, JSONL = "arrow", "jsonl"
"""The kinds of spool files, which are those of sources."""

_EXTENSIONS = {ARROW: "arrow", JSONL: "jsonl.zst"}


class SpoolFile(msgspec.Struct, frozen=True):
    """One file: its name in the store, its rows, the hash of their content, and their split."""

    name: str
    rows: int
    content: str
    split: str | None = None


class Spool(msgspec.Struct, frozen=True):
    """A complete spool. `dropped` means that its files were removed when the store was complete."""

    kind: str
    files: tuple[SpoolFile, ...]
    dropped: bool = False

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(file.rows for file in self.files)


def spool_name(number: int, kind: str) -> str:
    """The name of a spool file."""
    return f"{SPOOL}/{number:08d}.{_EXTENSIONS[kind]}"


def read_spool(folder: Folder) -> Spool | None:
    """The record of a store's spool. None if it has none, or one that is not complete."""
    data = read_existing(folder, RECORD, MAX_JSON_BYTES)
    if data is None:
        return None
    with errors_of(folder, RECORD):
        return decode(data, Spool)


def publish_spool(folder: Folder, spool: Spool) -> None:
    """Publish the record, which completes a spool whose files are all there."""
    folder.sync_directory(SPOOL)
    publish_json(folder, RECORD, spool)


def write_arrow(output: BinaryIO, batches: Sequence[pa.RecordBatch]) -> None:
    """Write a spool file of columns. There is at least one batch."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(output, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)


def read_arrow(folder: Folder, name: str) -> list[pa.RecordBatch]:
    """Read a spool file of columns."""
    with errors_of(folder, name):
        reader = pa.ipc.open_file(pa.py_buffer(folder.buffer(name)))
        return [reader.get_batch(number) for number in range(reader.num_record_batches)]


def write_lines(output: BinaryIO, lines: pa.Buffer) -> None:
    """Write lines to a spool file of JSON Lines, as a frame of its own."""
    output.write(pa.compress(lines, codec="zstd"))


def drop_spool(folder: Folder) -> None:
    """Remove the files of a spool. Its record stays, so that the same rows are recognized."""
    spool = read_spool(folder)
    if spool is None:
        return
    if not spool.dropped:
        publish_json(folder, RECORD, msgspec.structs.replace(spool, dropped=True))
    for file in spool.files:
        folder.discard(file.name)


def spool_of(folder: Folder, sources: pa.Table) -> Spool | None:
    """The spool that these sources are the files of; None if they are other files."""
    spool = read_spool(folder)
    if spool is None or len(spool.files) != len(sources):
        return None
    pairs = zip(sources["path"].to_pylist(), spool.files, strict=True)
    return spool if all(path.endswith(f"/{file.name}") for path, file in pairs) else None


def current_sources(folder: Folder, sources: pa.Table) -> pa.Table:
    """The sources as they are to be read after an erasure, which wrote spool files again under their names.

    The table of the run keeps the sizes of before, which belong to the identity of parts.
    """
    spool = spool_of(folder, sources)
    if spool is None or spool.dropped:
        return sources
    rows = sources.to_pylist()
    for row, file in zip(rows, spool.files, strict=True):
        now = storage.stat(folder.path(file.name))
        row.update(size=now.size, fingerprint=now.fingerprint)
    return pa.Table.from_pylist(rows, sources.schema)
