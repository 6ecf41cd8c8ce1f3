"""Read complete stores: documents and tokens by position, without copies, from memory-mapped parts."""

from __future__ import annotations

import functools
import operator
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import StoreError, UsageError
from tokenmill.humanize import Readable, html_table
from tokenmill.sources import ROW_KINDS, file_at
from tokenmill.sources.line_numbers import MAX_COUNTED_BYTES, line_numbers
from tokenmill.store.collection import open_collection, trial_notes
from tokenmill.store.job import Job, read_vocabulary
from tokenmill.store.member import read_source_text
from tokenmill.store.part import PartContent, SkippedRow, TokenArray
from tokenmill.store.part_index import PartIndex
from tokenmill.system import storage_settings
from tokenmill.tokenization.token_bytes import token_bytes_lookup


def position_name(kind: str) -> str:
    """The name of a document's position in a source of this kind: a row, or the byte at which it starts."""
    return "row" if kind in ROW_KINDS else "byte"


@dataclass(frozen=True, slots=True, repr=False)
class Document(Readable):
    """One document of a store: its tokens, the source and row they come from, and the kind of that source.

    In a source of text or JSON Lines the row is the byte at which the document starts. `store` is the directory of the
    store that holds the document. `erased` is the request that erased it; its tokens are end tokens then.
    """

    tokens: TokenArray
    source: str
    row: int
    kind: str = "parquet"
    store: str = ""
    erased: str = ""

    @property
    def position(self) -> tuple[str, int]:
        """The name and the number of its place in the source: a row, or the byte at which the document starts."""
        return position_name(self.kind), self.row


class StoreSlice:
    """Some documents of a store, as `store[start:stop:step]` returns them. A document is read when it is asked for.

    `len`, iteration, positions and further slices work as for a list; `list(store[2:5])` is a list. A slice can be
    pickled: it holds the address of the store and the range of positions.
    """

    __slots__ = ("positions", "store")

    def __init__(self, store: Store, positions: range) -> None:
        self.store = store
        self.positions = positions

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, position: SupportsIndex) -> TokenArray: ...

    @overload
    def __getitem__(self, position: slice) -> StoreSlice: ...

    def __getitem__(self, position: SupportsIndex | slice) -> TokenArray | StoreSlice:
        if isinstance(position, slice):
            return StoreSlice(self.store, self.positions[position])
        index, count = operator.index(position), len(self)
        if not -count <= index < count:
            held = f"{count:,} documents" if count else "no documents"
            raise IndexError(f"document {index:,} is out of range: the slice has {held}")
        return self.store[self.positions[index]]

    def __iter__(self) -> Iterator[TokenArray]:
        return map(self.store.__getitem__, self.positions)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.store, self.positions)

    def __repr__(self) -> str:
        start, stop, step = self.positions.start, self.positions.stop, self.positions.step
        return f"<StoreSlice {self.store.directory}: {len(self):,} documents, range({start}, {stop}, {step})>"


