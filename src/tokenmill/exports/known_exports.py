"""The exports that a store knows of: those in its directory, and those that were recorded in it when they were made.

The list is data, which anybody can write who can write to the store. It never leads to a write elsewhere: an export
outside of the store is followed only if its own record names this store, or the person names the export.
"""

from __future__ import annotations

import msgspec

from tokenmill.errors import TRY_AGAIN, CorruptStore, RunFailed, SourceError, StorageError, StoreError, UsageError
from tokenmill.executors.fan_out import FanOut
from tokenmill.exports import shards
from tokenmill.exports.converge import converge
from tokenmill.exports.job import EXPORT, LOCK, FrozenExport, exports_in, is_complete, read_frozen
from tokenmill.exports.records import read_manifest
from tokenmill.storage import Folder, folder_at, resolved, scheme
from tokenmill.storage.digest import hash_of
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.chain import Head, StoreVersion, require_version
from tokenmill.store.collection import Collection
from tokenmill.token_files import OWN


class KnownExport(msgspec.Struct, frozen=True):
    """An export of a store. A path in the store is relative, so that it can move. `forgotten` says why it is unlisted.

    Exports at their default place in the store are known without such a record.
    """

    directory: str
    forgotten: str = ""


class ReachedExport(msgspec.Struct, frozen=True):
    """What an erasure found in an export: the shards with erased documents, or the problem why it was not reached.

    `again` is whether the same command may reach it later.
    """

    directory: str
    shards: int = 0
    problem: str = ""
    again: bool = False


def record_export(export: Folder, stores: Collection) -> list[str]:
    """Record an export in each of its stores, unless it is at its default place there.

    Returns a notice if a store is read-only.
    """
    notices = []
    for member in stores.members:
        try:
            add_export(member.folder, export.root)
        except (StoreError, StorageError, OSError):
            notices.append(f"the export is not recorded in {member.directory}: name it when documents are erased there")
    return notices


def add_export(store: Folder, directory: str) -> None:
    """Record an export in a store, unless it is recorded there already."""
    relative = directory.removeprefix(f"{store.root}/")
    name = _record_name(relative)
    if store.exists(name):
        if not _read_record(store, name).forgotten:
            return
    elif relative in OWN:
        return
    store.create(layout.EXPORTS)
    layout.publish_json(store, name, KnownExport(relative))


def forget_export(store: Folder, directory: str, reason: str) -> None:
    """Take an export off the list of a store, for a reason. Raises UsageError if it is not there."""
    if directory not in known_exports(store):
        raise UsageError(f"{store.root} knows no export in {directory}", "`tokenmill erase` lists those not reached.")
    relative = directory.removeprefix(f"{store.root}/")
    store.create(layout.EXPORTS)
    layout.publish_json(store, _record_name(relative), KnownExport(relative, reason or "no reason was given"))


def known_exports(store: Folder) -> list[str]:
    """The directories of the exports that a store knows of, whether they still exist or not."""
    listed = _records(store)
    known = [store.path(name) for name in exports_in(store)]
    forgotten = {directory for directory, record in listed.items() if record.forgotten}
    return [directory for directory in dict.fromkeys([*known, *listed]) if directory not in forgotten]


def forgotten_exports(store: Folder) -> dict[str, str]:
    """The exports that were taken off the list of a store, and why."""
    return {directory: record.forgotten for directory, record in _records(store).items() if record.forgotten}


def require_newest(store: Folder, head: Head) -> None:
    """Raise CorruptStore if a known export names a version that the store does not have: the store is an older copy.

    Called before a change is claimed, which would have the number of another one.
    """
    for directory in known_exports(store):
        for version in _versions(folder_at(directory), store, head.identity):
            try:
                require_version(store, head, version)
            except CorruptStore as error:
                forget = f"tokenmill erase {store.root} --forget-export {directory} --reason TEXT"
                details = (f"known by     {directory}", *error.details, f"Or take that export off the list: {forget}")
                raise CorruptStore(error.headline, *details) from error


def _versions(export: Folder, store: Folder, identity: str) -> list[StoreVersion]:
    """The versions of a store that the last manifest of an export names; none if the export cannot be read."""
    try:
        frozen = read_frozen(export)
        if frozen is None or not is_complete(export) or not names_store(export, frozen, store, identity):
            return []
        versions = read_manifest(export, frozen.job.digest()).versions
    except (StoreError, StorageError):
        return []
    return [version for one, version in zip(frozen.stores, versions, strict=False) if one.identity == identity]


