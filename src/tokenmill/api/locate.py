"""`locate`: the document behind a token, or the tokens of a document."""

from __future__ import annotations

import itertools

import msgspec

from tokenmill.api.loader import loader as open_loader
from tokenmill.api.parameters import path_text, path_texts, store_paths
from tokenmill.errors import UsageError
from tokenmill.exports.locator import LocatedDocument, Locator, exported_stores, find_folder
from tokenmill.exports.trace import ExportIndex, ShardLocation
from tokenmill.humanize import Readable
from tokenmill.options import BatchOptions, LocateOptions
from tokenmill.store import layout
from tokenmill.store.reader import Store
from tokenmill.system.arguments import options_of, takes

MAX_DOCUMENTS = 1000
NOTHING_GIVEN = "Give TOKEN, or --source FILE and --row N. In text and JSON Lines: --source FILE and --byte N."


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


@takes(LocateOptions)
def locate(options: LocateOptions) -> LocateResult:
    """Find the source, row and text of a token, or the tokens of a row of a source.

    Give either `token`, or `source` and `row` (or `byte`), or, for a token of a training batch, `step`, `row` and
    `position` with the choices of the loader. A row of a source is found in the store and in each of its exports, or in
    the one export that `where` names.
    """
    places, token, context = store_paths(options.where), options.token, options.context
    if options.step is not None or options.position is not None:
        return _locate_in_batch(places, options)
    source, given = path_text(options.source), path_texts(options.store or ())
    named = _named(source, options.row, options.byte)
    _check(token, options.token2, named)
    folder, file = find_folder(places[0]) if len(places) == 1 else (None, None)
    is_store = folder is None or (file is None and folder.exists(layout.RUN))
    export = None if folder is None or is_store else ExportIndex(folder)
    if export is None and given:
        headline = "--store is only for files that were exported to another directory"
        raise UsageError(headline, f"store        {', '.join(places)}")
    stores = places if folder is None else [folder.root]
    opened = Store(stores) if export is None else exported_stores(export, given)
    place, locator = ", ".join(places), Locator(opened, context)
    if named is not None:
        number, found_in_row = locator.find_row(*named)
        exports, unasked = locator.exports() if export is None else ({export.job.format: export}, {})
        shards = locator.shards_of(number, named[1][1], exports)
        documents = [_with_line(opened, document) for document in found_in_row]
        return LocateResult(place, opened.directory, documents, more=False, exports=shards, unasked=unasked)
    start = token or 0
    stop = options.token2 or start + 1
    found = locator.in_store(start, stop) if export is None else locator.in_export(export, file or "", start, stop)
    documents = list(itertools.islice(found, MAX_DOCUMENTS))
    if len(documents) == 1:
        documents = [_with_line(opened, documents[0])]
    return LocateResult(place, opened.directory, documents, more=next(found, None) is not None)


def _locate_in_batch(where: list[str], options: LocateOptions) -> LocateResult:
    """Find a token of a training batch, by its step, row and position."""
    step, row, position = options.step, options.row, options.position
    others = (options.token, options.source, options.byte)
    if step is None or row is None or position is None or any(given is not None for given in others):
        raise UsageError("a token of a batch has a step, a row and a position", "Give these three, and no other.")
    choices = {name: getattr(options, name) for name in options_of(BatchOptions)}
    loader = open_loader(where, **choices, rank=0, world_size=1)
    directory, token = loader.locate(step, row, position)
    store = Store(directory)
    (document,) = Locator(store, options.context).in_store(token, token + 1)
    batch = f"step {step:,}, row {row:,} of {', '.join(loader.options.stores)}"
    found = msgspec.structs.replace(_with_line(store, document), token=position)
    return LocateResult(batch, directory, [found], more=False)


def _with_line(store: Store, document: LocatedDocument) -> LocatedDocument:
    """A document with the number of its line, if it can be counted."""
    members = store.collection.members
    first = next(member.first_document for member in members if member.directory == document.store)
    return msgspec.structs.replace(document, line=store.line(first + document.document))


def _named(source: str | None, row: int | None, byte: int | None) -> tuple[str, tuple[str, int]] | None:
    """The source, and its row or byte; None if neither is given. Raises UsageError for other combinations."""
    positions = [(name, number) for name, number in (("row", row), ("byte", byte)) if number is not None]
    if source is None and not positions:
        return None
    if source is None or len(positions) != 1:
        raise UsageError("a document has a source, and a row or a byte", NOTHING_GIVEN)
    return source, positions[0]


def _check(token: int | None, token2: int | None, named: tuple[str, tuple[str, int]] | None) -> None:
    if (named is None) == (token is None):
        headline = "no token and no row is given" if token is None else "a token and a row are given"
        raise UsageError(headline, NOTHING_GIVEN)
    if min(token or 0, named[1][1] if named else 0) < 0:
        raise UsageError("tokens, rows and bytes are counted from 0")
    if token2 is not None and (token is None or token2 <= token):
        raise UsageError("TOKEN2 is not larger than TOKEN", "The range begins at TOKEN and ends before TOKEN2.")
