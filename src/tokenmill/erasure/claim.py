"""The claim of an erasure: what was found, published so that any process can carry it out."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.erasure.find import Found
from tokenmill.erasure.select import Selector, not_found
from tokenmill.storage import Folder, publish_new
from tokenmill.storage.digest import hash_of
from tokenmill.store import layout, tables
from tokenmill.store.chain import FILES_SCHEMA, Change, Claim, Head, claim_file, table_file
from tokenmill.store.deny import hashed_list


@dataclass(frozen=True, slots=True)
class ErasureRequest:
    """The name of a request, why it was made, and when its documents were found."""

    name: str
    reason: str
    time: str


def publish_claim(  # noqa: PLR0913, PLR0917 - a store, and the request with what was found for it
    folder: Folder, head: Head, base: pa.Table, selector: Selector, found: Found, request: ErasureRequest
) -> bool:
    """Claim the next change of a store. Returns False if another process has claimed it.

    The tables that the claim names are published before it.
    """
    number = head.number + 1
    documents, files = found.documents, _files(head, found)
    contents = {"documents": tables.table_bytes(documents), "files": tables.table_bytes(files)}
    contents["deny"] = deny_list(selector, head)
    hashes = {name: hash_of(data) for name, data in contents.items()}
    folder.create(layout.CHANGES)
    for name, data in contents.items():
        with folder.publish(table_file(number, name, hashes[name])) as file:
            file.write(data)
    change = Change(
        request=request.name,
        time=request.time,
        documents=len(documents),
        tokens=int(np.sum(documents["tokens"].to_numpy())),
        documents_hash=hashes["documents"],
        digest=tables.parts_digest(Head(files=files).manifest(base)),
    )
    earlier = [*head.history[:-1], *(msgspec.structs.replace(last, claim=head.claim) for last in head.history[-1:])]
    claim = Claim(
        number=number,
        parent=head.claim or head.identity,
        identity=head.identity,
        request=request.name,
        reason=request.reason,
        time=request.time,
        selector=selector.options,
        selector_hash=hashes["deny"],
        files_hash=hashes["files"],
        history=(*earlier, change),
        quarantined=found.rows,
        matched_before=found.matched_before,
        not_found=len(not_found(selector.rules(), found.matched, found.named)),
        not_compared=found.not_compared,
    )
    return publish_new(folder, claim_file(number), layout.json_bytes(claim))


def deny_list(selector: Selector, head: Head) -> bytes:
    """The list of a selector for `prepare --deny`, with hashes whose key is that of the store."""
    return hashed_list(selector.content, head.identity)


def _files(head: Head, found: Found) -> pa.Table:
    """Every unit that is changed, by this change or an earlier one."""
    rows = {row["unit"]: row for row in head.files.to_pylist()}
    for unit in found.units:
        if unit.file is not None:
            values = (unit.unit, *unit.file, head.number + 1)
            rows[unit.unit] = dict(zip(FILES_SCHEMA.names, values, strict=True))
    return pa.Table.from_pylist([rows[unit] for unit in sorted(rows)], FILES_SCHEMA)
