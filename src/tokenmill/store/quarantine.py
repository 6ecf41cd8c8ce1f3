"""The quarantine: the rows of the sources that could not become documents of the store, with the reason.

The rows of a unit are published as `quarantine/NNNNNNNN-HASH.jsonl` before its part, so that every committed unit has
them. HASH is the part's, because two machines can skip different rows, and only one of their parts is committed.
`quarantine.jsonl` holds the rows of all units, in the order of the units. After an erasure it is
`quarantine-DIGEST.jsonl`, with the digest of all parts.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.sources.documents import ROW_KINDS, BadRow, SourceFile
from tokenmill.sources.line_numbers import MAX_COUNTED_BYTES, line_numbers
from tokenmill.storage import Folder, prefetch_map
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.chain import BASE, Head
from tokenmill.store.part import INTENDED, PartSummary, read_summary

QUARANTINE_FILE = "quarantine.jsonl"
ERASED = "erased"
"""The detail of a row whose text was erased."""
PREFETCH_HEADERS = 16


class Quarantined(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One row: its location, the reason, the hash of its bytes, and its text if requested.

    The location is `row`, or in JSON Lines and text `byte`, and `line` if it was counted (see `line_numbers`). `text`
    and `base64` hold at most the first 64 KiB. `base64` is used if the bytes are not valid UTF-8.
    """

    unit: int
    file: str
    row: int | None = None
    byte: int | None = None
    line: int | None = None
    reason: str
    detail: str
    blake3: str
    text: str | None = None
    base64: bytes | None = None

    @property
    def position(self) -> int:
        """The row, or the byte at which the row starts."""
        return next((at for at in (self.row, self.byte) if at is not None), -1)


def record(unit: int, file: SourceFile, bad: BadRow, *, with_text: bool) -> Quarantined:
    """Make the entry of one row."""
    is_numbered = file.kind in ROW_KINDS
    entry = Quarantined(
        unit=unit,
        file=file.path,
        row=bad.row if is_numbered else None,
        byte=None if is_numbered else bad.row,
        reason=bad.reason,
        detail=bad.detail,
        blake3=bad.blake3,
    )
    if not with_text:
        return entry
    try:
        return msgspec.structs.replace(entry, text=bad.raw.decode())
    except UnicodeDecodeError:
        return msgspec.structs.replace(entry, base64=bad.raw)


def with_lines(entries: Iterable[Quarantined], files: Sequence[SourceFile]) -> list[Quarantined]:
    """The entries in order, with the numbers of the lines of JSON Lines."""
    order = {file.path: index for index, file in enumerate(files)}
    numbered: list[Quarantined] = []
    in_order = sorted(entries, key=lambda entry: (order[entry.file], entry.position))
    for path, group in itertools.groupby(in_order, lambda entry: entry.file):
        found = list(group)
        rows = np.array([entry.position for entry in found], np.uint64)
        lines = line_numbers(files[order[path]], rows, MAX_COUNTED_BYTES).tolist()
        numbered += [
            msgspec.structs.replace(entry, line=line or None) for entry, line in zip(found, lines, strict=True)
        ]
    return numbered


def publish_entries(folder: Folder, name: str, entries: list[Quarantined]) -> None:
    """Publish the quarantined rows of a part under the name of their file."""
    folder.create(layout.QUARANTINE)
    with folder.publish(name) as file:
        file.write(msgspec.json.Encoder().encode_lines(entries))


def read_entries(folder: Folder, name: str) -> list[Quarantined]:
    """The quarantined rows in the file of a part. Raises MalformedDataError if a line is no such row."""
    return [decode(line, Quarantined) for line in folder.ranges.lines(name)]


def list_file(head: Head) -> str:
    """The name of the file with the rows of all units."""
    return f"quarantine-{head.digest[:16]}.jsonl" if head.number else QUARANTINE_FILE


def gather(folder: Folder, committed: npt.NDArray[np.bool_], head: Head = BASE) -> int:
    """Publish the rows of all committed units in one file; returns the number of units whose parts state such rows.

    Removes the files of these units that belong to no part: an earlier part of the unit skipped other rows.
    """
    matches = [match for name in folder.names(layout.QUARANTINE) if (match := _FILE.fullmatch(name))]
    units = {int(match[1]) for match in matches}
    listed = sorted(unit for unit in units if unit < len(committed) and committed[unit])
    parts = [part for part in _summaries(folder, listed, head) if part.quarantined_rows]
    if parts:
        with folder.publish(list_file(head)) as file:
            for lines in prefetch_map(folder, lambda part: list(folder.ranges.lines(unit_file(part))), parts):
                file.writelines(lines)
    for name in other_lists(folder, head) if parts else [*other_lists(folder, head), list_file(head)]:
        folder.discard(name)
    used, committed_units = {unit_file(part) for part in parts}, set(listed)
    for match in matches:
        name = f"{layout.QUARANTINE}/{match[0]}"
        if int(match[1]) in committed_units and name not in used:
            folder.discard(name)
    return len(parts)


