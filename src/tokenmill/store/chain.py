"""The chain of changes of a complete store: which erasures were claimed, and which files hold the store now.

The base of a store (`run.json`, `manifest.parquet`, `parts/00000042.arrow`, `kept/00000042.parquet`) is never changed
by an erasure. An erasure creates `changes/0000000N.json`, its claim, if that name is absent: this is the only commit.
Tables that the claim names by their hash are written before it. The changed parts have their hash in their name, and
follow it; when the store has them and no others, `changes/0000000N.done` is created. Nothing in `changes/` is deleted.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import TRY_AGAIN, CorruptStore, IncompleteStore, StoreError
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.digest import hash_of
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import tables
from tokenmill.store.layout import (
    CHANGES,
    MAX_JSON_BYTES,
    PARTS,
    REQUEST_NAME,
    damaged,
    errors_of,
    kept_name,
    part_name,
    remove_manifest,
)

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
"""The documents that a change erased, in the order of the parts."""

CLAIMED_SCHEMA = DOCUMENTS_SCHEMA.append(pa.field("change", pa.int64()))
"""The same for several changes, with the number of the change."""

FILES_SCHEMA = pa.schema(
    [
        ("unit", pa.int64()),
        ("hash", pa.string()),  # of the part, as in the manifest
        ("xxh3", pa.string()),
        ("bytes", pa.int64()),
        ("kept", pa.string()),  # the hash of the kept columns; empty without any
        ("change", pa.int64()),  # the last change of the unit
    ]
)
"""Every unit that was ever changed, and its part after a change."""

_RECORD = re.compile(r"([0-9]{8,18})\.(json|done)")
_HASH = re.compile("[0-9a-f]{64}")
_CHANGED_PART = re.compile(r"[0-9]{8,18}-[0-9a-f]{16}\.arrow")


class StoreVersion(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A version of a store: the number of changes, and the hash of the last claim. Records elsewhere hold it."""

    number: int = 0
    claim: str = ""


class Change(msgspec.Struct, frozen=True):
    """A change in the history of a store: the erased documents, and the digest of all parts after it.

    `documents_hash` is the hash of the table of the documents. `claim` is that of the claim, which the next one knows.
    """

    request: str
    time: str
    documents: int
    tokens: int
    documents_hash: str
    digest: str
    claim: str = ""


class ErasedRow(msgspec.Struct, frozen=True):
    """A row in quarantine whose text is erased."""

    unit: int
    file: str
    row: int


class Claim(msgspec.Struct, frozen=True):
    """The content of `changes/0000000N.json`.

    `parent` is the hash of the claim before, or the identity of the store. `selector` says what was compared, and
    `selector_hash` is the hash of the list in `changes/`, in which values are hashed. `history` has all changes,
    this one too, so that a reader reads one claim. `matched_before` counts documents that an earlier change erased,
    `not_found` values that match nothing, `not_compared` rows in quarantine whose columns are not known, because their
    sources are gone.
    """

    number: int
    parent: str
    identity: str
    request: str
    reason: str
    time: str
    selector: str
    selector_hash: str
    files_hash: str
    history: tuple[Change, ...]
    quarantined: tuple[ErasedRow, ...] = ()
    matched_before: int = 0
    not_found: int = 0
    not_compared: int = 0


