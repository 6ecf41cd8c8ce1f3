"""`erase`: replace the tokens of documents by end tokens, in a store and in its exports."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from tokenmill.api.parameters import path_texts
from tokenmill.erasure.erase import Erasure
from tokenmill.erasure.select import ONE_SELECTOR, Selector, select
from tokenmill.errors import DONE, FAILED, TRY_AGAIN, UsageError
from tokenmill.executors import progress
from tokenmill.executors.fan_out import FanOut, check_executor, open_executor
from tokenmill.executors.outcomes import Pool
from tokenmill.exports import PRELOAD
from tokenmill.exports import known_exports as exports_list
from tokenmill.exports.known_exports import (
    ReachedExport,
    add_export,
    known_exports,
    largest_shard,
    reach_export,
    require_newest,
)
from tokenmill.humanize import Readable
from tokenmill.options import StrPath
from tokenmill.pipeline.planning.resources import SMALLEST_WORKER_BYTES, plan_resources
from tokenmill.storage import Folder, absolute, folder_at
from tokenmill.store import layout
from tokenmill.store.chain import Claim, Head, claimed_documents, table_file
from tokenmill.store.job import Run
from tokenmill.store.source_store import is_store, source_erasures
from tokenmill.store.state import Operation, enter
from tokenmill.system.arguments import checked

Value = TypeVar("Value")

COPIES = 4
"""How often a worker holds the tokens of a part or shard: read, replaced, and encoded by the format."""


class EraseResult(Readable, msgspec.Struct, frozen=True):
    """What was erased. `deny` is the list for the next `prepare --deny`, in which values are hashed.

    `exports` has the number of shards with erased documents by directory, `unreached` the exports that could not be
    reached, with the reason, and `again` those of them that the same command may reach later. The next `erase` tries
    all of them again, whatever it erases. `forgotten` are exports that it does not try. `matched_before` counts
    documents that an earlier request erased, `not_compared` rows in quarantine whose columns are not known, because the
    sources are gone. `not_found` are known to the call that looked for the documents.
    """

    directory: str
    request: str = ""
    documents: int = 0
    tokens: int = 0
    parts: int = 0
    quarantined: int = 0
    matched_before: int = 0
    not_found: list[str] = []
    exports: dict[str, int] = {}
    unreached: dict[str, str] = {}
    again: list[str] = []
    forgotten: list[str] = []
    not_compared: int = 0
    deny: str = ""
    dry_run: bool = False
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        """The exit code of the command: 0 if every known export was reached, 75 if the others may be reached later."""
        if not self.unreached:
            return DONE
        return TRY_AGAIN if len(self.again) == len(self.unreached) else FAILED


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
    forget_export: StrPath | Sequence[StrPath] = (),
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
        rows: A CSV file with the columns source and row, or such pairs. Or the store that is the source of this one:
            what was erased in it since.
        request: The name of the request, for the records. Default: from the selector.
        reason: Why the documents are erased, or why exports are forgotten, for the records.
        export: Directories of exports that the store does not know of, or that name another address of it.
        forget_export: Directories of exports that the store is not to know of any more, such as deleted ones. No
            document is erased then.
        dry_run: Only find the documents.
        workers: The number of worker processes. Default: one per core.
        memory: The memory budget of a machine, such as `"8GB"`. Default: 70 % of the available memory.
        on: Where workers run: `"local"`, `"ray"` (the cluster of this machine), or `"ray://HOST:PORT"`.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        executor: Running workers to use instead of new ones.
    """
    check_executor(on)
    if forgotten := [absolute(path) for path in path_texts(forget_export)]:
        return _forget(folder_at(os.fspath(directory)), forgotten, reason)
    pairs = _erased_in(directory, rows) if isinstance(rows, str | os.PathLike) and is_store(os.fspath(rows)) else None
    selector = select(column, _named(values), _named(hosts), pairs or _named(rows))
    if selector is None and (request is None or dry_run):
        raise UsageError("no document is named", ONE_SELECTOR)
    name = _check_request(request or (selector.name if selector is not None else ""))
    folder = folder_at(os.fspath(directory))
    started = time.monotonic()
    run = enter(folder, Operation.READ if dry_run else Operation.ERASE).run
    named = [absolute(path) for path in path_texts(export)]
    with open_executor(on, PRELOAD, executor, reporter) as (pool, report), folder.locks.exclusive(layout.LOCK):
        item_bytes = _largest_item(folder, run, [] if dry_run else [*known_exports(folder), *named])
        needed = SMALLEST_WORKER_BYTES + COPIES * item_bytes
        resources = plan_resources(workers, memory, run.units, needed, pool.room)
        pool.start(resources.workers, resources.worker_bytes, resources.total_worker_bytes, resources.most_workers)
        fan_out = FanOut(pool, report, resources.workers, np.dtype(run.job.tokenizer.dtype).itemsize)
        erasure = Erasure(folder, run, name, reason, resources.limits(), fan_out)
        result = _preview(erasure, selector) if selector is not None and dry_run else _erase(erasure, selector, named)
    return msgspec.structs.replace(result, seconds=round(time.monotonic() - started, 3))