def other_lists(folder: Folder, head: Head) -> list[str]:
    """The files with the rows of all units of before the last change, or of another one."""
    return [name for name in folder.names(".") if _LIST.fullmatch(name) and name != list_file(head)]


def _summaries(folder: Folder, units: Iterable[int], head: Head) -> Iterator[PartSummary]:
    return prefetch_map(folder, lambda unit: read_summary(folder, unit, head), units, PREFETCH_HEADERS)


def units_to_check(manifest: pa.Table) -> list[int]:
    """The units with rows in quarantine."""
    return list(np.flatnonzero(manifest["quarantined"].to_numpy() > 0).tolist())


def unrecorded(folder: Folder, units: Iterable[int], head: Head = BASE) -> list[int]:
    """The units whose records are missing or do not name the rows that their parts skip."""
    parts = _summaries(folder, units, head)
    checked = prefetch_map(folder, lambda part: (part.unit, _is_recorded(folder, part)), parts, PREFETCH_HEADERS)
    return [unit for unit, is_recorded in checked if not is_recorded]


def is_gathered(folder: Folder, units: Iterable[int], head: Head = BASE) -> bool:
    """Whether the list holds the records of these units, in this order, and nothing else."""
    files = prefetch_map(
        folder, lambda part: list(folder.ranges.lines(unit_file(part))), _summaries(folder, units, head)
    )
    expected, name = itertools.chain.from_iterable(files), list_file(head)
    actual = folder.ranges.lines(name) if folder.exists(name) else iter(())
    return all(one == other for one, other in itertools.zip_longest(expected, actual))


def without_text(entries: Iterable[Quarantined], rows: Collection[tuple[str, int]]) -> list[Quarantined]:
    """Entries of the quarantine, those of some rows without their text."""
    erased = set(rows)
    return [
        msgspec.structs.replace(entry, text=None, base64=None, detail=ERASED)
        if (entry.file, entry.position) in erased
        else entry
        for entry in entries
    ]


def _is_recorded(folder: Folder, part: PartSummary) -> bool:
    """Whether the records of a part name as many rows as it skips, each in a range that it skips for that reason.

    Those of a part that an erasure changed have no text of the rows that it states to be erased.
    """
    try:
        entries = read_entries(folder, unit_file(part))
    except (MalformedDataError, StoreError):
        return False
    remaining = Counter({skipped: skipped.rows for skipped in part.skipped if skipped.reason not in INTENDED})
    for entry in entries:
        ranges = [
            span for span in remaining if span.first <= entry.position <= span.last and span.reason == entry.reason
        ]
        matching = next((span for span in ranges if remaining[span]), None)
        if entry.unit != part.unit or matching is None:
            return False
        remaining[matching] -= 1
    erased = sum(entry.detail == ERASED and entry.text is None and entry.base64 is None for entry in entries)
    is_erased = not part.erased_rows or erased == part.erased_rows
    return is_erased and not any(remaining.values())


def read(folder: Folder, head: Head = BASE) -> Iterator[Quarantined]:
    """Yield the rows of the list, in the order of the units; nothing if the file does not exist."""
    name = list_file(head)
    if not folder.exists(name):
        return
    for number, line in enumerate(folder.ranges.lines(name), 1):
        try:
            yield decode(line, Quarantined)
        except MalformedDataError as damage:
            reason = f"reason       {damage}"
            advice = "Run the same `tokenmill prepare` again: it writes the file again."
            raise CorruptStore(f"line {number} of {folder.path(name)} is damaged", reason, advice) from damage


_LIST = re.compile(r"quarantine(-[0-9a-f]{16})?\.jsonl")
_FILE = re.compile(r"([0-9]{8,18})-[0-9a-f]{16}\.jsonl")


def unit_file(part: PartSummary) -> str:
    """The name of the file with the quarantined rows of a part."""
    return unit_name(part.unit, part.blake3)


def unit_name(unit: int, content: str) -> str:
    """The same by the hash of the part."""
    return f"{layout.QUARANTINE}/{unit:08d}-{content[:16]}.jsonl"
