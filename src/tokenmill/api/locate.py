"""From a token to the row of the source it comes from, and back: in a store, and in the files exported from it."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Callable, Iterator

import msgspec
import pyarrow.compute as pc

from tokenmill.errors import JobChanged, StoreError, UsageError
from tokenmill.exports.job import EXPORT, MANIFEST, STATE, exports_in
from tokenmill.exports.order import SplitAndShuffle
from tokenmill.exports.trace import ExportIndex, ShardLocation, in_store, no_tokens
from tokenmill.pipeline.messages import MEASURES
from tokenmill.storage import Folder, absolute, folder_at, resolved
from tokenmill.store import layout
from tokenmill.store.listed_parts import store_digest
from tokenmill.store.part import TokenArray
from tokenmill.store.reader import Store
from tokenmill.tokenizers.token_bytes import token_bytes_lookup

MAX_DOCUMENTS = 1000
"""How many documents of a stretch are told of, one by one."""

CONTEXT_TOKENS = 40
NAMED_SOURCES = 5
BY_BYTE = (
    "In a file of this kind a row is the byte that its document starts at: `tokenmill inspect DIR --doc N` shows it."
)
LEVELS = 3
"""How far above a shard its export is looked for: some formats have a directory for each split."""


class TextContext(msgspec.Struct, frozen=True):
    """Text around some tokens: what stands before them in the document, they themselves, and what comes after.

    Of very many of them `text` has the first and the last, with three dots between, if it is `shortened`.
    """

    before: str
    text: str
    after: str
    shortened: bool = False


class LocatedDocument(msgspec.Struct, frozen=True):
    """Tokens of one document. `token` is the first of them in the place that was asked about, `tokens` their number.

    An end token that an export has put before the document counts as one of them, but has no place of its own in the
    store. `store_token` is where that token is in the store, `offset` where it is in the document, of
    `document_tokens`; `row` is the row of the source, or the byte that the document starts at where a source has none.
    """

    token: int
    tokens: int
    store_token: int
    document: int
    offset: int
    document_tokens: int
    source: str
    kind: str
    row: int
    around: TextContext


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

    `where` is a store, or a file of an export: `token` counts from 0 in it, and with `token2` all documents from the
    one to before the other are told, up to 1,000. `source` and `row` ask the other way: where the document is in the
    store and in each of its exports, or in one of them, if that is `where`. `store` is the store that an export which
    is not in it was made from. `context` is how many tokens around are shown.
    """
    _check(token, token2, source, row, context)
    folder, name = _find_folder(where, store)
    export = None if name is None and folder.exists(layout.RUN) else ExportIndex(folder)
    if export is None and store is not None:
        raise UsageError("--store is for files that were exported to another place", f"store        {where}")
    locator = Locator(Store(folder.root) if export is None else _store_of(export, store), context)
    if source is not None and row is not None:
        return locator.row(where, source, row, None if export is None else {export.job.format: export})
    start, stop = token or 0, token2 or (token or 0) + 1
    if export is None:
        return locator.stretch(where, locator.in_store(start, stop))
    return locator.stretch(where, locator.in_export(export, name or "", start, stop))


def _check(token: int | None, token2: int | None, source: str | None, row: int | None, context: int) -> None:
    by_row = source is not None and row is not None
    if by_row == (token is not None) or (source is None) != (row is None):
        raise UsageError("say which token, or which row of which source", "Give TOKEN, or --source FILE and --row N.")
    if (token is not None and token < 0) or (row is not None and row < 0) or context < 0:
        raise UsageError("tokens and rows are counted from 0 on")
    if token2 is not None and (token is None or token2 <= token):
        raise UsageError("the stretch ends before it starts", "Give TOKEN TOKEN2: from the one to before the other.")