def _forget(folder: Folder, exports: list[str], reason: str) -> EraseResult:
    """Take exports off the list of a store."""
    if not reason:
        raise UsageError("an export is forgotten for a reason", "Give it with --reason TEXT.")
    enter(folder, Operation.ERASE)
    with folder.locks.exclusive(layout.LOCK):
        for export in exports:
            exports_list.forget_export(folder, export, reason)
    return EraseResult(folder.root, forgotten=exports)


def _check_request(request: str) -> str:
    if not layout.REQUEST_NAME.fullmatch(request):
        raise UsageError(
            f"{request!r} cannot be the name of a request", "Use up to 100 letters, digits, dots, dashes, underscores."
        )
    return request


def _erase(erasure: Erasure, selector: Selector | None, named: Sequence[str]) -> EraseResult:
    """Erase in the store, then in every export that it knows of or that is named."""
    folder = erasure.folder
    layout.remove_temporaries(folder)
    for export in named:  # another process may have to finish this call, and does not get its options
        add_export(folder, export)
    head = erasure.head()
    if erasure.request not in {change.request for change in head.history}:
        require_newest(folder, head)
    head, claim = erasure.erase(selector)
    reached = [
        reach_export(export, folder, head.identity, erasure.fan_out, is_named=export in named)
        for export in sorted({*known_exports(folder), *named})
    ]
    return _result(erasure, head, claim, reached)


def _result(erasure: Erasure, head: Head, claim: Claim, reached: Sequence[ReachedExport]) -> EraseResult:
    """What a claim has erased."""
    change, folder = claim.history[-1], erasure.folder
    documents = claimed_documents(folder, head, after=claim.number - 1, upto=claim.number)
    return EraseResult(
        directory=folder.root,
        request=claim.request,
        documents=change.documents,
        tokens=change.tokens,
        parts=len(np.unique(documents["unit"].to_numpy())),
        quarantined=len(claim.quarantined),
        matched_before=claim.matched_before,
        not_found=erasure.missing,
        exports={export.directory: export.shards for export in reached if not export.problem},
        unreached={export.directory: export.problem for export in reached if export.problem},
        again=[export.directory for export in reached if export.problem and export.again],
        not_compared=claim.not_compared,
        deny=folder.path(table_file(claim.number, "deny", claim.selector_hash)),
    )


def _preview(erasure: Erasure, selector: Selector) -> EraseResult:
    """What a selector would erase."""
    found = erasure.preview(selector)
    return EraseResult(
        directory=erasure.folder.root,
        request=erasure.request,
        documents=len(found.documents),
        tokens=int(np.sum(found.documents["tokens"].to_numpy())),
        parts=sum(bool(len(unit.documents)) for unit in found.units),
        quarantined=len(found.rows),
        matched_before=found.matched_before,
        not_found=erasure.missing,
        not_compared=found.not_compared,
        dry_run=True,
    )


def _largest_item(folder: Folder, run: Run, exports: Iterable[str]) -> int:
    """The bytes of the largest part or shard. A worker holds one of them at a time."""
    largest_part = int(layout.part_sizes(folder, run.units).max(initial=0))
    return max([largest_part, *map(largest_shard, exports)])


def _erased_in(directory: StrPath, source: StrPath) -> tuple[str, list[tuple[str, int]]]:
    """The rows that were erased in the source of a store after it was made."""
    folder, path = folder_at(os.fspath(directory)), absolute(os.fspath(source))
    run = enter(folder, Operation.ERASE).run
    if run.job.source_store is None or run.job.source_store.directory != path:
        raise UsageError(f"{path} is not the source of {folder.root}", "Name rows with a CSV file: --rows FILE.")
    erasures = source_erasures(run)
    rows = [] if erasures is None else erasures.rows(folder, run)
    if not rows:
        raise UsageError(f"nothing was erased in {path} since {folder.root} was made")
    return path, rows


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