@dataclass(frozen=True)
class Head:
    """A store after its last change: `number` is 0 if it was never changed.

    `identity` is the digest of the parts before any change, `digest` that of the parts now; both are empty if they were
    not asked for. `is_done` is whether the files are those that the claim names.
    """

    identity: str = ""
    digest: str = ""
    number: int = 0
    claim: str = ""
    is_done: bool = True
    history: tuple[Change, ...] = ()
    files: pa.Table = field(default_factory=FILES_SCHEMA.empty_table, compare=False, repr=False)

    @property
    def version(self) -> StoreVersion:
        """The version, as records elsewhere hold it."""
        return StoreVersion(self.number, self.claim)

    def version_at(self, number: int) -> StoreVersion:
        """The version after so many changes."""
        claims = ["", *(change.claim for change in self.history[:-1]), self.claim]
        return StoreVersion(number, claims[number])

    def part_file(self, unit: int) -> str:
        """The name of the part of a unit."""
        return part_name(unit, self._hashes.get(unit, ("", ""))[0])

    def kept_file(self, unit: int) -> str:
        """The name of the kept columns of a unit."""
        return kept_name(unit, self._hashes.get(unit, ("", ""))[1])

    def manifest(self, base: pa.Table) -> pa.Table:
        """The manifest of a store with the parts of this head."""
        if not len(self.files):
            return base
        is_changed = np.isin(np.arange(len(base)), self.files["unit"].to_numpy())
        for name, changed in (("blake3", "hash"), ("xxh3", "xxh3"), ("bytes", "bytes")):
            if name in base.column_names:
                column = base[name].combine_chunks()
                values = self.files[changed].combine_chunks().cast(column.type)
                position = base.schema.get_field_index(name)
                replaced = pc.replace_with_mask(column, is_changed, values)
                base = base.set_column(position, base.field(position), replaced)
        return base

    def request_of(self, change: int) -> str:
        """The request of a change; empty for 0."""
        return self.history[change - 1].request if change else ""

    @functools.cached_property
    def _hashes(self) -> dict[int, tuple[str, str]]:
        """By changed unit, the hashes of its part and of its kept columns."""
        units, *hashes = (self.files[name].to_pylist() for name in ("unit", "hash", "kept"))
        return dict(zip(units, zip(*hashes, strict=True), strict=True))


BASE = Head()
"""The head of a store that was never changed."""

FIRST = BASE.version
"""The version of a store that was never changed."""


def claim_file(number: int) -> str:
    """The name of the claim of a change."""
    return f"{CHANGES}/{number:08d}.json"


def done_file(number: int) -> str:
    """The name of the file that says that a change is done."""
    return f"{CHANGES}/{number:08d}.done"


def table_file(number: int, table: str, content: str) -> str:
    """The name of a file that a claim names by its hash: documents and files are tables, deny is a list."""
    return f"{CHANGES}/{number:08d}.{table}-{content[:16]}.{'jsonl' if table == 'deny' else 'parquet'}"


def read_head(folder: Folder, number: int | None = None) -> Head:
    """Read the head of a store, or with `number` the head that it had after so many changes.

    Lists `changes/`, and reads the last claim and its table of files. Raises CorruptStore if a claim is missing or
    damaged. Whether the change is done is not judged.
    """
    last, is_done = _last(folder)
    number = last if number is None else number
    if not number:
        return BASE
    claim, claim_hash = read_claim(folder, number)
    name = table_file(number, "files", claim.files_hash)
    return Head(
        identity=claim.identity,
        digest=claim.history[-1].digest,
        number=number,
        claim=claim_hash,
        is_done=is_done or number < last,
        history=claim.history,
        files=tables.read_table(folder, name, claim.files_hash, FILES_SCHEMA),
    )


def with_base(folder: Folder, head: Head, manifest: pa.Table) -> Head:
    """The head with its digests, compared with the manifest of the base.

    Raises CorruptStore if the chain belongs to another base, or the parts are not those that the claim was made with.
    """
    identity = tables.parts_digest(manifest)
    if not head.number:
        return Head(identity, identity)
    units = head.files["unit"].to_numpy()
    if len(units) and not 0 <= int(units.min()) <= int(units.max()) < len(manifest):
        raise damaged(folder, claim_file(head.number), "it names units that are not in the plan")
    if identity != head.identity:
        raise damaged(folder, claim_file(head.number), "it belongs to another store")
    if tables.parts_digest(head.manifest(manifest)) != head.digest:
        raise damaged(folder, claim_file(head.number), "its parts are not those that it states")
    return head


def checked_head(folder: Folder, manifest: pa.Table) -> Head:
    """Read the head of a store and compare it with the manifest of the base, as `with_base`."""
    return with_base(folder, read_head(folder), manifest)


