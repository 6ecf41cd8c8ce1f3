"""`erase`: replace the tokens of documents by end tokens, in a store and in its exports."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.api.parameters import StrPath, path_texts
from tokenmill.errors import JobChanged, UsageError
from tokenmill.executors import progress
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.session import check_executor, open_executor
from tokenmill.exports import PRELOAD
from tokenmill.exports.erase_export import ExportErasure, StoreErasure, erase_in_export
from tokenmill.exports.erase_log import append_log
from tokenmill.exports.job import refuse_export
from tokenmill.exports.known_exports import known_exports
from tokenmill.humanize import Readable
from tokenmill.pipeline.erase import Found, erase_in_store, find, freeze_erasure, mark_store
from tokenmill.pipeline.erase_selector import ONE_SELECTOR, NamedFile, Selector, not_found, select
from tokenmill.pipeline.freeze import load_existing
from tokenmill.pipeline.resources import Resources, plan_resources
from tokenmill.storage import Folder, absolute, folder_at
from tokenmill.store import layout, tables
from tokenmill.store.erasing import read_mark, remove_mark
from tokenmill.store.erasures import (
    DENY_FILE,
    RESULT_FILE,
    ErasureRecord,
    check_request,
    erased_documents,
    erasure_file,
    read_record,
)
from tokenmill.store.job import STORE_FORMAT, Run
from tokenmill.store.run import require_run


class EraseResult(Readable, msgspec.Struct, frozen=True):
    """What was erased. `deny` is the list for the next `prepare --deny`.

    `exports` has the number of replaced shards by directory, `removed_exports` incomplete exports that begin again, and
    `unreached` the exports that could not be reached, with the reason. `matched_before` counts documents that an
    earlier request erased.
    """

    directory: str
    request: str
    documents: int
    tokens: int
    parts: int
    quarantined: int
    matched_before: int
    not_found: list[str]
    exports: dict[str, int] = {}
    removed_exports: list[str] = []
    unreached: dict[str, str] = {}
    deny: str = ""
    dry_run: bool = False
    seconds: float = 0.0


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
    pairs = rows if rows is None or isinstance(rows, str | os.PathLike) else [f"{path},{row}" for path, row in rows]
    selector = select(column, _named_file(values), _named_file(hosts), _named_file(pairs))
    if selector is None and (request is None or dry_run):
        raise UsageError("no document is named", ONE_SELECTOR)
    name = check_request(request or (selector.sha256[:16] if selector is not None else ""))
    folder = folder_at(os.fspath(directory))
    refuse_export(folder)
    started = time.monotonic()
    with open_executor(on, PRELOAD, executor, reporter) as (pool, report), folder.lock(layout.LOCK):
        run = require_run(folder)
        resources = plan_resources(workers, memory, run.units, room=pool.room)
        pool.start(resources.workers, resources.worker_bytes, most_workers=resources.most_workers)
        fan_out = FanOut(pool, report, resources.workers, np.dtype(run.job.tokenizer.dtype).itemsize)
        task = _Erasure(folder, run, name, reason, path_texts(export), fan_out, resources)
        result = task.preview(selector) if selector is not None and dry_run else task.run_all(selector)
    return msgspec.structs.replace(result, directory=folder.root, seconds=round(time.monotonic() - started, 3))


@dataclass(frozen=True, slots=True)
class _Erasure:
    """One call of `erase`, with the lock of the store."""

    folder: Folder
    run: Run
    request: str
    reason: str
    exports: list[str]
    fan_out: FanOut
    resources: Resources

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
            dry_run=True,
        )

    def run_all(self, selector: Selector | None) -> EraseResult:
        """Freeze the erasure if it is new, and do what is missing of it."""
        layout.remove_temporaries(self.folder)
        self.folder.remove_temporaries(erasure_file(self.request, "."))
        mark = read_mark(self.folder)
        if mark is not None and mark.request != self.request:
            raise UsageError(f"{mark.what} is not finished", f"Run this command first: {mark.command}")
        record = read_record(self.folder, self.request) or self._freeze(selector)
        if selector is not None and record.selector_sha256 != selector.sha256:
            raise JobChanged(
                f"the request {self.request} has another selector",
                f"selector     was {record.selector}, is now {selector.options}",
                "Use another --request.",
            )
        name = erasure_file(self.request, RESULT_FILE)
        if self.folder.exists(name):
            data = self.folder.read(name, layout.MAX_JSON_BYTES)
            result = msgspec.json.decode(data, type=EraseResult)
        else:
            result = self._erase(record)
            layout.publish_json(self.folder, name, result)
        remove_mark(self.folder)
        return result

    def _find(self, selector: Selector, manifest: pa.Table) -> Found:
        frozen = load_existing(self.folder, self.run)
        return find(self.folder, frozen, selector.rules(), manifest, self.resources.limits(), self.fan_out)

    def _freeze(self, selector: Selector | None) -> ErasureRecord:
        if selector is None:
            raise UsageError(f"there is no request {self.request} in {self.folder.root}", ONE_SELECTOR)
        manifest = self._manifest()
        found = self._find(selector, manifest)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return freeze_erasure(self.folder, manifest, selector, found, self.request, self.reason, now)

    def _manifest(self) -> pa.Table:
        if self.run.format < STORE_FORMAT:
            raise UsageError(
                f"{self.folder.root} is a store of format {self.run.format}, in which nothing can be erased",
                "Prepare the sources again with another --out, and with --deny.",
            )
        return tables.require_manifest(self.folder, self.run)

    def _erase(self, record: ErasureRecord) -> EraseResult:
        folder, change = self.folder, record.change
        if change is not None:
            mark_store(folder, record)
        run = erase_in_store(folder, self.run, record, self.fan_out)
        reached: list[ExportErasure] = []
        if change is not None:
            known = dict.fromkeys([*known_exports(folder), *map(absolute, self.exports)])
            erasure = StoreErasure(folder, run, change)
            reached = [erase_in_export(export, number, erasure, self.fan_out) for number, export in enumerate(known)]
        append_log(folder, run, record, reached)
        return EraseResult(
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
            deny=folder.path(erasure_file(record.request, DENY_FILE)),
        )


def _named_file(option: StrPath | Sequence[str] | None) -> NamedFile | None:
    """The name and content of a file, or of values that are given themselves."""
    if option is None:
        return None
    if not isinstance(option, str | os.PathLike):
        return "given", "\n".join(option).encode()
    try:
        return os.fspath(option), Path(option).read_bytes()
    except OSError as error:
        raise UsageError(f"{os.fspath(option)} cannot be read", f"reason       {error.strerror}") from error
