"""What `datasets` looks like from here: the files behind a dataset, its text, and a dataset made of tokens.

This is the one module that knows that library. It is imported when a function needs it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tokenmill.errors import UsageError

if TYPE_CHECKING:
    from datasets import Dataset

    from tokenmill.storage import Folder

SPILL_ROWS = 1000
KEEPS_ROWS = ("slice", "drop", "select", "remove_column", "replace_schema_metadata", "cast", "combine_chunks")
"""What may have been done to a table of a file whose text is still the file's own, under the name it has there."""


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows [start, start + rows) of an Arrow file."""

    path: str
    start: int
    rows: int


def default_cache() -> str:
    """The folder of ours in the datasets cache."""
    import datasets  # noqa: PLC0415 - heavy, and needed here only

    return os.path.join(datasets.config.HF_DATASETS_CACHE, "tokenmill")


def each_split(dataset: Any, change: Callable[[Dataset], Dataset]) -> Any:
    """A dataset changed, or a dictionary of them with each one changed."""
    import datasets  # noqa: PLC0415 - heavy, and needed here only

    if isinstance(dataset, datasets.DatasetDict):
        return datasets.DatasetDict({name: change(split) for name, split in dataset.items()})
    if isinstance(dataset, datasets.Dataset):
        return change(dataset)
    raise UsageError(
        f"map_dataset takes a datasets.Dataset or DatasetDict, not a {type(dataset).__name__}",
        "A streaming dataset has no files to read: stream.map(tokenmill.tokenize_fn(...), batched=True)",
    )


def fingerprint(dataset: Dataset) -> str:
    """The name that `datasets` knows this content by."""
    return str(dataset._fingerprint)  # noqa: SLF001 - there is no other way to ask


def extents_of(dataset: Dataset, column: str) -> tuple[RowRange, ...]:
    """The rows of files that a dataset's table consists of, in order; none if some of it is in no file as it is.

    A selection or an order of rows that lies over the table is not looked at.
    """
    blocks = getattr(dataset.data, "blocks", [[dataset.data]])
    extents = [_extent(block) for beside in blocks for block in beside if column in block.column_names]
    known = tuple(extent for extent in extents if extent is not None)
    return known if len(known) == len(blocks) else ()


def _extent(block: Any) -> RowRange | None:
    replays = getattr(block, "replays", None)
    if replays is None or any(name not in KEEPS_ROWS for name, _, _ in replays) or not _is_mapped_from_its_path(block):
        return None
    first = sum(arguments[0] for name, arguments, _ in replays if name == "slice")
    return RowRange(block.path, first, block.num_rows)


def _is_mapped_from_its_path(block: Any) -> bool:
    """Whether the file of that name is still the one that the table was mapped from, as far as the system tells."""
    try:
        inode = os.stat(block.path).st_ino
    except FileNotFoundError:
        return False
    buffers = (buffer for column in block.table.columns for chunk in column.chunks for buffer in chunk.buffers())
    address = next((buffer.address for buffer in buffers if buffer is not None and buffer.size), None)
    mapped = None if address is None else _mapped_inode(address)
    return mapped is None or mapped == inode


def _mapped_inode(address: int) -> int | None:
    try:
        with open("/proc/self/maps") as maps:
            for line in maps:
                span, _, _, _, inode = line.split(maxsplit=5)[:5]
                start, stop = (int(edge, 16) for edge in span.split("-"))
                if start <= address < stop:
                    return int(inode)
    except OSError:
        pass
    return None


def spill(folder: Folder, name: str, dataset: Dataset, column: str) -> None:
    """Write the text of a dataset's rows, in their order, to an Arrow stream."""
    rows = dataset.with_format("arrow", columns=[column])
    schema = pa.schema([(column, pa.large_string())])
    with folder.publish(name) as file, pa.ipc.new_stream(file, schema) as writer:
        for start in range(0, len(rows), SPILL_ROWS):
            writer.write_table(rows[start : start + SPILL_ROWS].cast(schema))