class Store:
    """A complete token store. `store[i]` is document i; `store.tokens(a, b)` is a range of the token stream.

    Several stores can be opened as one: documents, tokens and sources are numbered through all of them, in the order
    given. `run` is then the run of the first.

    Negative positions count from the end. `store[a:b:step]` is a light view of these documents, a `StoreSlice`, since
    a list of all documents of a large store would not fit into memory. A store can be pickled by its address: another
    process opens the store that is at that address, with the endpoint that it was opened with, and its own credentials.
    """

    def __init__(
        self, directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], *, is_repeated: bool = False
    ) -> None:
        given = [directory] if isinstance(directory, str | os.PathLike) else directory
        self._settings = storage_settings.current()
        self.collection = open_collection([os.fspath(path) for path in given], is_repeated=is_repeated)
        self.run = self.collection.members[0].run
        self.manifest = self.collection.manifest
        self._index = PartIndex(self.collection)

    @property
    def directory(self) -> str:
        """The directory of the store; of several stores, all of them, separated by commas."""
        return self.collection.name

    @property
    def directories(self) -> list[str]:
        """The directory of each store that was opened."""
        return self.collection.directories

    def __fspath__(self) -> str:
        """The directory, so that functions that take the path of a store take an opened one."""
        if len(self.directories) > 1:
            raise UsageError("a path of one store is needed here, and several are open", "Give one of `directories`.")
        return self.directory

    @property
    def job(self) -> Job:
        """The job that made the store."""
        return self.run.job

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of the tokens: uint16 or uint32."""
        return np.dtype(self.job.tokenizer.dtype)

    @property
    def token_count(self) -> int:
        """The number of tokens in the store, including begin and end tokens."""
        return self._index.tokens

    def __len__(self) -> int:
        return self._index.documents

    @overload
    def __getitem__(self, position: SupportsIndex) -> TokenArray: ...

    @overload
    def __getitem__(self, position: slice) -> StoreSlice: ...

    def __getitem__(self, position: SupportsIndex | slice) -> TokenArray | StoreSlice:
        if isinstance(position, slice):
            return StoreSlice(self, range(len(self))[position])
        part, index = self._index.find_document(operator.index(position))
        return self._index.open(part).document(index)

    def __iter__(self) -> Iterator[TokenArray]:
        for content in self.parts():
            for index in range(len(content.row)):
                yield content.document(index)

    def __reduce__(self) -> tuple[Any, ...]:
        return storage_settings.run, (self._settings, type(self), self.directories)

    def __repr__(self) -> str:
        trial = ", a trial" if trial_notes(self.collection) else ""
        return f"<Store {self.directory}: {len(self):,} documents, {self.token_count:,} tokens ({self.dtype}){trial}>"

    def _repr_html_(self) -> str:
        facts = {
            "directory": self.directory,
            "len": len(self),
            "token_count": self.token_count,
            "dtype": self.dtype,
            "job.tokenizer.name": self.job.tokenizer.name,
            "job.begin": self.job.begin,
            "job.end": self.job.end,
            **({"run.trial": self.run.trial} if self.run.trial else {}),
        }
        return html_table("Store", facts)

    def document(self, position: int) -> Document:
        """Document number `position`, with its source and row."""
        part, index = self._index.find_document(operator.index(position))
        content = self._index.open(part)
        path, kind = (self.sources[name][int(content.source[index])].as_py() for name in ("path", "kind"))
        member = self.collection.of_part(part)
        erased = member.request_of(content, index)
        return Document(content.document(index), path, int(content.row[index]), kind, member.directory, erased)

    def trained(self, position: int) -> list[tuple[int, int]] | None:
        """The ranges of tokens of document number `position` that are trained on; None if all are."""
        part, index = self._index.find_document(operator.index(position))
        train = self._index.open(part).train
        if train is None:
            return None
        edges = train.document(index).tolist()
        return list(zip(edges[::2], edges[1::2], strict=True))

    def columns(self, *names: str, start: int = 0, stop: int | None = None) -> pa.Table:
        """The kept columns (`prepare --keep`) with these names, or all, of documents [start, stop): a row for each.

        Of several stores, values are null for the documents of a store that does not keep the column.
        """
        start, stop, _ = slice(start, stop).indices(len(self))
        return self.collection.columns(names or self.collection.kept_columns, start, max(start, stop))

    def decode(self, position: int) -> str:
        """The text of document number `position`: its tokens decoded, without its begin and end token.

        The text is that of the source if the vocabulary is byte-level and the tokenizer does not normalize text.
        """
        tokens = self[position]
        first = int(self.job.begin is not None)
        last = len(tokens) - (self.job.end is not None)
        return b"".join(map(self.token_bytes, tokens[first:last].tolist())).decode(errors="replace")

    def text(self, position: int) -> str:
        """The text of document number `position`, read again from its source. If that holds tokens, it is decoded.

        It is exact for every tokenizer, also one that normalizes text; `decode` needs no source. Raises SourceError if
        the source is gone or has changed, and StoreError if the document was erased.
        """
        part, index = self._index.find_document(operator.index(position))
        content, member = self._index.open(part), self.collection.of_part(part)
        if request := member.request_of(content, index):
            raise StoreError(f"document {position:,} was erased", f"request      {request}")
        if member.run.job.tokens is not None:
            return self.decode(position)
        source = int(content.source[index]) - member.first_source
        settings, unit = storage_settings.current().over(self._settings), part - member.first_part
        row = int(content.row[index])
        is_of_row = (content.row[:index] == content.row[index]) & (content.source[:index] == content.source[index])
        number = int(is_of_row.sum()) if self.job.splits_rows else 0
        return storage_settings.run(settings, read_source_text, member, unit, source, row, number)

    def line(self, position: int) -> int | None:
        """The number of the line, from 1, of document number `position` in a JSON Lines file.

        The lines before it are counted in the file. None if the source is another kind of file, is remote or has
        changed, or if the line starts after the first GiB.
        """
        part, index = self._index.find_document(operator.index(position))
        content = self._index.open(part)
        file, rows = file_at(self.sources, int(content.source[index])), content.row[index : index + 1]
        return int(line_numbers(file, rows, MAX_COUNTED_BYTES)[0]) or None

    def at(self, token: int) -> tuple[int, int]:
        """The document that holds a token of the whole stream, and the index of the token in that document."""
        part = self._index.find_token(token)
        offsets = self._index.open(part).offsets
        token -= self._index.tokens_before(part)
        index = int(np.searchsorted(offsets, token, side="right")) - 1
        return self._index.documents_before(part) + index, token - int(offsets[index])

    def start_of(self, position: int) -> int:
        """The position in the token stream of the first token of document number `position`."""
        part, index = self._index.find_document(operator.index(position))
        return self._index.tokens_before(part) + int(self._index.open(part).offsets[index])

    def find(self, source: int, row: int) -> int | None:
        """The number of the document from this row of this source (by number); None if the store has no such document.

        Only the part that the plan assigns to the row is opened.
        """
        member = self.collection.of_source(source)
        unit = member.unit_of(source - member.first_source, row) if 0 <= row < 1 << 64 else None
        if unit is None:
            return None
        part = member.first_part + unit
        content = self._index.open(part)
        low, high = np.searchsorted(content.source, [source, source + 1]).tolist()
        index = low + int(np.searchsorted(content.row[low:high], np.uint64(row)))
        return self._index.documents_before(part) + index if index < high and int(content.row[index]) == row else None

    def why_not(self, source: int, row: int) -> str:
        """The reason why a row of a source is not in the store, as recorded in its part."""
        member = self.collection.of_source(source)
        return member.why_not(source - member.first_source, row)

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Tokens [start, stop) of the whole stream: a view if they are in one part, else a copy."""
        start, stop, _ = slice(start, stop).indices(self.token_count)
        if start >= stop:
            return np.empty(0, self.dtype)
        return self._index.read(start, stop)

    def part(self, number: int) -> PartContent:
        """Part number `number`: its columns are views of the memory map."""
        return self._index.open(number)

    def documents_before(self, part: int) -> int:
        """The number of documents in the parts before part number `part`."""
        return self._index.documents_before(part)

    def tokens_before(self, part: int) -> int:
        """The number of tokens in the parts before part number `part`."""
        return self._index.tokens_before(part)

    @property
    def identity(self) -> str:
        """The digest that the store had before any document was erased. The states of loaders carry it."""
        return self.collection.identity

    def erased(self, part: int) -> npt.NDArray[np.int64]:
        """The numbers, within part number `part`, of the documents whose tokens were erased."""
        changes = self._index.open(part).erased
        return np.empty(0, np.int64) if changes is None else np.flatnonzero(changes)

    @property
    def digest(self) -> str:
        """The identity of the store's content: the hash of the checksums of its parts."""
        return self.collection.digest

    def parts(self) -> Iterator[PartContent]:
        """Yield the parts in order. Their columns are views of the memory map."""
        for part in range(len(self.manifest)):
            yield self._index.open(part)

    @property
    def sources(self) -> pa.Table:
        """The sources of the run: path, kind, size, fingerprint, identity."""
        return self.collection.sources

    def skipped(self) -> Iterator[SkippedRow]:
        """Yield the rows of the sources that are not in the store, part by part."""
        for member in self.collection.members:
            for skipped in member.skipped():
                yield msgspec.structs.replace(skipped, source=member.first_source + skipped.source)

    def vocabulary(self) -> bytes:
        """The vocabulary that the store was made with."""
        return read_vocabulary(self.collection.members[0].folder, self.job.tokenizer)

    @functools.cached_property
    def token_bytes(self) -> Callable[[int], bytes]:
        """A function that returns the bytes of a token."""
        return token_bytes_lookup(self.job.tokenizer, self.vocabulary())
