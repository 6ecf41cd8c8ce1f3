"""Find the document behind a token of a store or of an exported file, and the tokens of a row of a source."""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator, Sequence

import msgspec
import pyarrow.compute as pc

from tokenmill.errors import USAGE, JobChanged, StoreError, UsageError
from tokenmill.exports.file_checks import damaged
from tokenmill.exports.job import EXPORT, STATE, is_begun, is_complete, left_out_changes, stores_digest
from tokenmill.exports.shards import SplitAndShuffle
from tokenmill.exports.trace import ExportIndex, ShardLocation, TokenOrigin, in_store, no_tokens
from tokenmill.humanize import Readable
from tokenmill.sources import splits_of
from tokenmill.storage import Folder, absolute, folder_at, resolved, scheme
from tokenmill.storage.local.listing import did_you_mean
from tokenmill.store import layout
from tokenmill.store.part import TokenArray
from tokenmill.store.reader import Store, position_name
from tokenmill.token_files import FORMATS
from tokenmill.tokenization.token_bytes import token_bytes_lookup

# Sources that an error message lists.
MAX_NAMED_SOURCES = 5

# How a document is named in a source with rows, and in one without.
ADVICE = {
    "row": "Its documents have row numbers: give --row N.",
    "byte": "Give the byte at which the document starts, which `tokenmill inspect DIR --doc N` shows: --byte N.",
}

# Directories that are searched for the export of a file: some formats have a directory for each split.
MAX_PARENTS = 3


class TextContext(Readable, msgspec.Struct, frozen=True):
    """The text of some tokens, and the text before and after them in the document.

    If `shortened`, `text` has only the first and the last tokens, with three dots between them.
    """

    before: str
    text: str
    after: str
    shortened: bool = False