def reach_export(
    directory: str, store: Folder, identity: str, fan_out: FanOut, *, is_named: bool = False
) -> ReachedExport:
    """Erase in an export what was erased from its stores, or say why that is not possible. May be repeated.

    With `is_named`, a person has named the export: it may have recorded another address of the store.
    """
    try:
        export = folder_at(directory)
        frozen = _require_reachable(export, store, identity, is_named=is_named)
        with export.locks.exclusive(LOCK):
            return ReachedExport(directory, converge(export, frozen, fan_out))
    except (StoreError, StorageError, SourceError, RunFailed, UsageError) as error:
        reason = error.details[0].strip() if isinstance(error, RunFailed) and error.details else error.headline
        return ReachedExport(directory, problem=reason, again=error.exit_code == TRY_AGAIN)


def _require_reachable(export: Folder, store: Folder, identity: str, *, is_named: bool) -> FrozenExport:
    """Read a complete export that names this store."""
    frozen = read_frozen(export)
    if frozen is None:
        raise StoreError("there is no export in it any more")
    if identity not in [one.identity for one in frozen.stores]:
        raise StoreError("it is not an export of this store")
    if is_named:
        frozen = _with_address(export, frozen, store, identity)
    require_address(export, frozen, store, identity)
    if not is_complete(export):
        raise StoreError(
            "it is not complete: finish it with the same `tokenmill export`, or remove it", exit_code=TRY_AGAIN
        )
    return frozen


def require_address(export: Folder, frozen: FrozenExport, store: Folder, identity: str) -> None:
    """Raise StoreError if the record of an export names another address: the store was moved, or is a copy."""
    if not names_store(export, frozen, store, identity):
        raise StoreError("its own record names another store, so it is left as it is; --export names it to this one")


def names_store(export: Folder, frozen: FrozenExport, store: Folder, identity: str) -> bool:
    """Whether the record of an export names the address and the identity of a store."""
    pairs = zip(frozen.directories(export), frozen.stores, strict=False)
    return any(resolved(place) == resolved(store.root) and one.identity == identity for place, one in pairs)


def largest_shard(directory: str) -> int:
    """The bytes of the tokens in the largest shard of an export, and of their labels; 0 if it cannot be read."""
    try:
        export = folder_at(directory)
        frozen = read_frozen(export)
        if frozen is None or not is_complete(export):
            return 0
        plan = shards.read_export_plan(export, frozen)
    except (StoreError, StorageError, SourceError):
        return 0
    tokens = plan["stop"].to_numpy() - plan["start"].to_numpy()
    return int(tokens.max(initial=0)) * sum(frozen.job.region_token_bytes)


def _with_address(export: Folder, frozen: FrozenExport, store: Folder, identity: str) -> FrozenExport:
    """Record the address of a store in its export, unless the export names it there."""
    if names_store(export, frozen, store, identity):
        return frozen
    stores = tuple(
        msgspec.structs.replace(one, directory=store.root) if one.identity == identity else one for one in frozen.stores
    )
    frozen = msgspec.structs.replace(frozen, stores=stores).with_checksum()
    layout.publish_json(export, EXPORT, frozen)
    return frozen


def _records(store: Folder) -> dict[str, KnownExport]:
    """The records of exports by directory. A damaged one stands for an export that cannot be found."""
    listed = {}
    for name in sorted(name for name in store.names(layout.EXPORTS) if name.endswith(".json")):
        record = _read_record(store, f"{layout.EXPORTS}/{name}")
        is_absolute = bool(scheme(record.directory)) or record.directory.startswith("/")
        listed[record.directory if is_absolute else f"{store.root}/{record.directory}"] = record
    return listed


def _read_record(store: Folder, name: str) -> KnownExport:
    try:
        return decode(store.read(name, layout.MAX_JSON_BYTES), KnownExport)
    except MalformedDataError:
        return KnownExport(name)


def _record_name(relative: str) -> str:
    return f"{layout.EXPORTS}/{hash_of(relative.encode())[:16]}.json"
