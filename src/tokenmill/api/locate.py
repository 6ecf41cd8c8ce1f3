"""`locate`: the document behind a token, or the tokens of a document."""

from __future__ import annotations

import itertools

import msgspec

from tokenmill.errors import UsageError
from tokenmill.exports.locator import LocatedDocument, Locator, exported_store, find_folder
from tokenmill.exports.trace import ExportIndex, ShardLocation
from tokenmill.store import layout
from tokenmill.store.reader import Store

MAX_DOCUMENTS = 1000
CONTEXT_TOKENS = 40


class LocateResult(msgspec.Struct, frozen=True):
    """What was found: the documents of some tokens, or of a row, and for a row also where it went in each export.

    `more` tells that there are documents beyond the 1,000 that are named, `unasked` why an export could not be asked.
    """

    place: str
    store: str
    documents: list[LocatedDocument]
    more: bool
    exports: dict[str, list[ShardLocation]] | None = None
    unasked: dict[str, str] = {}


def locate(  # noqa: PLR0913 - the options of the command, by their names
    where: str,
    token: int | None = None,
    token2: int | None = None,
    *,
    source: str | None = None,
    row: int | None = None,
    store: str | None = None,
    context: int = CONTEXT_TOKENS,
) -> LocateResult:
    """Say which row of which source tokens come from, and what text they are; or where the tokens of a row are.

    `where` is a store, or a file of an export: `token` counts from 0 in it. With `token2`, all documents from `token`
    to before `token2` are returned, up to 1,000. `source` and `row` ask the other way: where the document is in the
    store and in each of its exports, or in one of them, if that is `where`. `store` is the store that an export which
    is not in it was made from. `context` is how many tokens around are shown.
    """
    _check(token, token2, source, row, context)
    folder, file = find_folder(where, store)
    export = None if file is None and folder.exists(layout.RUN) else ExportIndex(folder)
    if export is None and store is not None:
        raise UsageError("--store is only for files that were exported to another directory", f"store        {where}")
    opened = Store(folder.root) if export is None else exported_store(export, store)
    locator = Locator(opened, context)
    if source is not None and row is not None:
        number, document = locator.find_row(source, row)
        exports, unasked = locator.exports() if export is None else ({export.job.format: export}, {})
        shards = locator.shards_of(number, row, exports)
        return LocateResult(where, opened.directory, [document], more=False, exports=shards, unasked=unasked)
    start = token or 0
    stop = token2 or start + 1
    found = locator.in_store(start, stop) if export is None else locator.in_export(export, file or "", start, stop)
    documents = list(itertools.islice(found, MAX_DOCUMENTS))
    return LocateResult(where, opened.directory, documents, more=next(found, None) is not None)


def _check(token: int | None, token2: int | None, source: str | None, row: int | None, context: int) -> None:
    by_row = source is not None and row is not None
    if by_row == (token is not None) or (source is None) != (row is None):
        raise UsageError("no token and no row is given", "Give TOKEN, or --source FILE and --row N.")
    if (token is not None and token < 0) or (row is not None and row < 0) or context < 0:
        raise UsageError("tokens and rows are counted from 0")
    if token2 is not None and (token is None or token2 <= token):
        raise UsageError("TOKEN2 is not larger than TOKEN", "The range begins at TOKEN and ends before TOKEN2.")
