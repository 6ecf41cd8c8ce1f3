"""CSV and TSV, plain or compressed: the first line names the columns. A row is the number of a record, from 0.

A quoted field may hold line ends, so a file cannot be cut without reading it: it is one slice. An empty field is empty
text. A .tsv file has no quoting: a quote is a character of the text.
"""

from __future__ import annotations

import csv
import functools
import io
import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from tokenmill.errors import SourceError
from tokenmill.humanize import size
from tokenmill.sources.columnar import ColumnPath, number_rows, plain_column, read_text, text_column
from tokenmill.sources.delimited import BYTE_ORDER_MARK, CODECS, one_slice, open_stream, read_sample
from tokenmill.sources.documents import Columns, Documents, ReadOptions, Slice, Slices, SourceFile, Span
from tokenmill.sources.plain_values import TEXT, inferred
from tokenmill.sources.text_columns import template_of

# Separators of a .csv file: the first that cuts its header and its first records into equally many fields.
SEPARATORS = (",", ";", "\t", "|")
MAX_RECORDS_COMPARED = 20
# The fields of a record that is read after the file. If the file ends inside quotes, it becomes a part of their text.
END_MARK = "tokenmill: end of file"
MIN_BLOCK_BYTES = 4 << 20
MAX_BLOCK_BYTES = (1 << 31) - 1
# What a record may have beside its longest document.
RECORD_BYTES = 1 << 20


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """The whole file, whose header must have the columns."""
    del unit_bytes
    _paths(file, options)
    return one_slice(file)


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
    """The whole file."""
    del file_slice, options
    return [(0, file.size)]


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The records of the file."""
    del file_slice
    paths = _paths(file, options)
    names = list(dict.fromkeys(path.name for path in paths))
    yield from number_rows(file, read_text(_batches(file, names, options), paths, options), None, options)


def require_columns(file: SourceFile, names: tuple[str, ...]) -> None:
    """Raise SourceError if the header lacks one of these columns."""
    for name in names:
        plain_column(file, _schema(file), name)


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """The values of some columns. A column has the type that all of its values can have; an empty field is null."""
    del file_slice
    require_columns(file, names)
    batches = list(_batches(file, list(names), options))
    table = pa.Table.from_batches(batches, pa.schema([(name, pa.binary()) for name in names]))
    values = {name: inferred(table[name].combine_chunks()) for name in names}
    yield Columns(np.arange(len(table), dtype=np.uint64), pa.table(values))


def _paths(file: SourceFile, options: ReadOptions) -> list[ColumnPath]:
    return [text_column(file, _schema(file), name) for name in template_of(options).names]


def _schema(file: SourceFile) -> pa.Schema:
    return pa.schema([(name, TEXT) for name in _header(file)[0]])


@functools.lru_cache(maxsize=8)
def _header(file: SourceFile) -> tuple[tuple[str, ...], str]:
    """The names of the columns, and the separator of fields."""
    data, is_all = read_sample(file)
    sample = data.removeprefix(BYTE_ORDER_MARK).decode(errors="replace")
    separators = ("\t",) if _is_tsv(file) else SEPARATORS
    records = {separator: _records(file, sample, separator, is_all=is_all) for separator in separators}
    if not records[separators[0]]:
        raise SourceError("a source is empty: it has no header", f"file         {file.path}")
    cutting = [separator for separator in separators if len(records[separator][0]) > 1]
    even = [separator for separator in cutting if len(set(map(len, records[separator]))) == 1]
    separator = next(iter([*even, *cutting, *separators]))
    return tuple(records[separator][0]), separator


def _records(file: SourceFile, sample: str, separator: str, *, is_all: bool) -> list[list[str]]:
    """The header and the first records that are whole."""
    found: list[list[str]] = []
    try:
        reader = csv.reader(
            io.StringIO(sample, newline=""),
            delimiter=separator,
            quoting=csv.QUOTE_NONE if _is_tsv(file) else csv.QUOTE_MINIMAL,
        )
        found.extend(itertools.islice(filter(None, reader), MAX_RECORDS_COMPARED))
    except csv.Error:  # a field is very long
        return found
    is_cut = len(found) > 1 and len(found) < MAX_RECORDS_COMPARED and not is_all
    return found[:-1] if is_cut else found


def _is_tsv(file: SourceFile) -> bool:
    return file.path.lower().endswith(tuple(f".tsv{extension}" for extension in ("", *CODECS)))


class _MarkedEnd(io.RawIOBase):
    """A stream, followed by a record of end marks."""

    def __init__(self, stream: pa.NativeFile, record: bytes) -> None:
        self._stream = stream
        self._record = record

    def readable(self) -> bool:
        """Whether the stream can be read."""
        return True

    def read(self, size: int = 0, /) -> bytes:
        """The next bytes of the stream, then those of the record: fewer than `size` only at the end."""
        data = bytearray()
        while len(data) < size and (more := self._stream.read(size - len(data))):
            data += more
        rest = size - len(data)
        data += self._record[:rest]
        self._record = self._record[rest:]
        return bytes(data)


def _batches(file: SourceFile, names: list[str], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records with some of their columns. Raises SourceError if the file ends inside quotes."""
    rows = 0
    held: pa.RecordBatch | None = None
    for batch in _marked_batches(file, names, options):
        if not len(batch):
            continue
        if held is not None:
            rows += len(held)
            yield held
        held = batch
    if held is None or held.column(0)[-1].as_py() != END_MARK.encode():
        raise SourceError(
            "a source of kind csv ends inside quotes",
            f"file         {file.path}",
            f"row          {rows + len(held or ()) - 1}",
            "A quote at the start of a field of this row is not closed, so all lines after it are in the field.",
            "Close the quote, or write it twice inside a field in quotes.",
        )
    if len(held) > 1:
        yield held.slice(0, len(held) - 1)


def _marked_batches(file: SourceFile, names: list[str], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records, and the one that is read after the file."""
    longest = max(MIN_BLOCK_BYTES, options.document_bytes or 0) + RECORD_BYTES
    header, separator = _header(file)
    mark = f"\n{separator.join([END_MARK] * len(header))}\n".encode()
    with open_stream(file, [(0, file.size)]) as stream:
        try:
            yield from pa_csv.open_csv(
                _MarkedEnd(stream, mark),
                read_options=pa_csv.ReadOptions(use_threads=False, block_size=min(longest, MAX_BLOCK_BYTES)),
                parse_options=pa_csv.ParseOptions(
                    delimiter=separator, quote_char=False if _is_tsv(file) else '"', newlines_in_values=True
                ),
                convert_options=pa_csv.ConvertOptions(
                    include_columns=names, column_types=dict.fromkeys(names, pa.binary()), strings_can_be_null=False
                ),
            )
        except pa.ArrowInvalid as error:
            raise _invalid(file, error, longest) from error


def _invalid(file: SourceFile, error: pa.ArrowInvalid, longest: int) -> SourceError:
    if "straddl" in str(error):
        return SourceError(
            f"a source of kind csv has a record of more than {size(longest)}",
            f"file         {file.path}",
            "A quote may be open: every line up to the next quote is in its field.",
            "If the record is right, set --max-document-bytes to the bytes of its text.",
        )
    return SourceError(
        f"a source of kind csv cannot be read: {error}",
        f"file         {file.path}",
        "A record has as many fields as the header, and line ends and separators in a field are in quotes.",
    )