def _find_folder(where: str, store: str | None) -> tuple[Folder, str | None]:
    """The store or the export at a path, or the export above it and the name of the file in it."""
    path = absolute(where)
    ways = dict.fromkeys([path, resolved(path)])
    found = next(filter(None, map(_above, ways)), None) or (_copied(path, store) if store is not None else None)
    if found is not None:
        return found
    raise StoreError(
        f"{where} is neither a tokenmill store nor a file of an export",
        f"An export has a directory {STATE} that tells what is in its files: ask for the file beside it.",
        "For a copy of such a file, name the store that it was exported from: --store DIR.",
    )


def _above(path: str) -> tuple[Folder, str | None] | None:
    name = ""
    for level in range(LEVELS):
        folder = folder_at(path)
        if level == 0 and folder.exists(layout.RUN):
            return folder, None
        if folder.exists(EXPORT):
            return folder, name or None
        path, _, last = path.rpartition("/")
        name = f"{last}/{name}" if name else last
        if not path or path.endswith("/"):
            break
    return None


def _copied(path: str, store: str) -> tuple[Folder, str] | None:
    """The file in an export of a store that a file was copied from, as far as its name and its size tell."""
    parent, _, last = path.rpartition("/")
    beside, inside = folder_at(parent), folder_at(absolute(store))
    if not beside.exists(last):
        return None
    for name in exports_in(inside):
        folder = folder_at(inside.path(name))
        if folder.exists(MANIFEST) and (same := ExportIndex(folder).file_like(last, beside.size(last))) is not None:
            return folder, same
    return None


def _store_of(export: ExportIndex, given: str | None) -> Store:
    """The store that an export was made from: the one that it is in, if none is named."""
    root = export.folder.root
    parent = given if given is not None else root.rpartition("/")[0]
    if given is None and not folder_at(parent).exists(layout.RUN):
        raise UsageError(
            "it is not known which store this was exported from", f"export       {root}", "Name it: --store DIR."
        )
    store = Store(parent)
    if store_digest(store.manifest) != export.job.store:
        raise JobChanged(
            "this is not the store that was exported", f"store        {store.directory}", f"export       {root}"
        )
    return store