def table_of(paths: Sequence[str], schema: pa.Schema) -> Any:
    """The rows of Arrow streams one after the other, mapped into memory, as in every process it is sent to."""
    from datasets.table import InMemoryTable, MemoryMappedTable, concat_tables  # noqa: PLC0415 - heavy

    pieces = [MemoryMappedTable.from_file(path) for path in paths]
    return concat_tables(pieces) if pieces else InMemoryTable(schema.empty_table())


def taken(table: Any, extents: Sequence[RowRange], file_rows: Mapping[str, int]) -> Any:
    """What the extents take of a table with a row for each row of the files, in the order of `file_rows`."""
    from datasets.table import concat_tables  # noqa: PLC0415 - heavy

    stretches = list(_stretches(extents, file_rows))
    if stretches == [(0, len(table))]:
        return table
    return concat_tables([table.slice(start, rows) for start, rows in stretches])


def _stretches(extents: Sequence[RowRange], file_rows: Mapping[str, int]) -> Iterator[tuple[int, int]]:
    """Start and length of each run of rows."""
    before, first = 0, {}
    for path, rows in file_rows.items():
        first[path] = before
        before += rows
    start = length = 0
    for extent in extents:
        place = first[extent.path] + extent.start
        if place != start + length and length:
            yield start, length
        if place != start + length or not length:
            start, length = place, 0
        length += extent.rows
    yield start, length


def with_tokens(dataset: Dataset, column: str, tokens: Any, origin: str, *, in_order: bool) -> Dataset:
    """The dataset with the columns of `tokens` in place of its text.

    `origin` tells what the tokens are. They stand in the order of the dataset's rows if `in_order`, else in that of the
    table under them.
    """
    from datasets import Dataset, Features  # noqa: PLC0415 - heavy

    others = [name for name in dataset.column_names if name not in (column, *tokens.column_names)]
    info = dataset.info.copy()
    kept = {name: dataset.features[name] for name in others}
    info.features = Features(kept | Features.from_arrow_schema(tokens.schema))
    # Older versions of the library look for the features here first.
    table = _beside(dataset, others, tokens, in_order).replace_schema_metadata(info.features.arrow_schema.metadata)
    indices = None if in_order or not len(dataset) else dataset._indices  # noqa: SLF001 - there is no other way
    name = hashlib.sha256(f"{fingerprint(dataset)} {origin}".encode()).hexdigest()[:16]
    return _shown_as(dataset, Dataset(table, info, dataset.split, indices, name), others)


def _beside(dataset: Dataset, others: list[str], tokens: Any, in_order: bool) -> Any:
    """The other columns and the tokens in one table."""
    from datasets.table import InMemoryTable, concat_tables  # noqa: PLC0415 - heavy

    if not len(dataset):
        schema = pa.schema([*(dataset.data.schema.field(name) for name in others), *tokens.schema])
        return InMemoryTable(schema.empty_table())
    if not others:
        return tokens
    if in_order and dataset._indices is not None:  # noqa: SLF001
        dataset = dataset.select_columns(others).flatten_indices()
    return concat_tables([dataset.data.select(others), tokens], axis=1)


def _shown_as(dataset: Dataset, mapped: Dataset, others: list[str]) -> Dataset:
    """The mapped dataset in the format that the dataset was given."""
    shown = dataset.format
    if shown["type"] is None and set(shown["columns"]) == set(dataset.column_names):
        return mapped
    columns = [name for name in mapped.column_names if name not in others or name in shown["columns"]]
    return mapped.with_format(shown["type"], columns, shown["output_all_columns"], **shown["format_kwargs"])


def first_null(dataset: Dataset, column: str) -> int | None:
    """The first row in which a column is null."""
    values = dataset.data.column(column)
    if not values.null_count:
        return None
    is_null = values.is_null().to_numpy()
    indices = dataset._indices  # noqa: SLF001
    rows = np.flatnonzero(is_null if indices is None else is_null[indices.column(0).to_numpy()])
    return int(rows[0]) if len(rows) else None
