"""A part: the committed tokens of one unit, as one Arrow IPC file with one record batch.

The file carries its own counts and checksum in the schema's metadata, and neither a time stamp nor a host name, so the
same unit gives the same bytes anywhere.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore

if TYPE_CHECKING:
    from tokenmill.storage import Folder

FORMAT = "1"
HEADER_BYTES = 64 << 10
"""Enough of a file's start to hold the schema of nearly every part; longer ones are read again, whole."""

TokenArray = npt.NDArray[np.unsignedinteger[Any]]


class Skipped(msgspec.Struct, frozen=True, array_like=True):
    """Rows [first, last] of a source that are not documents of the store, and why."""

    source: int
    first: int
    last: int
    rows: int
    reason: str


class PartSummary(msgspec.Struct, frozen=True):
    """What a part says of itself: one row of the manifest."""

    unit: int
    job: str
    documents: int
    tokens: int
    text_bytes: int
    sha256: str = ""
    skipped: tuple[Skipped, ...] = ()

    @property
    def skipped_rows(self) -> int:
        """How many rows of the unit's sources are not in the part."""
        return sum(skipped.rows for skipped in self.skipped)


@dataclass(frozen=True, slots=True)
class PartContent:
    """The columns of a part: document i is tokens[offsets[i]:offsets[i + 1]], from row[i] of source[i]."""

    tokens: TokenArray
    offsets: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]

    def document(self, position: int) -> TokenArray:
        """The tokens of one document."""
        return self.tokens[self.offsets[position] : self.offsets[position + 1]]

    def slice(self, start: int, stop: int) -> PartContent:
        """Some of the documents, without a copy of their tokens."""
        return PartContent(self.tokens, self.offsets[start : stop + 1], self.source[start:stop], self.row[start:stop])


def checksum(content: PartContent, summary: PartSummary) -> str:
    """SHA-256 over the values of the columns, in order, then the summary in JSON with its hash left empty."""
    digest = hashlib.sha256()
    for column in (content.tokens, content.offsets, content.source, content.row):
        digest.update(np.ascontiguousarray(column).data)
    digest.update(msgspec.json.encode(msgspec.structs.replace(summary, sha256="")))
    return digest.hexdigest()


def part_name(unit: int) -> str:
    """The name of a unit's part inside the run directory."""
    return f"parts/{unit:08d}.arrow"


def write_part(folder: Folder, summary: PartSummary, content: PartContent) -> PartSummary:
    """Publish a part, its checksum filled in; once it exists, its unit is committed."""
    summary = msgspec.structs.replace(summary, sha256=checksum(content, summary))
    metadata = {"tokenmill.format": FORMAT, "tokenmill.part": msgspec.json.encode(summary)}
    # A part whose name a loss of power takes away is done again; they are settled together, before the manifest.
    with folder.publish(part_name(summary.unit), settled=False) as file:
        write_columns(file, content, metadata)
    return summary


def write_columns(file: BinaryIO, content: PartContent, metadata: dict[str, Any]) -> None:
    """Write columns as an Arrow IPC file with one record batch."""
    tokens = pa.LargeListArray.from_arrays(pa.array(content.offsets), pa.array(content.tokens))
    schema = pa.schema(
        [
            pa.field("tokens", tokens.type, nullable=False),
            pa.field("source", pa.uint32(), nullable=False),
            pa.field("row", pa.uint64(), nullable=False),
        ],
        metadata=metadata,
    )
    batch = pa.record_batch([tokens, pa.array(content.source), pa.array(content.row)], schema=schema)
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch)


def read_columns(file: pa.NativeFile) -> tuple[pa.Schema, PartContent]:
    """The columns of such a file as views of it, with its schema. They are not checked here."""
    reader = pa.ipc.open_file(file)
    batch = reader.get_batch(0)
    tokens = batch.column("tokens")
    source, row = batch.column("source").to_numpy(), batch.column("row").to_numpy()
    return reader.schema, PartContent(tokens.values.to_numpy(), tokens.offsets.to_numpy(), source, row)


def read_summary(folder: Folder, unit: int) -> PartSummary:
    """A part's counts and checksum, from the first bytes of its file."""
    name = part_name(unit)
    try:
        start = folder.read(name, HEADER_BYTES)
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(start)[8:])
        except (pa.ArrowInvalid, OSError):
            schema = pa.ipc.read_schema(pa.py_buffer(folder.read(name))[8:])
    except (pa.ArrowInvalid, OSError) as error:
        raise _corrupt(folder, unit, str(error)) from error
    return _summary(folder, unit, schema)


def open_part(folder: Folder, unit: int) -> tuple[PartSummary, PartContent]:
    """A part's columns as views of its memory map, with the counts it states checked against the columns."""
    try:
        schema, content = read_columns(folder.map(part_name(unit)))
        summary = _summary(folder, unit, schema)
    except (pa.ArrowInvalid, OSError, KeyError, IndexError, AttributeError, TypeError) as error:
        raise _corrupt(folder, unit, str(error)) from error
    _check_shape(folder, summary, content)
    return summary, content


def check_part(folder: Folder, unit: int) -> PartSummary:
    """Read a part whole and compare it with its checksum."""
    summary, content = open_part(folder, unit)
    found = checksum(content, summary)
    if found != summary.sha256:
        raise _corrupt(folder, unit, f"checksum {found}, expected {summary.sha256}")
    return summary


def _check_shape(folder: Folder, summary: PartSummary, content: PartContent) -> None:
    offsets = content.offsets
    sound = (
        len(offsets) == summary.documents + 1 == len(content.row) + 1 == len(content.source) + 1
        and int(offsets[0]) == 0
        and int(offsets[-1]) == summary.tokens == len(content.tokens)
        and bool((np.diff(offsets) >= 0).all())
    )
    if not sound:
        raise _corrupt(folder, summary.unit, "its columns do not have the lengths it states")


def _summary(folder: Folder, unit: int, schema: pa.Schema) -> PartSummary:
    metadata: dict[bytes, Any] = schema.metadata or {}
    if metadata.get(b"tokenmill.format") != FORMAT.encode():
        raise _corrupt(folder, unit, "it is not a part of this version's format")
    try:
        summary = msgspec.json.decode(metadata[b"tokenmill.part"], type=PartSummary)
    except (KeyError, msgspec.MsgspecError) as error:
        raise _corrupt(folder, unit, str(error)) from error
    if summary.unit != unit:
        raise _corrupt(folder, unit, f"it holds unit {summary.unit}")
    return summary


def _corrupt(folder: Folder, unit: int, reason: str) -> CorruptStore:
    return CorruptStore(
        f"part {unit} is damaged",
        f"file         {folder.path(part_name(unit))}",
        f"found        {reason}",
        "Delete the file and run `tokenmill prepare` again: only this unit is done anew.",
    )
