"""OLMo-core and dolma: raw tokens in a `.npy` without NumPy's header, and a row for each document in a `.csv.gz`."""

from __future__ import annotations

import functools
import os.path
import zlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from tokenmill import storage
from tokenmill.storage import FileInfo, Folder
from tokenmill.token_files.files import (
    array,
    damaged,
    file_size,
    join_marks,
    no_index,
    publish,
    spans,
    write_masked,
    write_raw,
)
from tokenmill.token_files.protocol import (
    Content,
    FileLayout,
    FormatSpec,
    ScriptDefaults,
    Shard,
    ShardData,
    WrittenFile,
)
from tokenmill.token_files.token_file import (
    Positions,
    TokenFile,
    check_dtype,
    companion,
    contiguous,
    refused,
    rising,
)

SPEC = FormatSpec(
    name="olmo",
    trainer="OLMo-core, dolma, MaxText",
    files="part-0-00000.npy, part-0-00000.csv.gz",
    dtypes=("uint16", "uint32"),
    cuts=False,
    use='NumpyFSLDatasetConfig(paths=glob("{train}"), sequence_length=2048, ...)',
    use_mask='NumpyFSLDatasetConfig(paths=sorted(glob("{train}")), label_mask_paths=sorted(glob("{mask}")), ...)',
    defaults=ScriptDefaults(end="appended", shard_tokens=250_000_000),
    layout=FileLayout(folders=True),
    masks={"mask": ()},
)
# Rows that are formatted at a time.
ROWS_PER_BATCH = 1 << 16

# More rows than a compressed byte can hold, because each row has another id.
ROWS_PER_BYTE = 8

# The names that pyarrow gives to the first columns of a `.csv.gz`, which has no header: start and end.
COLUMNS = ["f0", "f1"]
finish = no_index


def files(shard: Shard) -> tuple[str, ...]:
    """Return the files with the tokens and the rows of a shard, named like those of one dolma process, and its mask."""
    stem = os.path.join(shard.folder, f"part-0-{shard.number:05d}")
    return (f"{stem}.npy", f"{stem}.csv.gz", *([f"{stem}_mask.npy"] if shard.mask else []))


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write the tokens and the rows: `start,end,id,src,loc`, where an id is `{source}-{row}` and loc counts from 1."""
    name, table, *masks = files(shard)
    if masks:
        written = write_masked(folder, name, masks[0], shard, content)
    else:
        written = (write_raw(folder, name, shard, content),)
    # Level 9 would take as long as everything else, for 0.1 % of the bytes.
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
    with publish(folder, table) as rows:
        for text in _rows(shard.paths, content):
            rows.write(compressor.compress(text))
        rows.write(compressor.flush())
    return (written[0], rows.written, *written[1:])


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens and lengths of a shard. Raises if its rows do not cover the tokens in order."""
    name, table, *masks = names
    tokens = array(folder, name, dtype)
    if masks:
        marks = array(folder, masks[0], "uint8")
        if len(marks) != len(tokens) or bool((marks > 1).any()):
            raise damaged(folder, masks[0], f"it is no mask of {len(tokens)} tokens")
        tokens = join_marks(tokens, marks > 0)
    if not file_size(folder, table):
        raise damaged(folder, table, "it is empty")
    try:
        starts, ends = _read_rows(lambda: pa.BufferReader(folder.buffer(table)), file_size(folder, table))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(folder, table, str(error)) from error
    lengths = spans(folder, table, np.concatenate([np.zeros(1, np.int64), ends]), len(tokens))
    if not np.array_equal(starts, ends - lengths):
        raise damaged(folder, table, "its documents do not follow each other")
    return ShardData(tokens, lengths)


def open_tokens(file: FileInfo, dtype: str = "") -> TokenFile:
    """Open raw tokens with the rows of their documents that anybody wrote. They do not state their type."""
    table = companion(file, table_name(file.path))
    rows = contiguous(file, check_dtype(file, None, dtype))
    positions = _edges_of(table)
    if int(positions[-1]) != rows[0].tokens:
        raise refused(table, f"its documents end at token {int(positions[-1])} of {rows[0].tokens}")
    return TokenFile(file, dtype, rows, len(positions) - 1, lambda first, last: positions[first : last + 1])


def table_name(name: str) -> str:
    """The name of the rows of a `.npy`."""
    return f"{name.removesuffix('.npy')}.csv.gz"


@functools.lru_cache(maxsize=2)
def _edges_of(table: FileInfo) -> Positions:
    """The positions of all documents. They are kept: a range of rows cannot be read without those before it."""
    try:
        starts, ends = _read_rows(lambda: storage.open_input(table, [(0, table.size)]), table.size)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise refused(table, str(error)) from error
    edges = np.concatenate([np.zeros(1, np.int64), ends])
    if not np.array_equal(starts, edges[:-1]):
        raise refused(table, "its documents do not follow each other")
    return rising(table, edges, int(edges[-1]))


def _quote(paths: pa.Array) -> pa.Array:
    """Return the paths as CSV fields, quoted where necessary."""
    paths = paths.cast(pa.string())
    inner = pc.replace_substring(paths, '"', '""')
    quoted = pc.binary_join_element_wise('"', inner, '"', "")
    return pc.if_else(pc.match_substring_regex(paths, '[",\r\n]'), quoted, paths)


def _rows(paths: pa.Array, content: Content) -> Iterator[pa.Buffer]:
    """Yield the text of ROWS_PER_BATCH rows at a time."""
    start = 0
    for first in range(0, len(content.lengths), ROWS_PER_BATCH):
        batch = slice(first, first + ROWS_PER_BATCH)
        source, row, lengths = content.source[batch], content.row[batch], content.lengths[batch]
        ends = np.cumsum(lengths) + start
        start = int(ends[-1])
        identity = pc.binary_join_element_wise(_text(source), _text(row), "-")
        used, index = np.unique(source, return_inverse=True)
        path = _quote(paths.take(pa.array(used))).take(pa.array(index))
        fields = [_text(ends - lengths), _text(ends), identity, path, _text(row + 1)]
        line = pc.binary_join_element_wise(*fields, ",")
        lines = pc.binary_join_element_wise(line, "", "\r\n")
        yield lines.buffers()[2]


def _text(numbers: npt.NDArray[np.integer]) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _read_rows(open_file: Callable[[], pa.NativeFile], file_bytes: int) -> tuple[Positions, Positions]:
    """Read the first two columns, start and end. The text is decompressed a block at a time."""
    with pa.CompressedInputStream(open_file(), "gzip") as stream:
        if not stream.read(1):
            return np.empty(0, np.int64), np.empty(0, np.int64)
    with pa.CompressedInputStream(open_file(), "gzip") as stream:
        reader = pa_csv.open_csv(
            stream,
            pa_csv.ReadOptions(use_threads=False, autogenerate_column_names=True),
            pa_csv.ParseOptions(newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types=dict.fromkeys(COLUMNS, pa.int64()), include_columns=COLUMNS, null_values=[]
            ),
        )
        batches = list(_limit_rows(reader, ROWS_PER_BYTE * file_bytes + ROWS_PER_BATCH))
    columns = ([batch.column(index).to_numpy() for batch in batches] for index in (0, 1))
    starts, ends = (np.concatenate([np.empty(0, np.int64), *column]) for column in columns)
    return starts, ends


def _limit_rows(reader: pa_csv.CSVStreamingReader, most_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the batches of a file. Raises after too many rows, so that a small file cannot fill the memory."""
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        if rows > most_rows:
            raise ValueError(f"it has more than {most_rows} rows")
        yield batch
