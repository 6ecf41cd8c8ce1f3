"""`verify`: check a store or an export."""

from __future__ import annotations

import time
from dataclasses import replace

import msgspec

from tokenmill.api.parameters import store_paths
from tokenmill.erasure.check import CheckErased, record_problems
from tokenmill.errors import IncompleteStore, UsageError
from tokenmill.executors import progress
from tokenmill.executors.checks import Checks
from tokenmill.executors.fan_out import check_executor, open_executor
from tokenmill.executors.outcomes import Pool
from tokenmill.exports import PRELOAD
from tokenmill.exports.job import FrozenExport, is_complete, read_frozen
from tokenmill.exports.records import read_manifest
from tokenmill.exports.verify import byte_ranges, check_export, check_exports, compare_stores
from tokenmill.humanize import Readable, count
from tokenmill.options import Stores
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.driving.verify_store import check_store
from tokenmill.pipeline.planning.freeze import load_existing
from tokenmill.pipeline.planning.request import BadDocumentPolicy
from tokenmill.pipeline.planning.resources import Resources, plan_resources
from tokenmill.pipeline.unit.verify import Verify
from tokenmill.storage import Folder, absolute, folder_at
from tokenmill.store.collection import Collection, open_collection
from tokenmill.store.job import read_run
from tokenmill.store.source_store import source_erasures, source_note
from tokenmill.store.spool import spool_of
from tokenmill.store.tables import manifest_totals
from tokenmill.system.arguments import checked
from tokenmill.tokenization.tokenizer import REFERENCES


class VerifyResult(Readable, msgspec.Struct, frozen=True):
    """What was checked; that there is one at all means that it was right. `notices` name what was not checked.

    Of several stores, counts are of all of them, and `exports` has the directory of each export instead of its format.
    """

    directory: str
    units: int
    documents: int
    tokens: int
    documents_compared: int
    exports: dict[str, int]
    seconds: float
    notices: list[str] = []


@checked
def verify(  # noqa: PLR0913 - the options of the command, by their names
    directory: Stores,
    *,
    sample: float = 0.0,
    all: bool = False,  # noqa: A002 - the name of the option
    workers: int | None = None,
    on: str = "local",
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> VerifyResult:
    """Read every part and compare it with its checksum and the manifest; raise CorruptStore if anything is wrong.

    The files of complete exports in the store are compared with their checksums, and the exports with the store.

    Args:
        directory: A store, or the directory of an export: a path, or an address such as `s3://bucket/run`. An export
            is also compared with its store, if that can be found. Several stores are checked one after the other.
        sample: The fraction of the documents to read again from the sources, encode with the reference engine, and
            compare.
        all: Compare every document.
        workers: The number of worker processes. Default: one per core.
        on: Where workers run: `"local"`, `"ray"` (the cluster of this machine), or `"ray://HOST:PORT"`.
        reporter: Receives progress and notices. Default: a bar in a terminal or notebook, otherwise nothing is shown.
        executor: Running workers to use instead of new ones.
    """
    if not 0 <= sample <= 1:
        raise UsageError("--sample must be a fraction between 0 and 1")
    check_executor(on)
    started = time.monotonic()
    directories = store_paths(directory)
    folder = folder_at(directories[0])
    if len(directories) == 1 and read_run(folder) is None and (export := read_frozen(folder)) is not None:
        with open_executor(on, PRELOAD, executor, reporter) as (pool, report):
            files, notices = _verify_export(folder, export, workers, pool, report)
        seconds = round(time.monotonic() - started, 3)
        return VerifyResult(folder.root, 0, 0, 0, 0, {export.job.format: files}, seconds, notices)
    stores = open_collection(directories)
    modules = worker_modules(REFERENCES[stores.job.tokenizer.kind].name)
    with open_executor(on, modules, executor, reporter) as (pool, report):
        resources = _start(pool, workers, len(stores.manifest))
        checks = Checks(pool, report, resources.workers)
        compared, exports, notices = _verify_stores(stores, 1.0 if all else sample, resources, checks)
    checks.raise_problems(stores.name)
    totals = manifest_totals(stores.manifest)
    seconds = round(time.monotonic() - started, 3)
    units = len(stores.manifest)
    return VerifyResult(stores.name, units, totals["documents"], totals["tokens"], compared, exports, seconds, notices)


def _verify_stores(
    stores: Collection, sample: float, resources: Resources, checks: Checks
) -> tuple[int, dict[str, int], list[str]]:
    """Check each store and the exports in it; return the documents compared, the files of exports, and notices."""
    compared, exports, notices = 0, dict[str, int](), list[str]()
    for member in stores.members:
        folder, run = member.folder, member.run
        limits = resources.limits(BadDocumentPolicy.parse())
        frozen = load_existing(folder, run)
        spool = spool_of(folder, frozen.sources)
        is_dropped = spool is not None and spool.dropped
        if sample and spool is not None and is_dropped:
            text = "their text was removed with the spool (--drop-spool)"
            notices.append(f"{count(spool.rows, 'row')} of {folder.root} not compared: {text}")
        check_erased = CheckErased(folder.root, member.head.version, run.erased_token) if member.head.number else None
        erasures = source_erasures(run) if sample else None
        changed = frozenset[int]() if erasures is None else erasures.units
        fraction = 0.0 if is_dropped else sample
        function = Verify(folder.root, run.job, fraction, limits, member.head.version, check_erased, changed)
        checks.problems += record_problems(folder, run)
        frozen = replace(frozen, sources=member.sources)
        checked = check_store(folder, frozen, member.manifest, function, checks)
        compared += checked.compared
        if checked.copies:
            notices.append(
                f"{count(checked.copies, 'document')} of {folder.root} equal erased documents: not named then"
            )
        if changed:
            what = f"{count(len(changed), 'unit')} of {folder.root} not compared with its source"
            notices.append(f"{what}: documents of these were erased there since")
        notices += filter(None, [source_note(folder, run, member.head)])
        files, more = check_exports(folder, member.head, checks)
        is_single = len(stores.members) == 1
        exports |= {
            name if is_single or name == absolute(name) else folder.path(name): number for name, number in files.items()
        }
        notices += more
    return compared, exports, notices


def _verify_export(
    folder: Folder, frozen: FrozenExport, workers: int | None, pool: Pool, report: progress.Reporter
) -> tuple[int, list[str]]:
    """Check an export outside of a store; return the number of its files, and what was not checked."""
    if not is_complete(folder):
        raise IncompleteStore(f"the export {folder.root} is not complete", "Run the same `tokenmill export` again.")
    ranges = byte_ranges(read_manifest(folder, frozen.job.digest()))
    checks = Checks(pool, report, _start(pool, workers, len(ranges)).workers)
    not_compared = compare_stores(folder, frozen, checks)
    files = check_export(folder, frozen, checks)
    checks.raise_problems(folder.root)
    return files, [] if not_compared is None else [f"store not compared: {not_compared}"]


def _start(pool: Pool, workers: int | None, items: int) -> Resources:
    resources = plan_resources(workers, None, most_workers=items, room=pool.room)
    pool.start(resources.workers, resources.worker_bytes, most_workers=resources.most_workers)
    return resources
