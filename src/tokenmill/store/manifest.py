"""The manifest of a complete store, as it is made of the summaries of parts: one row per part."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.humanize import Readable
from tokenmill.sources.spelled import searched_documents
from tokenmill.storage import Folder
from tokenmill.store.job import Run
from tokenmill.store.layout import MANIFEST
from tokenmill.store.part import PartSummary
from tokenmill.store.tables import (
    MANIFEST_ROWS,
    MANIFEST_RUN,
    MANIFEST_SCHEMA,
    manifest_run,
    parts_digest,
    publish_table,
    rows_checksum,
)


def publish_manifest(folder: Folder, run: Run, manifest: pa.Table) -> None:
    """Publish the manifest of this run. The store is complete afterwards."""
    metadata = {MANIFEST_RUN: manifest_run(run), MANIFEST_ROWS: rows_checksum(manifest, parts_digest(manifest))}
    publish_table(folder, MANIFEST, manifest.replace_schema_metadata(metadata))


def manifest_row(s: PartSummary) -> tuple[int | str | None, ...]:
    """The manifest row of a part, without the size of its file."""
    counts = s.documents, s.tokens, s.text_bytes, s.skipped_rows, s.quarantined_rows, s.spelled, s.trained
    return s.unit, *counts, s.blake3, s.xxh3


def manifest_columns(rows: Sequence[tuple[int | str | None, ...]]) -> pa.Table:
    """A table of manifest rows, without the sizes of the files."""
    schema = MANIFEST_SCHEMA.remove(len(MANIFEST_SCHEMA) - 1)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def is_listed(manifest: pa.Table, summary: PartSummary) -> bool:
    """Whether the manifest row of this unit describes this part."""
    stated = dict(zip(MANIFEST_SCHEMA.names[:-1], manifest_row(summary), strict=True))
    rows = manifest.slice(summary.unit, 1).to_pylist()
    return any(all(row.get(name, value) == value for name, value in stated.items()) for row in rows)


def trained_tokens(manifest: pa.Table) -> int | None:
    """How many tokens of the parts are trained on, erased ones included; None if all are."""
    trained = manifest["trained"]
    return int(pc.sum(trained).as_py()) if len(trained) > trained.null_count else None


class ControlTokens(Readable, msgspec.Struct, frozen=True):
    """How many documents spell a control token, such as `<|im_start|>` or `<think>`, of those that were searched."""

    documents: int
    searched: int

    @classmethod
    def of(cls, manifest: pa.Table) -> ControlTokens:
        """The counts of a store."""
        documents = searched_documents(manifest["documents"].to_numpy())
        return cls(int(np.sum(manifest["spelled"].to_numpy())), documents)

    def plus(self, other: ControlTokens) -> ControlTokens:
        """The counts of two stores."""
        return ControlTokens(self.documents + other.documents, self.searched + other.searched)