class LocatedDocument(Readable, msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one document. `token` is the position of the first in the searched store or file, `tokens` the count.

    `tokens` includes an end token that an export put before the document. `store_token` is the position of the first
    token in the store, `offset` its position in the document, which has `document_tokens` tokens. `row` is the row in
    the source. In text and JSON Lines, `byte` is where the document starts, and `line` is the number of its line in
    JSON Lines, from 1, if it was counted. `store` is the store that holds the document: `document` and `store_token`
    count in it. `columns` are the kept columns of the document. `erased` is the request that erased it. `trained` of
    its `tokens` are trained on; None if all are. `file_row` is the row in a searched file of text, as is `token` then.
    """

    token: int
    tokens: int
    store_token: int
    document: int
    offset: int
    document_tokens: int
    source: str
    kind: str
    row: int | None = None
    byte: int | None = None
    line: int | None = None
    around: TextContext
    store: str = ""
    columns: dict[str, str | int | float | bool | None] = {}
    erased: str = ""
    trained: int | None = None
    file_row: int | None = None

    @property
    def position(self) -> tuple[str, int]:
        """The name and the number of its place in the source: a row, or the byte at which the document starts."""
        return ("byte", self.byte) if self.byte is not None else ("row", self.row or 0)


def find_folder(where: str) -> tuple[Folder, str | None]:
    """Return the store or export at a path, or the export above it and the name of the file in it."""
    path = absolute(where)
    for candidate in dict.fromkeys([path, resolved(path)]):
        if match := _above(candidate):
            return match
    if not scheme(path) and not os.path.lexists(path):
        raise StoreError(f"no such store or file: {where}", *did_you_mean(path), exit_code=USAGE)
    raise StoreError(
        f"{where} is neither a tokenmill store nor a file of an export",
        f"An export has a directory {STATE}, which describes its files. Name the file beside it.",
        "For a copy of such a file, name the original.",
        exit_code=USAGE,
    )


def _above(path: str) -> tuple[Folder, str | None] | None:
    name = ""
    for level in range(MAX_PARENTS):
        folder = folder_at(path)
        if level == 0 and folder.exists(layout.RUN):
            return folder, None
        if folder.exists(EXPORT) or is_begun(folder):
            return folder, name or None
        path, _, last = path.rpartition("/")
        name = f"{last}/{name}" if name else last
        if not path or path.endswith("/"):
            break
    return None


def exported_stores(export: ExportIndex, given: Sequence[str]) -> Store:
    """Return the stores of an export: the given ones, or those that it names or that contains it."""
    root = export.folder.root
    directories = given or export.frozen.directories(export.folder)
    if not directories:
        raise UsageError("the store of this export is not known", f"export       {root}", "Give it with --store DIR.")
    store = Store(directories, is_repeated=export.job.selection is not None)
    if not _is_version(export, store):
        raise JobChanged(
            "this is not the store that was exported", f"store        {store.directory}", f"export       {root}"
        )
    return store


def _is_version(export: ExportIndex, store: Store) -> bool:
    """Whether an export was made from these stores, as they are or as they were before documents were erased."""
    changes = left_out_changes(export.frozen, store.collection)
    return stores_digest(store.collection, changes) == export.job.store


class Locator:
    """Finds documents of a store. It keeps the vocabulary in memory for further searches."""

    def __init__(self, store: Store, context: int) -> None:
        self._store, self._context = store, context
        self._token_bytes: Callable[[int], bytes] = token_bytes_lookup(store.job.tokenizer, store.vocabulary())

    def exports(self) -> tuple[dict[str, ExportIndex], dict[str, str]]:
        """Return the exports in the directory of the last store that can be searched, and why the others cannot."""
        folder = self._store.collection.members[-1].folder
        exports, skipped = {}, {}
        for name in FORMATS:
            inside = folder_at(folder.path(name))
            if not is_complete(inside):
                if inside.exists(EXPORT):
                    skipped[name] = "not complete"
                continue
            try:
                export = ExportIndex(inside)
                is_version = _is_version(export, self._store)
            except StoreError as error:
                skipped[name] = error.headline
                continue
            if is_version:
                exports[name] = export
            else:
                several = len(export.frozen.stores) > 1
                skipped[name] = "exported together with other stores" if several else "exported from another store"
        return exports, skipped

    def in_store(self, start: int, stop: int) -> Iterator[LocatedDocument]:
        """Yield the documents of tokens [start, stop) of the store."""
        if stop > self._store.token_count:
            raise no_tokens(self._store.directory, start, stop, self._store.token_count)
        while start < stop:
            document, offset = self._store.at(start)
            length = len(self._store[document])
            end = min(offset + stop - start, length)
            yield self._located(document, (start, end - offset), offset, end)
            start += end - offset

    def in_export(self, export: ExportIndex, name: str, start: int, stop: int) -> Iterator[LocatedDocument]:
        """Yield the documents of tokens [start, stop) of an exported file."""
        for origin in export.origins(name, start, stop):
            document = self._document(export, name, origin)
            length = 0 if document is None else len(self._store[document])
            if document is None or origin.stop > length:
                reason = (
                    f"row {origin.row} of source {origin.source}, which a record names, is not like that in the store"
                )
                raise damaged(export.folder, STATE, reason)
            stored = in_store(export.job, origin, length)
            found = self._located(document, (origin.token, origin.stop - origin.start), stored.start, stored.stop)
            yield msgspec.structs.replace(found, file_row=origin.token if export.is_text else None)

    def _document(self, export: ExportIndex, name: str, origin: TokenOrigin) -> int | None:
        """Return the document of some tokens of an exported file. Those of one row follow each other in an export."""
        first = self._store.find(origin.source, origin.row)
        if first is None or not self._store.job.splits_rows:
            return first
        file, number = export.folder.path(name).removesuffix(".idx"), -1
        for found in self.shards_of(origin.source, origin.row, {name: export})[name]:
            number += found.start == 0
            begin, held = (found.token, found.tokens) if found.file_row is None else (found.file_row, 1)
            if found.file.startswith(file) and begin <= origin.token < begin + held:
                break
        return first + number

    def find_row(self, source: str, position: tuple[str, int]) -> tuple[int, list[LocatedDocument]]:
        """Return the number of a source, and the documents of one of its rows, or of the byte at which it starts."""
        number = self._source(source)
        name, row = position
        path, kind = (self._store.sources[column][number].as_py() for column in ("path", "kind"))
        if position_name(kind) != name:
            headline = f"a file of this kind has no {'row numbers' if name == 'row' else 'byte positions'}"
            raise UsageError(headline, f"source       {path}", ADVICE[position_name(kind)])
        document = self._store.find(number, row)
        if document is None:
            raise self._no_document(number, row)
        stop, origin = document + 1, self._store.document(document)
        while self._store.job.splits_rows and stop < len(self._store):
            following = self._store.document(stop)
            if (following.source, following.row) != (origin.source, origin.row):
                break
            stop += 1
        lengths = [(each, len(self._store[each])) for each in range(document, stop)]
        return number, [
            self._located(each, (self._store.start_of(each), length), 0, length) for each, length in lengths
        ]

    def shards_of(self, source: int, row: int, exports: dict[str, ExportIndex]) -> dict[str, list[ShardLocation]]:
        """Return the locations of a row's document in each export."""
        identities, splits = self._store.sources["identity"].to_numpy(), splits_of(self._store.sources)
        return {
            name: export.locations(SplitAndShuffle.of(export.job, identities, splits), source, row)
            for name, export in exports.items()
        }

    def _source(self, given: str) -> int:
        """Return the number of the source with this path, or of the only one whose path ends with it."""
        paths = self._store.sources["path"]
        exact = pc.equal(paths, absolute(given) if "://" not in given else given)
        ending = pc.ends_with(paths, f"/{given.removeprefix('./')}")
        matches = next((matching for mask in (exact, ending) if (matching := paths.filter(mask))), paths.slice(0, 0))
        if len(matches) == 1:
            return int(pc.index(paths, matches[0]).as_py())
        what = f"{len(matches)} sources have this name" if len(matches) else "the store has no such source"
        shown = (matches if len(matches) else paths).slice(0, MAX_NAMED_SOURCES).to_pylist()
        lines = [f"{'' if index else 'sources':<12} {path}" for index, path in enumerate(shown)]
        raise UsageError(f"{what}: {given}", *lines)

    def _no_document(self, source: int, row: int) -> UsageError:
        path, kind = (self._store.sources[name][source].as_py() for name in ("path", "kind"))
        lines = [f"source       {path}", f"reason       {self._store.why_not(source, row)}"]
        lines += [ADVICE["byte"]] if position_name(kind) == "byte" else []
        return UsageError(f"{position_name(kind)} {row:,} is not a document of the store", *lines)

    def _located(self, document: int, asked: tuple[int, int], start: int, stop: int) -> LocatedDocument:
        """Return tokens [start, stop) of a document. `asked` is the first token and the count in the query."""
        read, member = self._store.document(document), self._store.collection.of_document(document)
        name, number = read.position
        has_columns = bool(self._store.collection.kept_columns)
        return LocatedDocument(
            token=asked[0],
            tokens=asked[1],
            store_token=self._store.start_of(document) + start - member.first_token,
            document=document - member.first_document,
            offset=start,
            document_tokens=len(read.tokens),
            source=read.source,
            kind=read.kind,
            row=number if name == "row" else None,
            byte=number if name == "byte" else None,
            around=self._around(read.tokens, start, stop),
            store=member.directory,
            columns=self._store.columns(start=document, stop=document + 1).to_pylist()[0] if has_columns else {},
            erased=read.erased,
            trained=self._trained(document, start, stop),
        )

    def _trained(self, document: int, start: int, stop: int) -> int | None:
        """How many of tokens [start, stop) of a document are trained on; None if all are."""
        trained = self._store.trained(document)
        if trained is None:
            return None
        return sum(max(0, min(end, stop) - max(begin, start)) for begin, end in trained)

    def _around(self, document: TokenArray, start: int, stop: int) -> TextContext:
        edge = self._context + 1
        first, last = max(start - self._context, 0), stop + self._context
        shortened = stop - start > 2 * edge
        before, after = self._bytes(document[first:start]), self._bytes(document[stop:last])
        text = self._bytes(document[start : start + edge] if shortened else document[start:stop])
        end = self._bytes(document[stop - edge : stop]) if shortened else b""
        while text and text[0] & 0xC0 == 0x80 and before:  # the token starts inside a character
            before, text = before[:-1], before[-1:] + text
        while after and after[0] & 0xC0 == 0x80:
            byte, after = after[:1], after[1:]
            text, end = (text, end + byte) if shortened else (text + byte, end)
        middle = f"{_text(text)} ... {_text(end)}" if shortened else _text(text)
        return TextContext(_text(before), middle, _text(after), shortened)

    def _bytes(self, tokens: TokenArray) -> bytes:
        return b"".join(map(self._token_bytes, tokens.tolist()))


def _text(data: bytes) -> str:
    """Decode bytes without the incomplete characters at the edges."""
    start = next((index for index, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data[start:])
