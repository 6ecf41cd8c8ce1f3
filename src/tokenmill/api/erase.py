"""`erase`: replace the tokens of documents by end tokens, in a store and in its exports."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.api.erase_result import EraseResult, expect_export, publish_result, read_result, restored_exports
from tokenmill.api.parameters import StrPath, path_texts
from tokenmill.errors import CORRUPT, JobChanged, TokenmillError, UsageError
from tokenmill.executors import progress
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.session import check_executor, open_executor
from tokenmill.exports import PRELOAD
from tokenmill.exports.erase_done import ExportErasure, done_exports
from tokenmill.exports.erase_export import StoreErasure, erase_in_export, largest_shard
from tokenmill.exports.erase_log import append_log
from tokenmill.exports.job import refuse_export
from tokenmill.exports.known_exports import add_export, known_exports
from tokenmill.pipeline.erase import (
    Found,
    erase_in_store,
    find,
    freeze_erasure,
    is_erased,
    is_in_parts,
    mark_store,
    publish_file,
)
from tokenmill.pipeline.erase_selector import ONE_SELECTOR, Selector, not_found, select
from tokenmill.pipeline.planning.freeze import load_existing
from tokenmill.pipeline.planning.resources import SMALLEST_WORKER_BYTES, Resources, plan_resources
from tokenmill.storage import Folder, absolute, folder_at, read_existing
from tokenmill.store import layout
from tokenmill.store.erasing import read_mark, refuse_other, remove_mark
from tokenmill.store.erasures import (
    DENY_FILE,
    REQUEST_FILE,
    ErasureRecord,
    check_request,
    erased_documents,
    erasure_file,
    read_record,
    refuse_restored,
)
from tokenmill.store.job import STORE_FORMAT, Run
from tokenmill.store.manifest import parts_digest, read_manifest, require_manifest
from tokenmill.store.run import require_run
from tokenmill.system.arguments import checked

Value = TypeVar("Value")

COPIES = 4
"""How often a worker holds the tokens of a part or shard: read, replaced, and encoded by the format."""


@checked
def erase(  # noqa: PLR0913 - the options of the command, by their names
    directory: StrPath,
    *,
    column: str | None = None,
    values: StrPath | Sequence[str] | None = None,
    hosts: StrPath | Sequence[str] | None = None,
    rows: StrPath | Sequence[tuple[str, int]] | None = None,
    request: str | None = None,
    reason: str = "",
    export: StrPath | Sequence[StrPath] = (),
    dry_run: bool = False,
    workers: int | None = None,
    memory: str | int | None = None,
    on: str = "local",
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> EraseResult:
    """Replace the tokens of documents by end tokens, in a store and in its exports. No other document moves.

    Call it again after an interruption: it finishes the erasure. Until then, readers refuse the store.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`.
        column: The column that is compared: a kept one, or else one of the sources.
        values: A file with a value of the column in each line, or the values themselves.
        hosts: A file with a host in each line, or the hosts: documents whose URL in the column is of such a host, or of
            a subdomain of it.
        rows: A CSV file with the columns source and row, or such pairs.
        request: The name of the request, for the records. Default: from the selector.
        reason: Why the documents are erased, for the records.
        export: Directories of exports that the store does not know of.
        dry_run: Only find the documents.
        workers: The number of worker processes. Default: one per core.
        memory: The memory budget of a machine, such as `"8GB"`. Default: 70 % of the available memory.
        on: Where workers run: `"local"`, `"ray"` (the cluster of this machine), or `"ray://HOST:PORT"`.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        executor: Running workers to use instead of new ones.
    """
    check_executor(on)
    selector = select(column, _named(values), _named(hosts), _named(rows))
    if selector is None and (request is None or dry_run):
        raise UsageError("no document is named", ONE_SELECTOR)
    name = check_request(request or (selector.sha256[:16] if selector is not None else ""))
    folder = folder_at(os.fspath(directory))
    refuse_export(folder)
    started = time.monotonic()
    with open_executor(on, PRELOAD, executor, reporter) as (pool, report), folder.locks.exclusive(layout.LOCK):
        run, exports = require_run(folder), [absolute(path) for path in path_texts(export)]
        item_bytes = _largest_item(folder, run, [] if dry_run else [*known_exports(folder), *exports])
        needed = SMALLEST_WORKER_BYTES + COPIES * item_bytes
        resources = plan_resources(workers, memory, run.units, needed, pool.room)
        pool.start(resources.workers, resources.worker_bytes, resources.total_worker_bytes, resources.most_workers)
        fan_out = FanOut(pool, report, resources.workers, np.dtype(run.job.tokenizer.dtype).itemsize)
        task = _Erasure(folder, run, name, reason, exports, fan_out, resources)
        result = task.preview(selector) if selector is not None and dry_run else task.run_all(selector)
    return msgspec.structs.replace(result, directory=folder.root, seconds=round(time.monotonic() - started, 3))


@dataclass(slots=True)
class _Erasure:
    """One call of `erase`, with the lock of the store.

    `whole` is whether complete erasures are still as they were, by their requests, as far as that was compared.
    """

    folder: Folder
    run: Run
    request: str
    reason: str
    exports: list[str]
    fan_out: FanOut
    resources: Resources
    whole: dict[str, bool] = field(default_factory=dict)

    def preview(self, selector: Selector) -> EraseResult:
        """Find the documents, and change nothing."""
        found = self._find(selector, self._manifest())
        return EraseResult(
            directory=self.folder.root,
            request=self.request,
            documents=found.documents,
            tokens=found.tokens,
            parts=sum(bool(len(unit.documents)) for unit in found.units),
            quarantined=len(found.rows),
            matched_before=found.matched_before,
            not_found=not_found(selector.rules(), found.matched, found.named),
            not_compared=found.not_compared,
            dry_run=True,
        )

    def run_all(self, selector: Selector | None) -> EraseResult:
        """Freeze the erasure if it is new, and do what is missing of it."""
        folder = self.folder
        layout.remove_temporaries(folder)
        folder.remove_temporaries(erasure_file(self.request, "."))
        refuse_other(read_mark(folder), self.request)
        refuse_restored(folder, self.run, self.request)
        earlier = [change.request for change in self.run.history if change.documents]
        for export in [*self.exports, *restored_exports(folder, self.exports, earlier, self.request)]:
            for name in earlier:
                expect_export(folder, name, export)
            if export in self.exports:  # the command in the mark does not name them
                add_export(folder, export)
        record = self._begin(selector)
        result = self._read_complete(record)
        if result is None:
            run = erase_in_store(folder, self.run, record, self.fan_out)
            known = [*done_exports(folder, self.request), *known_exports(folder)]
            result = self._finish(record, run, known if record.change is not None else [])
        remove_mark(folder, self.request)
        retried = {export: name for name in earlier for export in self._retry(name)}
        if retried:  # an earlier erasure that was not finished in an export kept this one out of it
            self._retry(self.request)
        result = read_result(self.folder, self.request) or result
        return msgspec.structs.replace(result, retried=retried)

    def _begin(self, selector: Selector | None) -> ErasureRecord:
        """The frozen erasure. The store is marked for it, unless no document was found or the erasure has a result."""
        folder = self.folder
        while True:
            record = read_record(folder, self.request) or self._freeze(selector)
            if selector is not None:
                _refuse_other_selector(record, selector)
                publish_file(folder, self.request, DENY_FILE, selector.content)
            if record.change is None or self._read_complete(record) is not None:
                return record
            if selector is None:
                selector = self._read_selector(record)
            mark_store(folder, record)
            if not self._is_outdated(record):
                return record
            if read_record(folder, self.request) == record:  # else another process has frozen it again
                remove_mark(folder, self.request)
                self.reason = record.reason
                folder.discard(erasure_file(self.request, REQUEST_FILE))

    def _read_selector(self, record: ErasureRecord) -> Selector:
        """The selector of a frozen erasure. A killed process may have published its record and not its list."""
        name = erasure_file(record.request, DENY_FILE)
        selector = Selector(read_existing(self.folder, name) or b"", record.selector)
        if selector.sha256 != record.selector_sha256:
            raise UsageError(f"the request {record.request} has no list", f"Give its selector again: {record.selector}")
        return selector

    def _is_outdated(self, record: ErasureRecord) -> bool:
        """Whether another erasure has changed the store after this one was frozen, and before it began."""
        current = parts_digest(read_manifest(self.folder, self.run))
        self.run = require_run(self.folder)  # read after the manifest, which an erasure publishes after run.json
        if record.change is None or record.change in self.run.history or record.change.before == current:
            return False
        return not is_in_parts(self.folder, self.run, record)

    def _finish(self, record: ErasureRecord, run: Run, exports: Iterable[str]) -> EraseResult:
        """Erase in exports, as far as that is not done, and publish log and result. Kills do not change their order."""
        folder, change, reached = self.folder, record.change, list[ExportErasure]()
        if change is not None:
            erasure = StoreErasure(folder, run, change, parts_digest(read_manifest(folder, run)))
            reached = [erase_in_export(export, erasure, self.fan_out) for export in sorted(set(exports))]
        append_log(folder, run, record, reached)
        result = EraseResult(
            directory=folder.root,
            request=record.request,
            documents=change.documents if change else 0,
            tokens=change.tokens if change else 0,
            parts=len(np.unique(erased_documents(folder.root, change)["unit"].to_numpy())) if change else 0,
            quarantined=len(record.quarantined),
            matched_before=record.matched_before,
            not_found=record.not_found,
            exports={export.directory: len(export.shards) for export in reached if not export.problem},
            removed_exports=[export.directory for export in reached if export.removed],
            unreached={export.directory: export.problem for export in reached if export.problem},
            not_compared=record.not_compared,
            deny=folder.path(erasure_file(record.request, DENY_FILE)),
        )
        publish_result(folder, result)
        return result

    def _retry(self, request: str) -> list[str]:
        """Erase in exports that an earlier call could not reach. Returns those that it reached now."""
        result, record = read_result(self.folder, request), read_record(self.folder, request)
        if result is None or record is None:
            return []
        if not result.unreached:
            return []
        again = self._finish(record, require_run(self.folder), [*result.exports, *result.unreached])
        return [export for export in result.unreached if export in again.exports]

    def _read_complete(self, record: ErasureRecord) -> EraseResult | None:
        """The result of an erasure that is complete; None if the store was restored from a copy since then."""
        result, change = read_result(self.folder, record.request), record.change
        if result is None or (change is None and not record.quarantined):
            return result
        if change not in self.run.history:
            self.run = require_run(self.folder)
        if change not in self.run.history:
            return None
        if record.request not in self.whole:  # compared once, because it reads the parts
            self.whole[record.request] = is_erased(self.folder, self.run, record, self.fan_out)
        return result if self.whole[record.request] else None

    def _find(self, selector: Selector, manifest: pa.Table) -> Found:
        frozen = load_existing(self.folder, self.run)
        return find(self.folder, frozen, selector.rules(), manifest, self.resources.limits(), self.fan_out)

    def _freeze(self, selector: Selector | None) -> ErasureRecord:
        if selector is None:
            raise UsageError(f"there is no request {self.request} in {self.folder.root}", ONE_SELECTOR)
        manifest = self._manifest()
        self.run = require_run(self.folder)  # read after the manifest, as in `_is_outdated`
        try:
            found = self._find(selector, manifest)
        except TokenmillError as error:  # in a bucket, which has no lock, another process may have replaced the part
            if error.exit_code != CORRUPT:
                raise
            refuse_other(read_mark(self.folder), self.request)
            record = read_record(self.folder, self.request)
            if record is not None:
                return record
            if parts_digest(read_manifest(self.folder, self.run)) == parts_digest(manifest):
                raise
            self.run = require_run(self.folder)
            return self._freeze(selector)
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        return freeze_erasure(self.folder, manifest, selector, found, self.request, self.reason, now)

    def _manifest(self) -> pa.Table:
        if self.run.format < STORE_FORMAT:
            raise UsageError(
                f"{self.folder.root} is a store of format {self.run.format}, in which nothing can be erased",
                f"Run this command first: tokenmill upgrade {self.folder.root}",
            )
        return require_manifest(self.folder, self.run)


def _refuse_other_selector(record: ErasureRecord, selector: Selector) -> None:
    if record.selector_sha256 != selector.sha256:
        raise JobChanged(
            f"the request {record.request} has another selector",
            f"selector     was {record.selector}, is now {selector.options}",
            "Use another --request.",
        )


def _largest_item(folder: Folder, run: Run, exports: Iterable[str]) -> int:
    """The bytes of the largest part or shard. A worker holds one of them at a time."""
    largest_part = int(layout.part_sizes(folder, run.units).max(initial=0))
    return max([largest_part, *map(largest_shard, exports)])


def _named(option: StrPath | Sequence[Value] | None) -> tuple[str, bytes | Sequence[Value]] | None:
    """The name and content of a file, or of values that are given themselves."""
    if option is None:
        return None
    if not isinstance(option, str | os.PathLike):
        return "given", list(option)
    try:
        return os.fspath(option), Path(option).read_bytes()
    except OSError as error:
        raise UsageError(f"{os.fspath(option)} cannot be read", f"reason       {error.strerror}") from error
