"""Check the files and records of an export in workers, and compare the export with its stores."""

from __future__ import annotations

from tokenmill.errors import CorruptStore, IncompleteStore, StorageError, StoreError
from tokenmill.executors import progress
from tokenmill.executors.checks import Checks
from tokenmill.exports import records
from tokenmill.exports.converge import converge
from tokenmill.exports.file_checks import EXPORT_AGAIN
from tokenmill.exports.formats import FORMATS
from tokenmill.exports.job import PLAN, FrozenExport, is_begun, is_complete, read_frozen
from tokenmill.exports.known_exports import forgotten_exports, known_exports, require_address
from tokenmill.exports.shards import read_export_plan
from tokenmill.exports.sort_documents import chunks
from tokenmill.exports.verify import CheckByteRange, CheckRecords, byte_ranges, unlisted
from tokenmill.storage import Folder, folder_at
from tokenmill.store.chain import Head
from tokenmill.store.collection import open_collection
from tokenmill.store.layout import restart_advice


def check_exports(store: Folder, head: Head, checks: Checks) -> tuple[dict[str, int], list[str]]:
    """Check each export that a store knows of, wherever it is. One that is not complete could not be checked.

    One that is not found is a problem if documents were erased from the store. Returns the number of files of each
    export, and notices that name exports that were not checked.
    """
    exports = {}
    notices = [f"export {name} not checked: {reason}" for name, reason in forgotten_exports(store).items()]
    begun = [path for path in map(store.path, FORMATS) if is_begun(folder_at(path))]
    for directory in dict.fromkeys([*begun, *known_exports(store)]):
        export, name = folder_at(directory), directory.removeprefix(f"{store.root}/")
        try:
            frozen = _require_export(export, store, head)
        except IncompleteStore as error:
            checks.unfinished.append(error.text)
            continue
        except CorruptStore as error:
            checks.problems.append(error.text)
            continue
        except (StoreError, StorageError) as error:
            if head.number:
                checks.problems.append(f"export {name} was not reached: {error.text}")
            else:
                notices.append(f"export {name} not checked: {error.headline}")
            continue
        reason = compare_stores(export, frozen, checks)
        notices += [] if reason is None else [f"export {name}: store not compared: {reason}"]
        exports[name] = check_export(export, frozen, checks)
    return exports, notices


def _require_export(export: Folder, store: Folder, head: Head) -> FrozenExport:
    """Read a complete export of a store."""
    frozen = read_frozen(export)
    if frozen is None:
        raise StoreError("there is no export in it any more")
    if not is_complete(export):
        where = f"export       {export.root}"
        raise IncompleteStore("an export is not complete, so it was not checked", where, EXPORT_AGAIN)
    if head.identity not in [one.identity for one in frozen.stores]:
        raise other_store(store, export)
    require_address(export, frozen, store, head.identity)
    return frozen


def compare_stores(export: Folder, frozen: FrozenExport, checks: Checks) -> str | None:
    """Compare an export with its stores. Returns the reason if a store cannot be read."""
    directories = frozen.directories(export)
    if not directories:
        return "it is not known where it is"
    try:
        stores = open_collection(directories, is_repeated=True)
        for member, one in zip(stores.members, frozen.stores, strict=True):
            if member.head.identity != one.identity:
                raise other_store(member.folder, export)
        converge(export, frozen, checks)
    except CorruptStore as error:
        checks.problems.append(error.text)
    except (StoreError, StorageError) as error:
        return error.headline
    return None


def other_store(store: Folder, export: Folder) -> CorruptStore:
    """Return the error for an export of other parts than a store has."""
    advice = restart_advice(export)
    return CorruptStore(
        "the export was made from other parts than the store has now",
        f"store        {store.root}",
        f"export       {export.root}",
        f"If the store was made again: {advice[0].lower()}{advice[1:]}",
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
    rows = [tuple(chunk) for chunk in chunks(manifest.rows.to_pylist())]
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
