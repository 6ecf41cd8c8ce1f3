"""Check the files and records of an export in workers, and compare the export with its store."""

from __future__ import annotations

from tokenmill.errors import CorruptStore, StorageError, StoreError
from tokenmill.executors import progress
from tokenmill.executors.checks import Checks
from tokenmill.exports import records
from tokenmill.exports.file_checks import EXPORT_AGAIN
from tokenmill.exports.formats import FORMATS
from tokenmill.exports.job import EXPORT, MANIFEST, PLAN, FrozenExport, is_begun, read_frozen, restart_advice
from tokenmill.exports.shards import read_export_plan
from tokenmill.exports.sort_documents import chunks
from tokenmill.exports.verify import CheckByteRange, CheckRecords, byte_ranges, unlisted
from tokenmill.exports.verify_erased import check_erased
from tokenmill.storage import Folder, folder_at
from tokenmill.store.job import Run
from tokenmill.store.manifest import parts_digest, require_manifest
from tokenmill.store.run import read_run


def check_exports(folder: Folder, run: Run, store: str, checks: Checks) -> tuple[dict[str, int], list[str]]:
    """Check each export in the directory of the store with this digest. An export that is not complete is a problem.

    Returns the number of files of each export, and notices that name exports that were not checked.
    """
    exports, notices = {}, []
    for name in FORMATS:
        export = folder_at(folder.path(name))
        if not export.exists(EXPORT) and not is_begun(export):
            continue
        try:
            frozen = read_frozen(export)
        except CorruptStore as error:
            checks.problems.append(error.text)
            continue
        except StoreError as error:
            notices.append(f"export {name} not checked: {error.headline}")
            continue
        if frozen is None or not export.exists(MANIFEST):
            checks.problems.append(str(_incomplete(export)))
            continue
        if not isinstance(frozen.store, str):  # of several stores, of which this one is the last
            reason = compare_stores(export, frozen, checks)
            notices += [] if reason is None else [f"export {name}: store not compared: {reason}"]
        elif frozen.job.store not in {store, *(change.before for change in run.history)}:
            checks.problems.append(str(_other_store(folder, export)))
        else:
            check_erased(export, frozen, folder, run, store, checks)
        exports[name] = check_export(export, frozen, checks)
    return exports, notices


def _incomplete(export: Folder) -> CorruptStore:
    return CorruptStore("an export is not complete, so it was not checked", f"export       {export.root}", EXPORT_AGAIN)


def compare_stores(export: Folder, frozen: FrozenExport, checks: Checks) -> str | None:
    """Compare an export with its stores. Returns the reason if a store cannot be read."""
    digests = [frozen.job.store] if isinstance(frozen.store, str) else [store.digest for store in frozen.store]
    directories = frozen.directories(export)
    if not directories:
        return "it is not known where it is"
    pairs = zip(directories, digests, strict=True)
    reasons = [_compare_store(export, directory, digest, checks) for directory, digest in pairs]
    return next((reason for reason in reasons if reason is not None), None)


def _compare_store(export: Folder, directory: str, digest: str, checks: Checks) -> str | None:
    """Compare the digest of a store with that of the export. Returns the reason if the store cannot be read."""
    try:
        store = folder_at(directory)
        run = read_run(store)
        if run is None:
            return f"{directory} has no store"
        manifest = require_manifest(store, run)
    except CorruptStore as error:
        checks.problems.append(error.text)
        return None
    except (StoreError, StorageError) as error:
        return error.headline
    current = parts_digest(manifest)
    if digest not in {current, *(change.before for change in run.history)}:
        checks.problems.append(str(_other_store(store, export)))
    elif (frozen := read_frozen(export)) is not None:
        check_erased(export, frozen, store, run, current, checks)
    return None


def _other_store(store: Folder, export: Folder) -> CorruptStore:
    advice = restart_advice(export)
    return CorruptStore(
        "the export was made from other parts than the store has now",
        f"store        {store.root}",
        f"export       {export.root}",
        f"If the store was made again: {advice[0].lower()}{advice[1:]}",
        "If it was moved: run the same `tokenmill export` from where it is now.",
    )


def check_export(export: Folder, frozen: FrozenExport, checks: Checks) -> int:
    """Compare the records and each file with their checksums; return the number of files."""
    try:
        manifest = records.read_manifest(export, frozen.job.digest())
        ranges = byte_ranges(manifest)
        if export.exists(PLAN):
            read_export_plan(export, frozen)
    except CorruptStore as error:
        checks.problems.append(error.text)
        return 0
    rows = [tuple(chunk) for chunk in chunks(manifest.to_pylist())]
    for _ in checks.run(CheckRecords(export.root, frozen.job.digest()), rows, lambda _: "the records of shards"):
        pass
    checks.report.begin(f"verify {frozen.job.format}", sum(item.bytes for item in ranges), 0, checks.workers)
    step = progress.Step()
    for done in checks.run(CheckByteRange(export.root), ranges, lambda item: item.name):
        step = progress.Step(step.text_bytes + done.value, step.tokens, step.units + 1)
        checks.report.advance(done.value, step)
    listed = {item.name for item in ranges}
    for name in unlisted(export, listed):
        lines = f"file         {export.path(name)}", "Remove the file, or move it to another directory."
        stray = CorruptStore("a file is named like a file of the export, but is not part of it", *lines)
        checks.problems.append(str(stray))
    return len(listed)