def last_change(folder: Folder) -> int:
    """The number of the last change of a store. Lists `changes/`."""
    return _last(folder)[0]


def read_claim(folder: Folder, number: int) -> tuple[Claim, str]:
    """Read the claim of a change, and its hash."""
    name = claim_file(number)
    data = folder.read(name, MAX_JSON_BYTES)
    with errors_of(folder, name):
        claim = decode(data, Claim)
    hashes = [claim.identity, claim.files_hash, claim.selector_hash]
    hashes += [text for change in claim.history for text in (change.documents_hash, change.digest)]
    counts = [count for change in claim.history for count in (change.documents, change.tokens)]
    if claim.number != number or len(claim.history) != number:
        raise damaged(folder, name, f"it is the claim of change {claim.number}")
    if not all(map(_HASH.fullmatch, hashes)) or not 0 <= min(counts) <= max(counts) < 1 << 62:
        raise damaged(folder, name, "it has impossible hashes or counts")
    if not all(REQUEST_NAME.fullmatch(change.request) for change in claim.history):
        raise damaged(folder, name, "a request has a name that no request can have")
    return claim, hash_of(data)


def read_chain(folder: Folder, head: Head) -> list[Claim]:
    """All claims of a store. Raises CorruptStore if one is not the parent of the next: a copy has diverged."""
    claims, parent = [], head.identity
    for number in range(1, head.number + 1):
        claim, claim_hash = read_claim(folder, number)
        if claim.parent != parent or claim.identity != head.identity:
            raise _diverged(folder, number)
        parent = claim_hash
        claims.append(claim)
    return claims


def claimed_documents(folder: Folder, head: Head, after: int = 0, upto: int | None = None) -> pa.Table:
    """The documents that the changes after number `after` erased, each with the number of its change."""
    changes = enumerate(head.history[:upto], 1)
    found = [_documents_of(folder.root, number, one.documents_hash) for number, one in changes if number > after]
    return pa.concat_tables([CLAIMED_SCHEMA.empty_table(), *found]).combine_chunks()


@functools.lru_cache(maxsize=8)
def _documents_of(directory: str, number: int, content: str) -> pa.Table:
    folder = folder_at(directory)
    documents = tables.read_table(folder, table_file(number, "documents", content), content, DOCUMENTS_SCHEMA)
    return documents.append_column(CLAIMED_SCHEMA.field("change"), pa.array(np.full(len(documents), number)))


@functools.lru_cache(maxsize=4)
def head_at(directory: str, version: StoreVersion) -> Head:
    """The head of a version of a store, as workers read it. Raises CorruptStore if the store has another history."""
    head = read_head(folder_at(directory), number=version.number) if version.number else BASE
    require_version(folder_at(directory), head, version)
    return head


@functools.lru_cache(maxsize=2)
def claimed_at(directory: str, version: StoreVersion) -> pa.Table:
    """The documents that were erased until a version of a store, by unit and document, as workers read them."""
    claimed = claimed_documents(folder_at(directory), head_at(directory, version))
    return claimed.sort_by([("unit", "ascending"), ("document", "ascending")])


def of_unit(documents: pa.Table, unit: int) -> pa.Table:
    """The rows of one unit in a table of documents that is sorted by unit."""
    low, high = np.searchsorted(documents["unit"].to_numpy(), [unit, unit + 1]).tolist()
    return documents.slice(low, high - low)


def refuse_outdated(folder: Folder, head: Head) -> None:
    """Raise if a file of a head is not there because of an erasure that was claimed after the head was read."""
    last, is_done = _last(folder)
    if (last, is_done) == (head.number, True):
        return
    if not is_done:
        raise unfinished(folder, read_head(folder))
    raise StoreError(
        f"documents were erased from {folder.root} while it was read",
        f"changes      {head.number} when it was opened, {last} now",
        "Run the same command again. An opened store or loader has to be opened again.",
        exit_code=TRY_AGAIN,
    )


