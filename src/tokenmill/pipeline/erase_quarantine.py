"""Rows in quarantine in an erasure: the columns that their text has, and records without text."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import msgspec
import pyarrow as pa

from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import quarantine

ERASED = "erased"
"""The detail of a row in quarantine whose text was erased."""


def text_columns(entries: list[quarantine.Quarantined], names: tuple[str, ...]) -> tuple[pa.Table, list[bool]]:
    """Columns of rows in quarantine whose text is a JSON object, as text, and which rows have one."""
    objects: list[dict[str, Any] | None] = []
    for entry in entries:
        try:
            objects.append(decode((entry.text or "").encode(errors="replace"), dict[str, Any]))
        except MalformedDataError:
            objects.append(None)
    columns = {name: pa.array([_as_text((found or {}).get(name)) for found in objects], pa.string()) for name in names}
    return pa.table(columns), [found is not None for found in objects]


def _as_text(value: Any) -> str | None:
    """A JSON value as the text that selectors compare: 5.0 is 5."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return msgspec.json.encode(value).decode()


def without_text(
    entries: Iterable[quarantine.Quarantined], rows: Collection[tuple[str, int]]
) -> Iterable[quarantine.Quarantined]:
    """Entries of the quarantine, those of some rows without their text."""
    erased = set(rows)
    for entry in entries:
        is_erased = (entry.file, entry.position) in erased
        yield msgspec.structs.replace(entry, text=None, base64=None, detail=ERASED) if is_erased else entry
