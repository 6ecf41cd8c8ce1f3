"""Which rows can be documents, and what is told of those that cannot, whether the run fails of them or goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import BadDocument, SourceError
from tokenmill.sources.documents import BadRow, Documents, ReadOptions, SourceFile

NOT_UTF8 = "not valid UTF-8"
NOT_AN_OBJECT = "not a JSON object"
NOT_TEXT = "not text"
TOO_LONG = "too long"

RAW_BYTES = 64 << 10
"""How much of a bad row is kept."""

_HEADLINES = {
    NOT_UTF8: "a document is not valid UTF-8",
    NOT_AN_OBJECT: "a line is not a JSON object",
    NOT_TEXT: "the value of a document is neither text nor null",
    TOO_LONG: "a document is too long",
}
READER_REASONS = frozenset(_HEADLINES)
"""Why the reader of a source leaves out a row; any other reason was found while the row was encoded."""

_ADVICE = {
    NOT_UTF8: "Repair or remove the document; tokenmill never guesses what the bytes were.",
    NOT_AN_OBJECT: "JSON Lines has one object per line, in UTF-8. Repair or remove the line.",
    NOT_TEXT: "Repair or remove the line.",
    TOO_LONG: "Use a larger --max-document-bytes and a new --out, or split the document.",
}


def bad_row(row: int, reason: str, detail: str, raw: bytes | bytearray) -> BadRow:
    """A bad row of which all bytes are at hand."""
    return BadRow(row, reason, detail, hashlib.sha256(raw).hexdigest(), bytes(raw[:RAW_BYTES]))


class LongRow:
    """A row that is too long to be held: its bytes are hashed as they pass, and only its start is kept."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.size = 0
        self._hash = hashlib.sha256()
        self._raw = b""

    def take(self, data: bytearray, count: int) -> None:
        """Move bytes from the front of `data` to this row."""
        if count <= 0:
            return
        with memoryview(data) as view, view[:count] as passing:
            self._hash.update(passing)
            if len(self._raw) < RAW_BYTES:
                self._raw += bytes(passing[: RAW_BYTES - len(self._raw)])
        self.size += count
        del data[:count]

    def told(self) -> BadRow:
        """What is told of it, when all of it has passed."""
        return BadRow(self.row, TOO_LONG, f"{self.size:,} bytes", self._hash.hexdigest(), self._raw)


def split_valid(
    file: SourceFile,
    found: Documents,
    options: ReadOptions,
    raw: Callable[[int], bytes | bytearray] | None = None,
) -> Documents:
    """Documents whose bytes are known to be UTF-8, and the bad rows: those known before and those found here.

    `raw` gives the bytes of the row at a position, if they are other than those of its text.
    """
    documents = Documents(found.text, found.rows, _raise_or_keep(file, found.bad, options))
    try:
        documents.text.validate(full=True)
    except pa.ArrowInvalid:
        return _without_invalid(file, documents, options, raw)
    return documents


def without_long(file: SourceFile, documents: Documents, options: ReadOptions) -> Documents:
    """Documents of which none is longer than the options allow; whether they are UTF-8 may be unknown yet."""
    limit = options.document_bytes
    if limit is None or documents.text.nbytes <= limit:  # all of them together are not that long
        return documents
    binary = documents.text.cast(pa.large_binary())
    is_long = pc.binary_length(binary).fill_null(0).to_numpy(zero_copy_only=False) > limit
    if not is_long.any():
        return documents
    _check_structure(file, documents, binary)
    found = []
    for position in np.flatnonzero(is_long).tolist():
        long = LongRow(int(documents.rows[position]))
        long.take(bytearray(binary[position].as_buffer()), len(binary[position].as_buffer()))
        found.append(long.told())
    return _without_rows(file, documents, is_long, found, options)


def _raise_or_keep(file: SourceFile, bad: Iterable[BadRow], options: ReadOptions) -> tuple[BadRow, ...]:
    """The bad rows in order; an error that names the first if there may be none."""
    ordered = tuple(sorted(bad, key=lambda row: row.row))
    if ordered and options.on_bad == "fail":
        raise bad_document(file, ordered[0])
    return ordered


def bad_document(file: SourceFile, bad: BadRow) -> BadDocument:
    """The error that a bad row is, if a run may have none."""
    place = "byte" if file.kind == "jsonl" else "row"
    return BadDocument(
        _HEADLINES[bad.reason],
        f"file         {file.path}",
        f"{place:<12} {bad.row}",
        f"reason       {bad.detail}",
        _ADVICE[bad.reason],
    )


def _without_invalid(
    file: SourceFile, documents: Documents, options: ReadOptions, raw: Callable[[int], bytes | bytearray] | None
) -> Documents:
    binary = documents.text.cast(pa.large_binary())
    _check_structure(file, documents, binary)
    is_bad = np.zeros(len(binary), dtype=bool)
    found = []
    for position, value, detail in _invalid(binary):
        is_bad[position] = True
        found.append(bad_row(int(documents.rows[position]), NOT_UTF8, detail, raw(position) if raw else value))
    kept = _without_rows(file, documents, is_bad, found, options)
    _check_structure(file, documents, kept.text)
    return kept


def _invalid(binary: pa.LargeBinaryArray) -> Iterator[tuple[int, bytes, str]]:
    for position, value in enumerate(binary):
        data = value.as_py() or b""
        try:
            data.decode()
        except UnicodeDecodeError as error:
            yield position, data, f"byte {error.start} of the document: {error.reason}"


def _without_rows(
    file: SourceFile,
    documents: Documents,
    is_bad: np.typing.NDArray[np.bool_],
    found: list[BadRow],
    options: ReadOptions,
) -> Documents:
    bad = _raise_or_keep(file, (*documents.bad, *found), options)
    return Documents(documents.text.filter(pa.array(~is_bad)), documents.rows[~is_bad], bad)


def _check_structure(file: SourceFile, documents: Documents, array: pa.Array) -> None:
    """Offsets that point anywhere must not be followed."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SourceError(
            "documents are damaged",
            f"file         {file.path}",
            f"rows from    {documents.rows[0]}",
            f"reason       {error}",
            "Compare the file with its origin.",
        ) from None
