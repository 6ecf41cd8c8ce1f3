"""Separate rows that can be documents from bad rows, and describe the bad rows for the quarantine or as an error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import BadDocument, SourceError
from tokenmill.sources.documents import ROW_KINDS, BadRow, Documents, ReadOptions, SourceFile
from tokenmill.storage.digest import Hasher, hash_of

NOT_UTF8 = "not valid UTF-8"
NOT_AN_OBJECT = "not a JSON object"
NOT_TEXT = "not text"
NOT_SEGMENTS = "not segments"
NOT_MESSAGES = "not messages"
NOT_IDS = "not token ids"
UNDECODABLE = "tokens are not text"
TOO_LONG = "too long"
SPELLS = "spells a control token"

# How much of a bad row is kept.
RAW_BYTES = 64 << 10

# What is said of a row that a reader excludes, and what to do. Rows with other reasons were excluded during encoding.
_MESSAGES = {
    NOT_UTF8: (
        "a document is not valid UTF-8",
        "Repair or remove the document; tokenmill never guesses what the bytes were.",
    ),
    NOT_AN_OBJECT: (
        "a line is not a JSON object",
        "JSON Lines has one object per line, in UTF-8. Repair or remove the line.",
    ),
    NOT_TEXT: ("the value of a document is neither text nor null", "Repair or remove the line."),
    NOT_SEGMENTS: (
        "the segments of a document are not valid",
        'Each row has a list of {"text": "...", "train": true or false}, or null. Repair or remove the row.',
    ),
    NOT_MESSAGES: (
        "the messages of a document are not valid",
        "Each row has a list of objects, JSON text of such a list, or null. Repair or remove the row.",
    ),
    NOT_IDS: (
        "a row does not hold token ids",
        "Each row has a list of whole numbers, or null. Repair or remove the row.",
    ),
    UNDECODABLE: (
        "the tokens of a document are not UTF-8",
        "They may be cut inside a character. Remove the document, or leave such ones out: --on-bad quarantine.",
    ),
    TOO_LONG: ("a document is too long", "Use a larger --max-document-bytes and a new --out, or split the document."),
    SPELLS: (
        "a document spells a control token",
        "Remove the token from the document, or use --special text and a new --out.",
    ),
}
READER_REASONS = frozenset(_MESSAGES)
# The same of a conversation that is read, and cannot be rendered.
_NOT_RENDERED = (
    "a conversation cannot be rendered",
    "Repair or remove the row, or leave such rows out: --on-bad quarantine.",
)


def bad_row(row: int, reason: str, detail: str, raw: bytes | bytearray) -> BadRow:
    """A bad row whose bytes are all in memory."""
    return BadRow(row, reason, detail, hash_of(raw), bytes(raw[:RAW_BYTES]))


class LongRow:
    """A row that is too long for memory: hashes its bytes as they are read, and keeps only its start."""

    def __init__(self, row: int) -> None:
        self.row = row
        self.size = 0
        self._hash = Hasher()
        self._raw = b""

    def take(self, data: bytearray, count: int) -> None:
        """Move bytes from the front of `data` to this row."""
        if count <= 0:
            return
        with memoryview(data) as view, view[:count] as moved:
            self._hash.update(moved)
            if len(self._raw) < RAW_BYTES:
                self._raw += bytes(moved[: RAW_BYTES - len(self._raw)])
        self.size += count
        del data[:count]

    def as_bad_row(self) -> BadRow:
        """The bad row, once all of its bytes have been taken."""
        return BadRow(self.row, TOO_LONG, f"{self.size:,} bytes", self._hash.hexdigest(), self._raw)


def split_valid(
    file: SourceFile,
    unchecked: Documents,
    options: ReadOptions,
    raw: Callable[[int], bytes | bytearray] | None = None,
) -> Documents:
    """Documents that are valid UTF-8, and the bad rows: those of `unchecked` and those that are not valid UTF-8.

    `raw` returns the bytes of the row at an index, if they differ from the bytes of its text.
    """
    documents = replace(unchecked, bad=raise_or_keep(file, unchecked.bad, options.on_bad))
    try:
        documents.text.validate(full=True)
    except pa.ArrowInvalid:
        return _without_invalid(file, documents, options, raw)
    return documents


def without_long(file: SourceFile, documents: Documents, options: ReadOptions) -> Documents:
    """The documents without those longer than `options.document_bytes`, which become bad rows. Does not check UTF-8."""
    limit = options.document_bytes
    if limit is None or documents.text.nbytes <= limit:  # even the whole batch is not too long
        return documents
    binary = documents.text.cast(pa.large_binary())
    is_long = pc.binary_length(binary).fill_null(0).to_numpy(zero_copy_only=False) > limit
    if not is_long.any():
        return documents
    _check_structure(file, documents, binary)
    bad = []
    for index in np.flatnonzero(is_long).tolist():
        long = LongRow(int(documents.rows[index]))
        long.take(bytearray(binary[index].as_buffer()), len(binary[index].as_buffer()))
        bad.append(long.as_bad_row())
    return without_rows(file, documents, is_long, bad, options)


def raise_or_keep(file: SourceFile, bad: Iterable[BadRow], on_bad: str) -> tuple[BadRow, ...]:
    """The bad rows in order. Raises BadDocument for the first one if `on_bad` is "fail"."""
    ordered = tuple(sorted(bad, key=lambda row: row.row))
    if ordered and on_bad == "fail":
        raise bad_document(file, ordered[0])
    return ordered


def bad_document(file: SourceFile, bad: BadRow) -> BadDocument:
    """The error to raise for a bad row."""
    measure = "row" if file.kind in ROW_KINDS else "byte"
    headline, advice = _MESSAGES.get(bad.reason, _NOT_RENDERED)
    return BadDocument(
        headline,
        f"file         {file.path}",
        f"{measure:<12} {bad.row}",
        f"reason       {bad.detail}",
        advice,
    )


def _without_invalid(
    file: SourceFile, documents: Documents, options: ReadOptions, raw: Callable[[int], bytes | bytearray] | None
) -> Documents:
    binary = documents.text.cast(pa.large_binary())
    _check_structure(file, documents, binary)
    is_bad = np.zeros(len(binary), dtype=bool)
    bad = []
    for index, value, detail in _find_invalid(binary, has_line=options.segments or bool(options.prefix)):
        is_bad[index] = True
        bad.append(bad_row(int(documents.rows[index]), NOT_UTF8, detail, raw(index) if raw else value))
    valid = without_rows(file, documents, is_bad, bad, options)
    _check_structure(file, documents, valid.text)
    return valid


def _find_invalid(binary: pa.LargeBinaryArray, *, has_line: bool) -> Iterator[tuple[int, bytes, str]]:
    """The values that are not UTF-8, with the place. `has_line` says that a line of numbers is before each text."""
    for index, value in enumerate(binary):
        data = value.as_py() or b""
        data = data.partition(b"\n")[2] if has_line else data
        try:
            data.decode()
        except UnicodeDecodeError as error:
            yield index, data, f"byte {error.start} of the document: {error.reason}"


def without_rows(
    file: SourceFile,
    documents: Documents,
    is_bad: np.typing.NDArray[np.bool_],
    new_bad: list[BadRow],
    options: ReadOptions,
) -> Documents:
    """The documents without some that are bad, which are added to the bad rows."""
    bad = raise_or_keep(file, (*documents.bad, *new_bad), options.on_bad)
    return replace(documents.filter(~is_bad), bad=bad)


def _check_structure(file: SourceFile, documents: Documents, array: pa.Array) -> None:
    """Raise SourceError if the offsets of an array point outside of its data."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise SourceError(
            "documents are damaged",
            f"file         {file.path}",
            f"rows from    {documents.rows[0]}",
            f"reason       {error}",
            "Compare the file with the original.",
        ) from None
