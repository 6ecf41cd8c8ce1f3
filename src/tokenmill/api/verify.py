"""Check a store: every checksum, and a share of its documents against the reference engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.errors import TRY_AGAIN, CorruptStore, IncompleteStore, RunFailed, StoreError, UsageError
from tokenmill.executors import progress
from tokenmill.executors.fan_out import run_all
from tokenmill.executors.messages import exit_code_of_failures, work_failed
from tokenmill.executors.outcomes import DEFAULT_POLICY, Died, Done, Executor, Failed, Item, Pool, Value
from tokenmill.executors.session import check_executor, open_executor
from tokenmill.exports import PRELOAD
from tokenmill.exports.job import MANIFEST, exports_in, read_frozen
from tokenmill.exports.verify import CheckByteRange, byte_ranges
from tokenmill.pipeline import plan, worker_modules
from tokenmill.pipeline.freeze import load_existing
from tokenmill.pipeline.request import BadDocumentPolicy
from tokenmill.pipeline.resources import Resources, plan_resources
from tokenmill.pipeline.verify import Verify
from tokenmill.storage import Folder, folder_at
from tokenmill.store import layout, quarantine
from tokenmill.tokenizers.tokenizer import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import pyarrow as pa

NAMED_FAILURES = 10


class VerifyResult(msgspec.Struct, frozen=True):
    """What was checked; that there is one at all means that it was right."""

    directory: str
    units: int
    documents: int
    tokens: int
    documents_compared: int
    exports: dict[str, int]
    seconds: float


def verify(  # noqa: PLR0913 - the options of the command, by their names
    directory: str,
    *,
    sample: float = 0.0,
    all: bool = False,  # noqa: A002 - the name of the option
    workers: int | None = None,
    on: str = "local",
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> VerifyResult:
    """Read every part and compare it with its checksum and the manifest; raise CorruptStore if anything is wrong.

    The files of complete exports in the store's directory are compared with theirs; so are those of an export that has
    a directory of its own, if that is what is given. With `sample`, that share of the documents is read again from the
    sources, encoded by the reference engine and compared; with `all`, every document.
    """
    if not 0 <= sample <= 1:
        raise UsageError("--sample is a share of the documents, between 0 and 1")
    check_executor(on)
    share = 1.0 if all else sample
    started = time.monotonic()
    folder = folder_at(directory)
    if layout.read_run(folder) is None and (export := read_frozen(folder)) is not None:
        with open_executor(on, PRELOAD, executor, reporter) as (pool, report):
            return _verify_export(folder, export.job.format, workers, pool, report)
    run = layout.require_run(folder)
    manifest = layout.require_manifest(folder, run)
    frozen = load_existing(folder, run)
    compared = 0
    problems = _check_vocabulary(folder, run)
    modules = worker_modules(REFERENCES[run.job.tokenizer.kind].name)
    with open_executor(on, modules, executor, reporter) as (pool, report):
        means = plan_resources(workers, None, most_workers=run.units, room=pool.room)
        report.begin("verify", int(frozen.plan["text_bytes"].to_numpy().sum()), 0, means.workers)
        step = progress.Step()
        pool.start(means.workers, means.worker_bytes, most_workers=means.most_workers)
        tasks = plan.tasks(frozen.plan, frozen.sources, range(run.units))
        check = Verify(folder.root, run.job, share, means.limits(BadDocumentPolicy()))
        for done in _checked(pool, check, tasks, problems, lambda task: f"part {task.unit}"):
            summary = done.value.summary
            if not layout.is_listed(manifest, summary):
                problems.append(f"part {done.item.unit} is not the one the manifest describes")
            compared += done.value.compared
            step = progress.Step(step.text_bytes + summary.text_bytes, step.tokens + summary.tokens, step.units + 1)
            report.advance(done.item.text_bytes, step)
        problems += _compare_quarantine(folder, run, manifest)
        complete = [name for name in exports_in(folder) if folder.exists(f"{name}/{MANIFEST}")]
        exports = {
            name: _check_export(folder_at(folder.path(name)), pool, report, means, problems) for name in complete
        }
    if problems:
        raise _report(folder, problems)
    totals = {name: int(np.sum(manifest[name].to_numpy())) for name in ("documents", "tokens")}
    seconds = round(time.monotonic() - started, 3)
    return VerifyResult(folder.root, run.units, totals["documents"], totals["tokens"], compared, exports, seconds)


def _verify_export(
    folder: Folder, name: str, workers: int | None, pool: Pool, report: progress.Reporter
) -> VerifyResult:
    """Check an export that has a directory of its own."""
    started = time.monotonic()
    if not folder.exists(MANIFEST):
        raise IncompleteStore(f"the export {folder.root} is not complete", "Run the same `tokenmill export` again.")
    means = plan_resources(workers, None, most_workers=len(byte_ranges(folder)), room=pool.room)
    problems: list[str] = []
    pool.start(means.workers, means.worker_bytes, most_workers=means.most_workers)
    files = _check_export(folder, pool, report, means, problems)
    if problems:
        raise _report(folder, problems)
    return VerifyResult(folder.root, 0, 0, 0, 0, {name: files}, round(time.monotonic() - started, 3))


def _check_export(
    export: Folder, executor: Executor, report: progress.Reporter, means: Resources, problems: list[str]
) -> int:
    """How many files were checked; what is wrong with them is added to the problems."""
    items = byte_ranges(export)
    report.begin(f"verify {export.root}", sum(item.bytes for item in items), 0, means.workers)
    step = progress.Step()
    for done in _checked(executor, CheckByteRange(export.root), items, problems, lambda stretch: stretch.name):
        step = progress.Step(step.text_bytes + done.value, step.tokens, step.units + 1)
        report.advance(done.value, step)
    return len({item.name for item in items})


def _checked(
    executor: Executor,
    function: Callable[[Item], Value],
    items: Iterable[Item],
    problems: list[str],
    describe: Callable[[Item], str],
) -> Iterator[Done[Item, Value]]:
    """What was found right, as it comes; what is wrong is added to the problems."""

    def on_failure(failure: Failed[Item] | Died[Item]) -> None:
        if isinstance(failure, Died):
            code = exit_code_of_failures([failure])
            raise RunFailed(f"the worker that checked {describe(failure.item)} {failure.how}", exit_code=code)
        if failure.exit_code == TRY_AGAIN:  # it was not checked, so it is not known to be wrong
            raise work_failed([failure], describe)
        problems.append(failure.message)

    return run_all(executor, function, items, policy=DEFAULT_POLICY, on_failure=on_failure)


def _check_vocabulary(folder: Folder, run: layout.Run) -> list[str]:
    """What is wrong with the vocabulary of the store, if anything."""
    try:
        layout.read_vocabulary(folder, run.job.tokenizer)
    except StoreError as error:
        return [str(error)]
    return []


def _compare_quarantine(folder: Folder, run: layout.Run, manifest: pa.Table) -> list[str]:
    """What is wrong with the records of rows in quarantine, if anything."""
    rows = manifest["quarantined"].to_numpy()
    units = quarantine.units_to_check(run, manifest)
    try:
        named = sum(1 for _ in quarantine.read(folder))
        if named != rows.sum():
            counts = f"names {named:,} rows, and the manifest counts {rows.sum():,} in quarantine"
            return [f"{quarantine.TOGETHER} {counts}. `tokenmill prepare` writes it again."]
        lost = quarantine.unrecorded(folder, units)
        if lost or (run.format == layout.FORMAT and not quarantine.is_gathered(folder, units)):
            where = f"the records of unit {lost[0]}" if lost else quarantine.TOGETHER
            return [f"{where}: other rows than the parts skip. `tokenmill prepare` writes them again."]
    except CorruptStore as error:
        return [str(error)]
    return []


def _report(folder: Folder, problems: list[str]) -> CorruptStore:
    lines = [line for problem in problems[:NAMED_FAILURES] for line in problem.splitlines()]
    if len(problems) > NAMED_FAILURES:
        lines.append(f"and {len(problems) - NAMED_FAILURES} more")
    return CorruptStore(f"{len(problems)} problems in {folder.root}", *lines)
