"""The files of an erasure: which documents it erases, which files it changes, and what was found.

In `erasures/<request>/` are `documents.parquet` (a row for each erased document, without its text), `files.parquet`
(the parts and kept columns that change, with their checksums before and after), and `request.json`, which is published
after both: from then on the erasure is frozen. In an object store the names of both tables contain their hashes.
`deny.jsonl` is the selector, as a list for `prepare --deny`. `result.json` is published at the end. `erasures.jsonl`
has the lines of all erasures, and lines are only added to it.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError, UsageError
from tokenmill.storage import folder_at, read_existing
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import tables
from tokenmill.store.job import StoreChange
from tokenmill.store.layout import ERASURES, MANIFEST, MAX_JSON_BYTES, REQUEST_NAME, RUN, damaged, table_name
from tokenmill.store.run import read_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenmill.storage import Folder
    from tokenmill.store.job import Run
    from tokenmill.store.part import PartContent, PartSummary

ERASURE_LOG = "erasures.jsonl"
DENY_FILE = "deny.jsonl"
DOCUMENTS_FILE = "documents.parquet"
FILES_FILE = "files.parquet"
REQUEST_FILE = "request.json"
RESULT_FILE = "result.json"

DOCUMENTS_SCHEMA = pa.schema(
    [
        ("unit", pa.int64()),
        ("document", pa.int64()),  # the number of the document in its part
        ("source", pa.uint32()),
        ("row", pa.uint64()),
        ("tokens", pa.int64()),
        ("xxh3", pa.string()),  # XXH3 (128 bits) of its tokens before the erasure
    ]
)

FILES_SCHEMA = pa.schema([("name", pa.string()), ("before", pa.string()), ("after", pa.string())])

_LOGGED = re.compile(rb'\{"request":"([A-Za-z0-9][A-Za-z0-9._-]{0,99})","event":"erasure",')


class ErasedRow(msgspec.Struct, frozen=True):
    """A row in quarantine whose text is erased."""

    unit: int
    file: str
    row: int


class ErasureRecord(msgspec.Struct, frozen=True):
    """The content of request.json. `change` is what `run.json` records of it; None if no document was found.

    `time` is when the erasure was frozen. `matched_before` counts documents that an earlier request erased. `not_found`
    are the lines of the selector that name no document and no row in quarantine. `not_compared` counts rows in
    quarantine whose columns are not known, because their sources are gone.
    """

    request: str
    reason: str
    time: str
    selector: str
    selector_sha256: str
    change: StoreChange | None
    files_sha256: str
    matched_before: int
    quarantined: list[ErasedRow]
    not_found: list[str]
    not_compared: int = 0


def check_request(request: str) -> str:
    """A request that can be the name of a directory. Raises UsageError for another one."""
    if not REQUEST_NAME.fullmatch(request):
        raise UsageError(
            f"{request!r} cannot be the name of a request", "Use up to 100 letters, digits, dots, dashes, underscores."
        )
    return request


def erasure_file(request: str, name: str) -> str:
    """The name of a file of an erasure in the store."""
    return f"{ERASURES}/{request}/{name}"


def read_record(folder: Folder, request: str) -> ErasureRecord | None:
    """Read the frozen erasure of a request; None if the store has no such request."""
    name = erasure_file(request, REQUEST_FILE)
    data = read_existing(folder, name, MAX_JSON_BYTES)
    try:
        return None if data is None else decode(data, ErasureRecord)
    except MalformedDataError as damage:
        raise damaged(folder, name, str(damage)) from damage


def erasure_records(folder: Folder) -> list[ErasureRecord]:
    """The records of the erasures that are complete, or were once, in their order.

    The log of a store lists them. A copy that was restored over the store may have an older log, so other erasures with
    a result follow.
    """
    lines = folder.ranges.lines(ERASURE_LOG) if folder.exists(ERASURE_LOG) else ()
    logged = dict.fromkeys(match[1].decode() for match in map(_LOGGED.match, lines) if match is not None)
    later = _complete_records(folder, set(folder.directories(ERASURES)) - set(logged))
    return [record for name in logged if (record := read_record(folder, name)) is not None] + later


def _complete_records(folder: Folder, requests: Iterable[str]) -> list[ErasureRecord]:
    """The records of those requests that have a result, in their order."""
    found = [read_record(folder, name) for name in requests if folder.exists(erasure_file(name, RESULT_FILE))]
    return sorted((record for record in found if record is not None), key=lambda record: record.time)


class RestoredStore(CorruptStore):
    """Files of a store were restored from a copy of before an erasure."""


def check_history(folder: Folder, run: Run) -> None:
    """Raise RestoredStore if erasures are recorded that the run does not have: their documents may be there again."""
    _refuse_lost(folder, run, erasure_records(folder))


def refuse_restored(folder: Folder, run: Run, request: str = "") -> None:
    """Raise RestoredStore if the directory of an erasure has a result, and the run does not list the erasure.

    Every reader calls this. It does not read the log, which has a line for each erased document. In an object store an
    erasure may have ended since the run was read, so the run is read again. With `request`, the first such erasure may
    be that one: it is about to be carried out again.
    """
    known = {change.request for change in run.history}
    others = _complete_records(folder, set(folder.directories(ERASURES)) - known)
    if any(record.change is not None for record in others):
        _refuse_lost(folder, read_run(folder, with_tables=False) or run, others, request)


def _refuse_lost(folder: Folder, run: Run, records: Sequence[ErasureRecord], request: str = "") -> None:
    lost = [record.request for record in records if record.change is not None and record.change not in run.history]
    if lost and lost[0] != request:
        raise _restored(folder, lost, f"{RUN} does not list these erasures")


def refuse_unlisted(folder: Folder, run: Run, part: PartSummary) -> None:
    """Raise RestoredStore if documents of a part are erased by a change that the run does not have."""
    if isinstance(part.erased, msgspec.UnsetType) or all(one.change <= len(run.history) for one in part.erased):
        return
    raise unlisted(folder, run)


def unlisted(folder: Folder, run: Run) -> RestoredStore:
    """The error for a part that names an erasure which the run does not have."""
    check_history(folder, run)
    return RestoredStore(
        f"a part of {folder.root} names an erasure that {RUN} does not list",
        f"Restore {RUN} and {ERASURES} from a copy that was made after the erasure.",
    )


def refuse_earlier_parts(folder: Folder, run: Run, digest: str) -> None:
    """Raise RestoredStore if the manifest lists the parts of before an erasure, which the run has."""
    erasures = {change.before: change.request for change in run.history if change.documents}
    if digest in erasures:
        lost = list(erasures.values())[list(erasures).index(digest) :]
        raise _restored(folder, lost, f"{MANIFEST} lists the parts of before these erasures")


def _restored(folder: Folder, requests: list[str], reason: str) -> RestoredStore:
    commands = "; ".join(f"tokenmill erase {folder.root} --request {name}" for name in requests)
    return RestoredStore(
        f"documents that were erased may be in {folder.root} again",
        f"requests     {', '.join(requests)}",
        f"reason       {reason}, as after a restore from a copy",
        f"Run these commands: {commands}",
    )


def refuse_erased(folder: Folder, run: Run | None, what: str) -> None:
    """Refuse to make files of a store again from which something was erased: they would hold it."""
    erased = [change.request for change in (run.history if run else ()) if change.documents]
    erased += [record.request for record in erasure_records(folder) if record.change or record.quarantined]
    if erased:
        raise StoreError(
            f"{what} of {folder.root} would have to be made again, and documents were erased from it",
            f"requests     {', '.join(dict.fromkeys(erased))}",
            f"Restore the damaged files from a copy. Or prepare a new store with --deny: {ERASURES}/REQUEST/"
            "deny.jsonl are the lists.",
        )


def check_selector(folder: Folder, request: str) -> None:
    """Compare the list of a request with its hash. Raises CorruptStore if it is another one; it may be missing."""
    record, name = read_record(folder, request), erasure_file(request, DENY_FILE)
    data = read_existing(folder, name)
    if record is None or data is None:
        return
    if hashlib.sha256(data).hexdigest() != record.selector_sha256:
        raise CorruptStore(
            f"{folder.path(name)} is damaged",
            "reason       it is not the list of this request",
            "Remove it, and run the same `tokenmill erase` with its selector again.",
        )


@functools.lru_cache(maxsize=8)
def erased_documents(directory: str, change: StoreChange) -> pa.Table:
    """The documents that a change erased. The hash in `change` is compared."""
    folder = folder_at(directory)
    name = erasure_file(change.request, table_name(folder, DOCUMENTS_FILE, change.sha256))
    return tables.read_table(folder, name, change.sha256, DOCUMENTS_SCHEMA)


def changed_files(folder: Folder, record: ErasureRecord) -> pa.Table:
    """The files that an erasure changes, with their checksums before and after."""
    name = erasure_file(record.request, table_name(folder, FILES_FILE, record.files_sha256))
    return tables.read_table(folder, name, record.files_sha256, FILES_SCHEMA)


def erased_counts(directory: str, changes: Sequence[StoreChange], units: int) -> npt.NDArray[np.int64]:
    """The documents and the tokens of each unit that these changes erased: two rows."""
    counts = np.zeros((2, units), np.int64)
    for change in changes:
        if change.documents:
            documents = erased_documents(directory, change)
            unit = documents["unit"].to_numpy()
            np.add.at(counts[0], unit, 1)
            np.add.at(counts[1], unit, documents["tokens"].to_numpy())
    return counts


def select_documents(content: PartContent, is_kept: npt.NDArray[np.bool_]) -> PartContent:
    """Some documents of a part."""
    lengths = np.diff(content.offsets)
    return type(content)(
        content.tokens[np.repeat(is_kept, lengths)],
        np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[is_kept])]),
        content.source[is_kept],
        content.row[is_kept],
        None if content.erased is None else content.erased[is_kept],
    )
