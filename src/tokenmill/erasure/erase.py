"""Erase documents of a complete store: finish what is claimed, find, claim, reconcile; again until the request is done.

The next change can be claimed only when the last one is done. So claims have one order, and every file that a process
may write is named by a claim that existed before.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.erasure.find import Found, find
from tokenmill.erasure.reconcile import reconcile, unit_files
from tokenmill.erasure.select import ONE_SELECTOR, Selector, not_found
from tokenmill.errors import CORRUPT, TRY_AGAIN, JobChanged, TokenmillError, UsageError
from tokenmill.executors.fan_out import FanOut
from tokenmill.pipeline.planning.freeze import FrozenRun, load_existing
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.storage import Folder, publish_new
from tokenmill.storage.digest import hash_of
from tokenmill.store import layout, tables
from tokenmill.store.chain import FILES_SCHEMA, Change, Claim, Head, checked_head, claim_file, read_claim, table_file
from tokenmill.store.deny import hashed_list
from tokenmill.store.job import Run
from tokenmill.store.spool import current_sources
from tokenmill.store.tables import read_manifest

MAX_ROUNDS = 50
"""How often an erasure begins again because other processes change the store."""


def publish_claim(  # noqa: PLR0913, PLR0917 - a store, and the request with what was found for it
    folder: Folder, head: Head, base: pa.Table, selector: Selector, found: Found, request: str, reason: str
) -> bool:
    """Claim the next change of a store. Returns False if another process has claimed it.

    The tables that the claim names are published before it.
    """
    number, time = head.number + 1, datetime.now(UTC).isoformat(timespec="microseconds")
    documents, files = found.documents, _files(head, found)
    contents = {"documents": tables.table_bytes(documents), "files": tables.table_bytes(files)}
    contents["deny"] = deny_list(selector, head)
    hashes = {name: hash_of(data) for name, data in contents.items()}
    folder.create(layout.CHANGES)
    for name, data in contents.items():
        with folder.publish(table_file(number, name, hashes[name])) as file:
            file.write(data)
    change = Change(
        request=request,
        time=time,
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
        request=request,
        reason=reason,
        time=time,
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


@dataclass(slots=True)
class Erasure:
    """One call of `erase`. `missing` are the values that match nothing, as far as this call has looked."""

    folder: Folder
    run: Run
    request: str
    reason: str
    limits: WorkerLimits
    fan_out: FanOut
    missing: list[str] = field(default_factory=list)

    def erase(self, selector: Selector | None) -> tuple[Head, Claim]:
        """Erase what a selector names; without one, finish the request. Returns the head, and the claim."""
        for _ in range(MAX_ROUNDS):
            head = self.head()
            if (number := self._number(head)) is not None:
                claim, _ = read_claim(self.folder, number)
                self._refuse_other(claim, selector, head)
                return reconcile(self.folder, self.run, self.fan_out), claim
            if not head.is_done:
                reconcile(self.folder, self.run, self.fan_out)
            elif selector is None:
                raise UsageError(f"there is no request {self.request} in {self.folder.root}", ONE_SELECTOR)
            else:
                self._claim(selector, head)
        raise TokenmillError(f"other processes change {self.folder.root} all the time", exit_code=TRY_AGAIN)

    def preview(self, selector: Selector) -> Found:
        """Find the documents, and change nothing."""
        return self._find(selector, self.head())

    def head(self) -> Head:
        """The head of the store."""
        return checked_head(self.folder, read_manifest(self.folder, self.run))

    def _number(self, head: Head) -> int | None:
        """The number of the change that this request has made; None if it has made none."""
        return next((n for n, change in enumerate(head.history, 1) if change.request == self.request), None)

    def _claim(self, selector: Selector, head: Head) -> None:
        """Find the documents and claim the change. Does nothing if another process changes the store meanwhile."""
        try:
            found = self._find(selector, head)
        except TokenmillError as error:
            if error.exit_code not in {CORRUPT, TRY_AGAIN} or not self._is_repaired(head):
                raise
            return
        base = read_manifest(self.folder, self.run)
        publish_claim(self.folder, head, base, selector, found, self.request, self.reason)

    def _is_repaired(self, head: Head) -> bool:
        """Whether a file that could not be read may be there now: another process went on, or it was made again."""
        now = self.head()
        if (now.version, now.is_done) != (head.version, head.is_done):
            return True
        before = unit_files(self.folder, self.run)
        reconcile(self.folder, self.run, self.fan_out)
        return unit_files(self.folder, self.run) != before

    def _find(self, selector: Selector, head: Head) -> Found:
        frozen: FrozenRun = replace(load_existing(self.folder, self.run), head=head)
        frozen = replace(frozen, sources=current_sources(self.folder, frozen.sources))
        tokens = read_manifest(self.folder, self.run)["tokens"].to_numpy()
        found = find(self.folder, frozen, selector.rules(), tokens, self.limits, self.fan_out)
        self.missing = not_found(selector.rules(), found.matched, found.named)
        return found

    def _refuse_other(self, claim: Claim, selector: Selector | None, head: Head) -> None:
        """Refuse a request that was made with another selector. A list that was lost is written again."""
        if selector is None:
            return
        data, name = deny_list(selector, head), table_file(claim.number, "deny", claim.selector_hash)
        if hash_of(data) != claim.selector_hash:
            raise JobChanged(
                f"the request {self.request} has another selector",
                f"selector     was {claim.selector}, is now {selector.options}",
                "Use another --request.",
            )
        if not self.folder.exists(name):
            with self.folder.publish(name) as file:
                file.write(data)