class Locator:
    """A store that is asked for documents, with its vocabulary at hand; for whoever has many questions."""

    def __init__(self, store: Store, context: int) -> None:
        self._store, self._context = store, context
        self._piece: Callable[[int], bytes] = token_bytes_lookup(store.job.tokenizer, store.vocabulary())

    def exports(self) -> tuple[dict[str, ExportIndex], dict[str, str]]:
        """The exports in the store's directory, and why those cannot be asked that cannot."""
        folder = folder_at(self._store.directory)
        digest = store_digest(self._store.manifest)
        found, unasked = {}, {}
        for name in exports_in(folder):
            if not folder.exists(f"{name}/{MANIFEST}"):
                unasked[name] = "not complete"
                continue
            export = ExportIndex(folder_at(folder.path(name)))
            if export.job.store == digest:
                found[name] = export
            else:
                unasked[name] = "exported from another store"
        return found, unasked

    def in_store(self, start: int, stop: int) -> Iterator[LocatedDocument]:
        """The documents of tokens [start, stop) of the store."""
        if stop > self._store.token_count:
            raise no_tokens(self._store.directory, start, stop, self._store.token_count)
        while start < stop:
            document, offset = self._store.at(start)
            length = len(self._store[document])
            end = min(offset + stop - start, length)
            yield self._found(document, (start, end - offset), offset, end)
            start += end - offset

    def in_export(self, export: ExportIndex, name: str, start: int, stop: int) -> Iterator[LocatedDocument]:
        """The documents of tokens [start, stop) of an exported file."""
        for origin in export.origins(name, start, stop):
            document = self._store.find(origin.source, origin.row)
            length = 0 if document is None else len(self._store[document])
            if document is None or origin.stop > length:
                reason = (
                    f"row {origin.row} of source {origin.source}, which a record names, is not like that in the store"
                )
                raise layout.damaged(export.folder, MANIFEST, reason)
            place = in_store(export.job, origin, length)
            yield self._found(document, (origin.token, origin.stop - origin.start), place.start, place.stop)

    def stretch(self, where: str, documents: Iterator[LocatedDocument]) -> LocateResult:
        """The answer about tokens."""
        some = list(itertools.islice(documents, MAX_DOCUMENTS))
        return LocateResult(where, self._store.directory, some, more=next(documents, None) is not None)

    def row(self, where: str, source: str, row: int, exports: dict[str, ExportIndex] | None = None) -> LocateResult:
        """The answer about a row: where it is in these exports, or in all that the store's directory has."""
        number = self._source(source)
        document = self._store.find(number, row)
        if document is None:
            raise self._no_document(number, row)
        identities = self._store.sources["identity"].to_numpy()
        asked, unasked = self.exports() if exports is None else (exports, {})
        spots = {
            name: each.spots(SplitAndShuffle.of(each.job, identities), number, row) for name, each in asked.items()
        }
        length = len(self._store[document])
        found = self._found(document, (self._store.start_of(document), length), 0, length)
        return LocateResult(where, self._store.directory, [found], more=False, exports=spots, unasked=unasked)

    def _source(self, given: str) -> int:
        """The number of the source of this path; the end of a path will do if only one has it."""
        paths = self._store.sources["path"]
        exact = pc.equal(paths, absolute(given) if "://" not in given else given)
        ending = pc.ends_with(paths, f"/{given.removeprefix('./')}")
        alike = next((found for mask in (exact, ending) if (found := paths.filter(mask))), paths.slice(0, 0))
        if len(alike) == 1:
            return int(pc.index(paths, alike[0]).as_py())
        what = f"{len(alike)} sources are called like this" if len(alike) else "the store has no such source"
        shown = (alike if len(alike) else paths).slice(0, NAMED_SOURCES).to_pylist()
        lines = [f"{'' if place else 'sources':<12} {path}" for place, path in enumerate(shown)]
        raise UsageError(f"{what}: {given}", *lines)

    def _no_document(self, source: int, row: int) -> UsageError:
        path, kind = (self._store.sources[name][source].as_py() for name in ("path", "kind"))
        lines = [f"source       {path}", f"reason       {self._store.why_not(source, row)}"]
        lines += [BY_BYTE] if kind not in MEASURES else []
        return UsageError(f"row {row:,} is not a document of the store", *lines)

    def _found(self, document: int, asked: tuple[int, int], start: int, stop: int) -> LocatedDocument:
        """Tokens [start, stop) of a document of the store, and where and how many were asked for."""
        read = self._store.document(document)
        return LocatedDocument(
            token=asked[0],
            tokens=asked[1],
            store_token=self._store.start_of(document) + start,
            document=document,
            offset=start,
            document_tokens=len(read.tokens),
            source=read.source,
            kind=read.kind,
            row=read.row,
            around=self._around(read.tokens, start, stop),
        )

    def _around(self, document: TokenArray, start: int, stop: int) -> TextContext:
        most = self._context + 1
        first, last = max(start - self._context, 0), stop + self._context
        shortened = stop - start > 2 * most
        before, after = self._bytes(document[first:start]), self._bytes(document[stop:last])
        text = self._bytes(document[start : start + most] if shortened else document[start:stop])
        end = self._bytes(document[stop - most : stop]) if shortened else b""
        while text and text[0] & 0xC0 == 0x80 and before:  # in the middle of a character
            before, text = before[:-1], before[-1:] + text
        while after and after[0] & 0xC0 == 0x80:
            taken, after = after[:1], after[1:]
            text, end = (text, end + taken) if shortened else (text + taken, end)
        pieces = [_text(piece) for piece in (before, text, end, after)]
        return TextContext(pieces[0], " ... ".join(pieces[1:3]) if shortened else pieces[1], pieces[3], shortened)

    def _bytes(self, tokens: TokenArray) -> bytes:
        return b"".join(map(self._piece, tokens.tolist()))


def _text(data: bytes) -> str:
    """Bytes as text, without the halves of characters at their edges."""
    start = next((place for place, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data[start:])
