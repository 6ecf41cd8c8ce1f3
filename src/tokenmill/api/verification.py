"""Check a store: every checksum, and a share of its documents against the reference engine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill import layout, planning
from tokenmill.api import progress
from tokenmill.api.freeze import load
from tokenmill.api.request import Means, choose_means
from tokenmill.checking import Verify
from tokenmill.errors import CorruptStore, IncompleteStore, RunFailed, UsageError
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.outcomes import Done, Executor, Failed
from tokenmill.exports import PRELOAD
from tokenmill.exports.checking import CheckStretch, stretches
from tokenmill.exports.job import MANIFEST, exports_in, read_frozen
from tokenmill.storage import Folder
from tokenmill.tokenizers import engine_modules
from tokenmill.tokenizers.tokenizer import REFERENCES

if TYPE_CHECKING:
    import pyarrow as pa

NAMED_FAILURES = 10


class Verification(msgspec.Struct, frozen=True):
    """What was checked; that there is one at all means that it was right."""

    directory: str
    units: int
    documents: int
    tokens: int
    documents_compared: int
    exports: dict[str, int]
    seconds: float


def verify(
    directory: str,
    *,
    sample: float = 0.0,
    all: bool = False,  # noqa: A002 - the name of the option
    workers: int | None = None,
    reporter: progress.Reporter | None = None,
) -> Verification:
    """Read every part and compare it with its checksum and the manifest; raise CorruptStore if anything is wrong.

    The files of complete exports in the store's directory are compared with theirs; so are those of an export that has
    a directory of its own, if that is what is given. With `sample`, that share of the
    documents is read again from the sources, encoded by the reference engine and compared; with `all`, every document.
    """
    if not 0 <= sample <= 1:
        raise UsageError("--sample is a share of the documents, between 0 and 1")
    share = 1.0 if all else sample
    started = time.monotonic()
    folder = Folder(directory)
    if layout.read_run(folder) is None and read_frozen(folder) is not None:
        return _verify_export(folder, workers, reporter)
    run = layout.require_run(folder)
    manifest = layout.require_manifest(folder, run)
    frozen = load(folder, run)
    means = choose_means(workers, None, most_workers=run.units)
    compared, problems = 0, []
    with (
        LocalExecutor(engine_modules(REFERENCES[run.job.tokenizer.kind].name)) as executor,
        reporter if reporter is not None else progress.for_python() as report,
    ):
        report.begin("verify", int(frozen.plan["text_bytes"].to_numpy().sum()), 0, means.workers)
        step = progress.Step()
        executor.start(means.workers, means.worker_bytes)
        tasks = planning.tasks(frozen.plan, frozen.sources, range(run.units))
        for outcome in executor.run(Verify(folder.root, run.job, share), tasks):
            if isinstance(outcome, Done):
                summary = outcome.value.summary
                problems += _compare(manifest, outcome.item.unit, layout.manifest_columns([summary]))
                compared += outcome.value.compared
                step = progress.Step(step.text_bytes + summary.text_bytes, step.tokens + summary.tokens, step.units + 1)
                report.advance(outcome.item.text_bytes, step)
            elif isinstance(outcome, Failed):
                problems.append(outcome.message)
            elif outcome.final:
                raise RunFailed(f"the worker that checked part {outcome.item.unit} {outcome.how}")
        exports = {}
        for name in exports_in(folder):
            export = Folder(folder.path(name))
            if export.exists(MANIFEST):
                exports[name], found = _check_export(export, executor, report, means)
                problems += found
    if problems:
        raise _report(folder, problems)
    totals = {name: int(np.sum(manifest[name].to_numpy())) for name in ("documents", "tokens")}
    seconds = round(time.monotonic() - started, 3)
    return Verification(folder.root, run.units, totals["documents"], totals["tokens"], compared, exports, seconds)


def _verify_export(folder: Folder, workers: int | None, reporter: progress.Reporter | None) -> Verification:
    """Check an export that has a directory of its own."""
    started = time.monotonic()
    if not folder.exists(MANIFEST):
        raise IncompleteStore(f"the export {folder.root} is not complete", "Run the same `tokenmill export` again.")
    means = choose_means(workers, None, most_workers=len(stretches(folder)))
    with LocalExecutor(PRELOAD) as executor, reporter if reporter is not None else progress.for_python() as report:
        executor.start(means.workers, means.worker_bytes)
        files, problems = _check_export(folder, executor, report, means)
    if problems:
        raise _report(folder, problems)
    frozen = read_frozen(folder)
    name = frozen.job.format if frozen is not None else ""
    return Verification(folder.root, 0, 0, 0, 0, {name: files}, round(time.monotonic() - started, 3))


def _check_export(export: Folder, executor: Executor, report: progress.Reporter, means: Means) -> tuple[int, list[str]]:
    """How many files were checked, and what is wrong with them."""
    items = stretches(export)
    problems: list[str] = []
    report.begin(f"verify {export.root}", sum(item.bytes for item in items), 0, means.workers)
    step = progress.Step()
    for outcome in executor.run(CheckStretch(export.root), items):
        if isinstance(outcome, Done):
            step = progress.Step(step.text_bytes + outcome.value, step.tokens, step.units + 1)
            report.advance(outcome.value, step)
        elif isinstance(outcome, Failed):
            problems.append(outcome.message)
        elif outcome.final:
            raise RunFailed(f"the worker that checked {outcome.item.name} {outcome.how}")
    return len({item.name for item in items}), problems


def _compare(manifest: pa.Table, unit: int, part: pa.Table) -> list[str]:
    if unit < len(manifest) and manifest.slice(unit, 1).equals(part):
        return []
    return [f"part {unit} is not the one the manifest describes"]


def _report(folder: Folder, problems: list[str]) -> CorruptStore:
    lines = [line for problem in problems[:NAMED_FAILURES] for line in problem.splitlines()]
    if len(problems) > NAMED_FAILURES:
        lines.append(f"and {len(problems) - NAMED_FAILURES} more")
    return CorruptStore(f"{len(problems)} problems in {folder.root}", *lines)
