"""`locate`: the document behind a token, or the tokens of a document."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec

from tokenmill.api.loader import loader as open_loader
from tokenmill.api.parameters import path_text, path_texts, store_paths
from tokenmill.errors import UsageError
from tokenmill.exports.locator import LocatedDocument, Locator, exported_stores, find_folder
from tokenmill.exports.trace import ExportIndex, ShardLocation
from tokenmill.humanize import Readable
from tokenmill.options import Stores, StrPath
from tokenmill.store import layout
from tokenmill.store.reader import Store
from tokenmill.system.arguments import checked
from tokenmill.training.order import Shuffle
from tokenmill.training.packing import Packing
from tokenmill.training.split_table import Split

MAX_DOCUMENTS = 1000
CONTEXT_TOKENS = 40
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


@checked
def locate(  # noqa: PLR0913 - the options of the command, by their names
    where: Stores,
    token: int | None = None,
    token2: int | None = None,
    *,
    source: StrPath | None = None,
    row: int | None = None,
    byte: int | None = None,
    store: Stores | None = None,
    context: int = CONTEXT_TOKENS,
    step: int | None = None,
    position: int | None = None,
    sequence_tokens: str | int | None = None,
    batch_sequences: int | None = None,
    seed: int | None = None,
    val: str | float | None = None,
    split: Split = "train",
    shuffle: Shuffle | None = None,
    packing: Packing | None = None,
    grain: str | int | None = None,
) -> LocateResult:
    """Find the source, row and text of a token, or the tokens of a row of a source.

    Give either `token`, or `source` and `row` (or `byte`), or, for a token of a training batch, `step`, `row` and
    `position` with the choices of the loader. A row of a source is found in the store and in each of its exports, or in
    the one export that `where` names.

    Args:
        where: A store, several stores, the directory of an export, or a file of an export. With `step`, also a recipe.
        token: The position of a token in the store or the file, from 0.
        token2: The end of a range: all documents with tokens in [token, token2) are found, 1,000 at most.
        source: The file of the row.
        row: The number of the row, from 0. With `step`: the row of the batch, over all ranks.
        byte: The byte at which the document starts, in text and JSON Lines. These have no row numbers.
        store: The store of an export that is in another directory; several if it is an export of several.
        context: The number of tokens to show before and after the token.
        step: The step of a training that reads the store with `tokenmill.loader`, from 0.
        position: The position of the token in its row of the batch, from 0.
        sequence_tokens: As for `loader`.
        batch_sequences: As for `loader`.
        seed: As for `loader`.
        val: As for `loader`.
        split: As for `loader`.
        shuffle: As for `loader`.
        packing: As for `loader`.
        grain: As for `loader`.
    """
    if step is not None or position is not None:
        others = (token, source, byte)
        if step is None or row is None or position is None or any(given is not None for given in others):
            raise UsageError("a token of a batch has a step, a row and a position", "Give these three, and no other.")
        choices = {"sequence_tokens": sequence_tokens, "batch_sequences": batch_sequences, "seed": seed, "val": val}
        choices |= {"split": split, "shuffle": shuffle, "packing": packing, "grain": grain}
        return _locate_in_batch(store_paths(where), (step, row, position), choices, context)
    places, source, given = store_paths(where), path_text(source), path_texts(() if store is None else store)
    named = _named(source, row, byte)
    _check(token, token2, named, context)
    folder, file = find_folder(places[0], given) if len(places) == 1 else (None, None)
    is_store = folder is None or (file is None and folder.exists(layout.RUN))
    export = None if folder is None or is_store else ExportIndex(folder)
    if export is None and given:
        headline = "--store is only for files that were exported to another directory"
        raise UsageError(headline, f"store        {', '.join(places)}")
    stores = places if folder is None else [folder.root]
    opened = Store(stores) if export is None else exported_stores(export, given)
    place, locator = ", ".join(places), Locator(opened, context)
    if named is not None:
        number, document = locator.find_row(*named)
        exports, unasked = locator.exports() if export is None else ({export.job.format: export}, {})
        shards = locator.shards_of(number, named[1][1], exports)
        documents = [_with_line(opened, document)]
        return LocateResult(place, opened.directory, documents, more=False, exports=shards, unasked=unasked)
    start = token or 0
    stop = token2 or start + 1
    found = locator.in_store(start, stop) if export is None else locator.in_export(export, file or "", start, stop)
    documents = list(itertools.islice(found, MAX_DOCUMENTS))
    if len(documents) == 1:
        documents = [_with_line(opened, documents[0])]
    return LocateResult(place, opened.directory, documents, more=next(found, None) is not None)


def _locate_in_batch(
    where: list[str], place: tuple[int, int, int], choices: dict[str, Any], context: int
) -> LocateResult:
    """Find a token of a training batch, by its step, row and position."""
    loader = open_loader(where, **choices, rank=0, world_size=1)
    directory, token = loader.locate(*place)
    store = Store(directory)
    (document,) = Locator(store, context).in_store(token, token + 1)
    step, row, position = place
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


def _check(token: int | None, token2: int | None, named: tuple[str, tuple[str, int]] | None, context: int) -> None:
    if (named is None) == (token is None):
        headline = "no token and no row is given" if token is None else "a token and a row are given"
        raise UsageError(headline, NOTHING_GIVEN)
    if min(token or 0, named[1][1] if named else 0, context) < 0:
        raise UsageError("tokens, rows and bytes are counted from 0")
    if token2 is not None and (token is None or token2 <= token):
        raise UsageError("TOKEN2 is not larger than TOKEN", "The range begins at TOKEN and ends before TOKEN2.")
