"""OLMo-core and dolma: raw tokens in a `.npy` without NumPy's header, and a row for each document in a `.csv.gz`."""

from __future__ import annotations

import os.path
import zlib
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from tokenmill.exports.formats.files import array, damaged, file_size, no_index, publish, spans, write_raw
from tokenmill.exports.formats.protocol import Content, FormatSpec, Shard, ShardData, WrittenFile
from tokenmill.storage import Folder

SPEC = FormatSpec(
    name="olmo",
    trainer="OLMo-core, dolma",
    files="part-0-00000.npy, part-0-00000.csv.gz",
    end="appended",
    dtypes=("uint16", "uint32"),
    cuts=False,
    shard_tokens=250_000_000,
    use='NumpyFSLDatasetConfig(paths=glob("{train}"), sequence_length=2048, ...)',
    folders=True,
)
ROWS_PER_BATCH = 1 << 16
ROWS_PER_BYTE = 8
"""More rows than a packed byte can stand for: each has another id."""
COLUMNS = ["start", "end", "id", "src", "loc"]
finish = no_index


def files(shard: Shard) -> tuple[str, ...]:
    """The tokens and the rows of a shard, named as those of one process."""
    stem = os.path.join(shard.folder, f"part-0-{shard.number:05d}")
    return (f"{stem}.npy", f"{stem}.csv.gz")


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write the tokens and the rows: `start,end,id,src,loc`, where an id is `{source}-{row}` and loc counts from 1."""
    name, table = files(shard)
    written = write_raw(folder, name, shard, content)
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31)  # level 9 takes as long as all the rest, for 0.1 % of the bytes
    with publish(folder, table) as rows:
        for text in _rows(shard.paths, content):
            rows.write(compressor.compress(text))
        rows.write(compressor.flush())
    return (written, rows.written)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """The tokens and lengths of a shard, if its rows follow each other from the first token to the last."""
    name, table = names
    tokens = array(folder, name, dtype)
    if not file_size(folder, table):
        raise damaged(folder, table, "it is empty")
    try:
        starts, ends = _read_rows(folder, table)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(folder, table, str(error)) from error
    lengths = spans(folder, table, np.concatenate([np.zeros(1, np.int64), ends]), len(tokens))
    if not np.array_equal(starts, ends - lengths):
        raise damaged(folder, table, "its documents do not follow each other")
    return ShardData(tokens, lengths)


def _quote(paths: pa.Array) -> pa.Array:
    """The paths as fields of a CSV file, in quotes where they need them."""
    paths = paths.cast(pa.string())
    inner = pc.replace_substring(paths, '"', '""')
    quoted = pc.binary_join_element_wise('"', inner, '"', "")
    return pc.if_else(pc.match_substring_regex(paths, '[",\r\n]'), quoted, paths)


def _rows(paths: pa.Array, content: Content) -> Iterator[pa.Buffer]:
    """The text of some rows at a time."""
    start = 0
    for first in range(0, len(content.lengths), ROWS_PER_BATCH):
        some = slice(first, first + ROWS_PER_BATCH)
        source, row, lengths = content.source[some], content.row[some], content.lengths[some]
        ends = np.cumsum(lengths) + start
        start = int(ends[-1])
        identity = pc.binary_join_element_wise(_text(source), _text(row), "-")
        used, place = np.unique(source, return_inverse=True)
        path = _quote(paths.take(pa.array(used))).take(pa.array(place))
        fields = [_text(ends - lengths), _text(ends), identity, path, _text(row + 1)]
        line = pc.binary_join_element_wise(*fields, ",")
        lines = pc.binary_join_element_wise(line, "", "\r\n")
        yield lines.buffers()[2]


def _text(numbers: npt.NDArray[np.integer]) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _read_rows(folder: Folder, name: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The columns start and end; the text is unpacked a block at a time."""
    with pa.CompressedInputStream(folder.map(name), "gzip") as stream:
        if not stream.read(1):
            return np.empty(0, np.int64), np.empty(0, np.int64)
    with pa.CompressedInputStream(folder.map(name), "gzip") as stream:
        reader = pa_csv.open_csv(
            stream,
            pa_csv.ReadOptions(use_threads=False, column_names=COLUMNS),
            pa_csv.ParseOptions(newlines_in_values=True),
            pa_csv.ConvertOptions(
                column_types={"start": pa.int64(), "end": pa.int64()}, include_columns=COLUMNS[:2], null_values=[]
            ),
        )
        batches = list(_limit_rows(reader, ROWS_PER_BYTE * file_size(folder, name) + ROWS_PER_BATCH))
    columns = ([batch.column(place).to_numpy() for batch in batches] for place in (0, 1))
    starts, ends = (np.concatenate([np.empty(0, np.int64), *column]) for column in columns)
    return starts, ends


def _limit_rows(reader: pa_csv.CSVStreamingReader, most_rows: int) -> Iterator[pa.RecordBatch]:
    """The batches of a file that unpacks to no more rows than it can be meant to."""
    rows = 0
    for batch in reader:
        rows += batch.num_rows
        if rows > most_rows:
            raise ValueError(f"it has more than {most_rows} rows")
        yield batch
