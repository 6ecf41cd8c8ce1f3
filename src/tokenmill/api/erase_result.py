"""The results of erasures, as the store keeps them, and the exports that an erasure has to reach again."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenmill.exports.erase_done import done_file, forget_restored
from tokenmill.humanize import Readable
from tokenmill.storage import Folder, read_existing
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.erasures import RESULT_FILE, erasure_file


class EraseResult(Readable, msgspec.Struct, frozen=True):
    """What was erased. `deny` is the list for the next `prepare --deny`.

    `exports` has the number of replaced shards by directory, `removed_exports` incomplete exports that begin again, and
    `unreached` the exports that could not be reached, with the reason: the next `erase` tries them again, whatever it
    erases. `retried` are those that it reached. `matched_before` counts documents that an earlier request erased,
    `not_compared` rows in quarantine whose columns are not known, because the sources are gone.
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
    retried: dict[str, str] = {}
    not_compared: int = 0
    deny: str = ""
    dry_run: bool = False
    seconds: float = 0.0


def read_result(folder: Folder, request: str) -> EraseResult | None:
    """The result of a request; None if the store has none."""
    name = erasure_file(request, RESULT_FILE)
    data = read_existing(folder, name, layout.MAX_JSON_BYTES)
    try:
        return None if data is None else decode(data, EraseResult)
    except MalformedDataError as damage:
        raise layout.damaged(folder, name, str(damage)) from damage


def publish_result(folder: Folder, result: EraseResult) -> None:
    """Publish the result of a request: from then on its erasure is complete."""
    layout.publish_json(folder, erasure_file(result.request, RESULT_FILE), result)


def expect_export(folder: Folder, request: str, export: str) -> None:
    """Record that a request has not reached an export, unless it has."""
    result = read_result(folder, request)
    if result is None or (export in result.exports and folder.exists(done_file(folder, request, export))):
        return
    exports = {name: shards for name, shards in result.exports.items() if name != export}
    unreached = {export: "it was not known, or has been restored", **result.unreached}
    publish_result(folder, msgspec.structs.replace(result, exports=exports, unreached=unreached))


def restored_exports(folder: Folder, named: Sequence[str], earlier: Sequence[str], request: str) -> list[str]:
    """The exports that have other files than erasures left in them: those of a request, and those that are named.

    What the erasures did there is forgotten.
    """
    results = [read_result(folder, name) for name in dict.fromkeys([*earlier, request])]
    complete = [result for result in results if result is not None]
    known = dict.fromkeys([*named, *(export for one in complete if one.request == request for export in one.exports)])
    reached = {export: [one.request for one in complete if export in one.exports] for export in known}
    return [export for export in known if forget_restored(folder, reached[export], export)]
