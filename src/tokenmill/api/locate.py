"""`locate`: the document behind a token, or the tokens of a document."""

from __future__ import annotations

import itertools

import msgspec

from tokenmill.api.parameters import Stores, StrPath, path_text, path_texts, store_paths
from tokenmill.errors import UsageError
from tokenmill.exports.locator import LocatedDocument, Locator, exported_stores, find_folder
from tokenmill.exports.trace import ExportIndex, ShardLocation
from tokenmill.humanize import Readable
from tokenmill.store import layout
from tokenmill.store.reader import Store

MAX_DOCUMENTS = 1000
CONTEXT_TOKENS = 40


class LocateResult(Readable, msgspec.Struct, frozen=True):
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
    where: Stores,
    token: int | None = None,
    token2: int | None = None,
    *,
    source: StrPath | None = None,
    row: int | None = None,
    store: Stores | None = None,
    context: int = CONTEXT_TOKENS,
) -> LocateResult:
    """Find the source, row and text of a token, or the tokens of a row of a source.

    Give either `token`, or `source` and `row`. A row is found in the store and in each of its exports, or in the one
    export that `where` names.

    Args:
        where: A store, several stores, the directory of an export, or a file of an export.
        token: The position of a token in the store or the file, from 0.
        token2: The end of a range: all documents with tokens in [token, token2) are found, 1,000 at most.
        source: The file of the row.
        row: The number of the row, from 0. In text and JSON Lines: the byte at which the document starts.
        store: The store of an export that is in another directory; several if it is an export of several.
        context: The number of tokens to show before and after the token.
    """
    places, source, given = store_paths(where), path_text(source), path_texts(store or [])
    _check(token, token2, source, row, context)
    folder, file = find_folder(places[0], given) if len(places) == 1 else (None, None)
    is_store = folder is None or (file is None and folder.exists(layout.RUN))
    export = None if folder is None or is_store else ExportIndex(folder)
    if export is None and given:
        headline = "--store is only for files that were exported to another directory"
        raise UsageError(headline, f"store        {', '.join(places)}")
    stores = places if folder is None else [folder.root]
    opened = Store(stores) if export is None else exported_stores(export, given)
    place, locator = ", ".join(places), Locator(opened, context)
    if source is not None and row is not None:
        number, document = locator.find_row(source, row)
        exports, unasked = locator.exports() if export is None else ({export.job.format: export}, {})
        shards = locator.shards_of(number, row, exports)
        return LocateResult(place, opened.directory, [document], more=False, exports=shards, unasked=unasked)
    start = token or 0
    stop = token2 or start + 1
    found = locator.in_store(start, stop) if export is None else locator.in_export(export, file or "", start, stop)
    documents = list(itertools.islice(found, MAX_DOCUMENTS))
    return LocateResult(place, opened.directory, documents, more=next(found, None) is not None)


def _check(token: int | None, token2: int | None, source: str | None, row: int | None, context: int) -> None:
    by_row = source is not None and row is not None
    if by_row == (token is not None) or (source is None) != (row is None):
        raise UsageError("no token and no row is given", "Give TOKEN, or --source FILE and --row N.")
    if (token is not None and token < 0) or (row is not None and row < 0) or context < 0:
        raise UsageError("tokens and rows are counted from 0")
    if token2 is not None and (token is None or token2 <= token):
        raise UsageError("TOKEN2 is not larger than TOKEN", "The range begins at TOKEN and ends before TOKEN2.")