@contextlib.contextmanager
def reading(folder: Folder, name: str, head: Head, corrupt: Callable[[str], CorruptStore]) -> Iterator[None]:
    """Read a file of a head, with the error for a damaged one, which gets the reason.

    A file that is not there may have been removed by a later erasure. Then that is the error.
    """
    try:
        yield
    except MalformedDataError as damage:
        raise corrupt(str(damage)) from damage
    except StoreError as error:
        if folder.exists(name):
            raise
        refuse_outdated(folder, head)
        raise corrupt("there is no such file") from error


def withdraw_manifest(folder: Folder) -> None:
    """Remove the manifest before parts are made again. Refuses a store from which documents were erased."""
    refuse_remaking(folder)
    remove_manifest(folder)


def refuse_remaking(folder: Folder) -> None:
    """Refuse to make files of a store again from which documents were erased: they would hold them."""
    if folder.names(CHANGES) or any(map(_CHANGED_PART.fullmatch, folder.names(PARTS))):
        raise remaking_error(folder)


def remaking_error(folder: Folder) -> StoreError:
    """The error for files that would have to be made again in a store from which documents were erased."""
    return StoreError(
        f"files of {folder.root} would have to be made again, and documents were erased from it",
        f"Restore the files from a copy, and {CHANGES}/ if it is not there. Or prepare a new store with "
        f"--deny {folder.root}.",
    )


def erased_rules(folder: Folder, head: Head) -> bytes:
    """The lists of all erasures of a store, for `prepare --deny`. Each is compared with its hash."""
    lists = [read_rules(folder, claim) for claim in read_chain(folder, head)]
    return b"".join(sorted({line for data in lists for line in data.splitlines(keepends=True)}))


def read_rules(folder: Folder, claim: Claim) -> bytes:
    """The list of a claim, in which values are hashed."""
    name = table_file(claim.number, "deny", claim.selector_hash)
    with errors_of(folder, name):
        data = folder.read(name)
    if hash_of(data) != claim.selector_hash:
        raise damaged(folder, name, "it is not the list that the claim names")
    return data


def unfinished(folder: Folder, head: Head) -> IncompleteStore:
    """The error for a store whose last change is not done."""
    request = head.history[-1].request
    return IncompleteStore(
        f"the erasure {request} of {folder.root} is not finished",
        f"Run this command: tokenmill erase {folder.root} --request {request}",
    )


def require_version(folder: Folder, head: Head, version: StoreVersion) -> None:
    """Raise CorruptStore if a store does not have a version that a record names: an older copy, or another one."""
    if version.number > head.number:
        raise CorruptStore(
            f"{folder.root} is an older copy",
            f"changes      {head.number}, and {version.number} were known",
            f"Restore {CHANGES}/ from a copy that has {claim_file(version.number)}, then run `tokenmill erase` again.",
        )
    if head.version_at(version.number) != version:
        raise _diverged(folder, version.number)


def _last(folder: Folder) -> tuple[int, bool]:
    """The number of changes of a store, and whether the last one is done."""
    matches = [match for name in folder.names(CHANGES) if (match := _RECORD.fullmatch(name))]
    found: dict[str, set[int]] = {"json": set(), "done": set()}
    for match in matches:
        found[match[2]].add(int(match[1]))
    last = max([0, *found["json"], *found["done"]])
    missing = set(range(1, last + 1)) - found["json"]
    if missing:
        raise CorruptStore(
            f"{folder.path(claim_file(min(missing)))} is missing",
            "Restore it from a copy of the store. Without it, documents that were erased could be read again.",
        )
    return last, not last or last in found["done"]


def _diverged(folder: Folder, number: int) -> CorruptStore:
    return CorruptStore(
        f"{folder.root} is a copy that was changed by itself",
        f"file         {folder.path(claim_file(number))}",
        "found        another erasure has this number in the original",
        f"Restore {CHANGES}/ of one of the two. Then erase in it what was erased in the other.",
    )
