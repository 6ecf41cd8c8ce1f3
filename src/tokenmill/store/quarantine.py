"""The quarantine: which rows of the sources could not become documents of the store, and why.

A unit's rows are published as `quarantine/NNNNNNNN-HASH.jsonl` before its part is, so that a committed unit always has
them; the hash is the part's, because two machines may leave out different rows, and only one of their parts counts.
`quarantine.jsonl` is all of them together, in the order of the units.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.storage import prefetch_map
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.part import NULL, PartSummary, read_summary
from tokenmill.store.run import STORE_FORMAT, Run

if TYPE_CHECKING:
    from tokenmill.sources.documents import BadRow, SourceFile
    from tokenmill.storage import Folder

TOGETHER = "quarantine.jsonl"
PIECES = layout.QUARANTINE
PREFETCH_HEADERS = 16


class Quarantined(msgspec.Struct, frozen=True, omit_defaults=True):
    """One row: where it is, why it is here, and the hash of its bytes. Its text, if that was asked for.

    `text` and `base64` hold at most the first 64 KiB; it is `base64` where the bytes are not valid UTF-8.
    """

    unit: int
    file: str
    row: int
    reason: str
    detail: str
    sha256: str
    text: str | None = None
    base64: bytes | None = None


def record(unit: int, file: SourceFile, bad: BadRow, *, with_text: bool) -> Quarantined:
    """The entry of one row."""
    entry = Quarantined(unit, file.path, bad.row, bad.reason, bad.detail, bad.sha256)
    if not with_text:
        return entry
    try:
        return msgspec.structs.replace(entry, text=bad.raw.decode())
    except UnicodeDecodeError:
        return msgspec.structs.replace(entry, base64=bad.raw)


def publish_piece(folder: Folder, part: PartSummary, entries: list[Quarantined]) -> None:
    """Publish the rows that a part leaves out, before it. What belongs to no part is not looked at: see `gather`."""
    if not entries:
        return
    folder.create(PIECES)
    with folder.publish(_piece(part)) as file:
        file.write(msgspec.json.Encoder().encode_lines(entries))


def gather(folder: Folder, committed: npt.NDArray[np.bool_]) -> int:
    """Publish the rows of all committed units in one file; how many units have some: those whose part says so."""
    units = {int(match[1]) for name in folder.names(PIECES) if (match := _PIECE.fullmatch(name))}
    there = sorted(unit for unit in units if unit < len(committed) and committed[unit])
    summaries = prefetch_map(folder, partial(read_summary, folder), there, PREFETCH_HEADERS)
    parts = [summary for summary in summaries if summary.quarantined_rows]
    if not parts:
        folder.discard(TOGETHER)
        return 0
    with folder.publish(TOGETHER) as file:
        for lines in prefetch_map(folder, lambda part: list(folder.lines(_piece(part))), parts):
            file.writelines(lines)
    return len(parts)


def units_to_check(run: Run, manifest: pa.Table) -> list[int]:
    """The units with rows in quarantine. Stores of format 5 may have records under other names: none of theirs."""
    units: list[int] = np.flatnonzero(manifest["quarantined"].to_numpy() > 0).tolist()
    return units if run.format == STORE_FORMAT else []


def unrecorded(folder: Folder, units: Iterable[int]) -> list[int]:
    """The units whose records are lost, or do not name the rows that their parts skip."""
    parts = prefetch_map(folder, partial(read_summary, folder), units, PREFETCH_HEADERS)
    checked = prefetch_map(folder, lambda part: (part.unit, _is_recorded(folder, part)), parts, PREFETCH_HEADERS)
    return [unit for unit, is_recorded in checked if not is_recorded]


def is_gathered(folder: Folder, units: Iterable[int]) -> bool:
    """Whether `quarantine.jsonl` holds the records of these units, in this order, and nothing else."""
    parts = prefetch_map(folder, partial(read_summary, folder), units, PREFETCH_HEADERS)
    pieces = prefetch_map(folder, lambda part: list(folder.lines(_piece(part))), parts)
    expected = itertools.chain.from_iterable(pieces)
    there = folder.lines(TOGETHER) if folder.exists(TOGETHER) else iter(())
    return all(one == other for one, other in itertools.zip_longest(expected, there))


def _is_recorded(folder: Folder, part: PartSummary) -> bool:
    """Whether the records of a part name as many rows as it skips, each in a range that it skips for that reason."""
    try:
        entries = [decode(line, Quarantined) for line in folder.lines(_piece(part))]
    except (MalformedDataError, StoreError):
        return False
    left = Counter({skipped: skipped.rows for skipped in part.skipped if skipped.reason != NULL})
    for entry in entries:
        ranges = [each for each in left if each.first <= entry.row <= each.last and each.reason == entry.reason]
        home = next((each for each in ranges if left[each]), None)
        if entry.unit != part.unit or home is None:
            return False
        left[home] -= 1
    return not any(left.values())


def read(folder: Folder) -> Iterator[Quarantined]:
    """The rows in quarantine, in the order of the units; none if there is no such file."""
    if not folder.exists(TOGETHER):
        return
    for number, line in enumerate(folder.lines(TOGETHER), 1):
        try:
            yield decode(line, Quarantined)
        except MalformedDataError as damage:
            reason = f"reason       {damage}"
            advice = "Run the same `tokenmill prepare` again: it writes the file again."
            raise CorruptStore(f"line {number} of {folder.path(TOGETHER)} is damaged", reason, advice) from damage


def reasons(folder: Folder) -> Counter[str]:
    """How many rows are in quarantine, for each reason."""
    return Counter(entry.reason for entry in read(folder))


_PIECE = re.compile(r"([0-9]{8,18})-[0-9a-f]{16}\.jsonl")


def _piece(part: PartSummary) -> str:
    return f"{PIECES}/{part.unit:08d}-{part.sha256[:16]}.jsonl"
