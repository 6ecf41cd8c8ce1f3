"""Access to `datasets`: the files of a dataset, its text, and a dataset made of tokens.

Only this module knows that library. Functions import it when they need it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import UsageError
from tokenmill.pipeline.datasets.map_rows import are_intact, commit_rows
from tokenmill.pipeline.rows.stream import RowStream, plain_batches, stream_of
from tokenmill.storage import Folder
from tokenmill.storage.digest import hash_of
from tokenmill.store.spool import ARROW

if TYPE_CHECKING:
    from datasets import Dataset

# How many rows are written at a time.
SPILL_ROWS = 1000

# The directory of rows that were put in another order, in the directory of a dataset's tokens.
ORDERED = "ordered"

# How many rows are put in order at a time, and about how many bytes.
GATHER_ROWS = 100_000
GATHER_BYTES = 256 << 20

# Changes of a table after which it still has all rows of its file, and its text under the same column name.
KEEPS_ROWS = ("drop", "select", "remove_column", "replace_schema_metadata", "cast", "combine_chunks")


def default_cache() -> str:
    """The folder of tokenmill in the cache of `datasets`."""
    import datasets  # noqa: PLC0415 - heavy, and needed here only

    return os.path.join(datasets.config.HF_DATASETS_CACHE, "tokenmill")


def each_split(dataset: Any, change: Callable[[Dataset], Dataset]) -> Any:
    """Apply `change` to a dataset, or to each split of a DatasetDict."""
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
    """The fingerprint by which `datasets` identifies this content."""
    return str(dataset._fingerprint)  # noqa: SLF001 - the library has no public name for it, and no other cheap identity


def files_of(dataset: Dataset, column: str) -> list[str]:
    """The files that hold the table of a dataset, one after the other; empty if no whole files do.

    The indices of a selected or shuffled dataset are ignored.
    """
    blocks = getattr(dataset.data, "blocks", [[dataset.data]])
    holders = [block for row in blocks for block in row if column in block.column_names]
    paths = list(dict.fromkeys(block.path for block in holders if _is_whole_file(block)))
    return paths if len(paths) == len(blocks) else []


def _is_whole_file(block: Any) -> bool:
    replays = getattr(block, "replays", None)
    return replays is not None and all(name in KEEPS_ROWS for name, *_ in replays) and _is_mapped_from_its_path(block)


def _is_mapped_from_its_path(block: Any) -> bool:
    """Whether the file at the path of a table still is the one that the table was mapped from, if that can be known.

    No library knows: only the kernel does, or a comparison that would read all text, also if its tokens are cached.
    """
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


def splits(rows: Any) -> dict[str | None, Any] | None:
    """The datasets of a dataset's splits, or one without a name. None if this is no dataset of the library."""
    if type(rows).__module__.split(".")[0] != "datasets":
        return None
    import datasets  # noqa: PLC0415 - heavy, and needed here only

    if isinstance(rows, datasets.DatasetDict | datasets.IterableDatasetDict):
        return dict(rows)
    return {None: rows} if isinstance(rows, datasets.Dataset | datasets.IterableDataset) else None


def files_in_place(dataset: Any) -> list[str]:
    """The files that hold the rows of a dataset, and nothing else; empty if its rows have to be copied."""
    if getattr(dataset, "data", None) is None or dataset._indices is not None or is_transformed(dataset):  # noqa: SLF001
        return []
    blocks = getattr(dataset.data, "blocks", [[dataset.data]])
    if any(len(row) != 1 or not _is_whole_file(row[0]) or _is_cast(row[0]) for row in blocks):
        return []
    paths = list(dict.fromkeys(row[0].path for row in blocks))
    return paths if len(paths) == len(blocks) else []


def _is_cast(block: Any) -> bool:
    return any(name == "cast" for name, *_ in block.replays)


def is_transformed(dataset: Any) -> bool:
    """Whether a function makes the rows of a dataset when they are read (`set_transform`)."""
    return bool(dataset.format["type"] == "custom")


def row_stream(dataset: Any) -> RowStream:
    """The rows of a dataset in its order. Those that are made when they are read are dicts."""
    if getattr(dataset, "data", None) is None or is_transformed(dataset):
        return stream_of(iter(dataset))
    table, indices = dataset.data.table, dataset._indices  # noqa: SLF001 - it has no public name
    empty = table.schema.empty_table()
    size = int(table.nbytes * len(dataset) / max(len(table), 1))
    if indices is None:
        parts: Iterator[Any] = (pa.Table.from_batches([batch]) for batch in table.to_batches())
    else:
        parts = gather(table, indices.column(0).to_numpy())
    return RowStream(ARROW, plain_batches(itertools.chain([empty], parts)), size)


def spill(folder: Folder, name: str, dataset: Dataset, column: str) -> None:
    """Write the text of a dataset's rows, in their order, to an Arrow stream."""
    rows = dataset.with_format("arrow", columns=[column])
    schema = pa.schema([(column, pa.large_string())])
    with folder.publish(name) as file, pa.ipc.new_stream(file, schema) as writer:
        for start in range(0, len(rows), SPILL_ROWS):
            writer.write_table(rows[start : start + SPILL_ROWS].cast(schema))


def table_of(paths: Sequence[str], schema: pa.Schema) -> Any:
    """The rows of Arrow streams in order, mapped into memory here and in every process that gets the table."""
    from datasets.table import InMemoryTable, MemoryMappedTable, concat_tables  # noqa: PLC0415 - heavy

    tables = [MemoryMappedTable.from_file(path) for path in paths]
    return concat_tables(tables) if tables else InMemoryTable(schema.empty_table())


def with_tokens(  # noqa: PLR0913 - the dataset, its tokens, and how they are put together
    dataset: Dataset, column: str, tokens: Any, folder: Folder, *, in_order: bool, keep_text: bool
) -> Dataset:
    """The dataset with the columns of `tokens` in place of its text, or beside it if `keep_text`.

    `folder` identifies the tokens. They are in the order of the rows of the dataset if `in_order`, else in the order of
    its table. The rows of a selected or shuffled dataset are written to `folder` in their order, so that the result
    has no indices.
    """
    from datasets import Dataset, Features  # noqa: PLC0415 - heavy

    left_out = (*(() if keep_text else (column,)), *tokens.column_names)
    others = [name for name in dataset.column_names if name not in left_out]
    info = dataset.info.copy()
    kept = {name: dataset.features[name] for name in others}
    info.features = Features(kept | Features.from_arrow_schema(tokens.schema))
    identity = f"{fingerprint(dataset)} {folder.root} {' '.join(others)} {' '.join(tokens.column_names)}"
    name = hash_of(identity.encode())[:16]
    table = _beside(dataset, others, tokens, folder, name, in_order)
    # Older versions of the library look for the features here first.
    table = table.replace_schema_metadata(info.features.arrow_schema.metadata)
    return _shown_as(dataset, Dataset(table, info, dataset.split, None, name), others)


def _beside(  # noqa: PLR0913, PLR0917 - both tables, their order, and the file for it
    dataset: Dataset, others: list[str], tokens: Any, folder: Folder, name: str, in_order: bool
) -> Any:
    """The other columns and the tokens in one table, in the order of the rows of the dataset."""
    from datasets.table import InMemoryTable, concat_tables  # noqa: PLC0415 - heavy

    if not len(dataset):
        schema = pa.schema([*(dataset.data.schema.field(name) for name in others), *tokens.schema])
        return InMemoryTable(schema.empty_table())
    indices = dataset._indices  # noqa: SLF001 - it has no public name
    kept = dataset.data.select(others)
    if indices is None or (in_order and not others):
        return concat_tables([kept, tokens], axis=1) if others else tokens
    rows = indices.column(0).to_numpy()
    if in_order:
        return concat_tables([_ordered(kept, rows, folder, f"{name}-others"), tokens], axis=1)
    return _ordered(concat_tables([kept, tokens], axis=1) if others else tokens, rows, folder, name)


def _ordered(table: Any, rows: Any, folder: Folder, name: str) -> Any:
    """Some rows of a table, in this order, from an Arrow stream that is written if `folder` does not have it yet."""
    content = table.table
    identity = hash_of(np.ascontiguousarray(rows).tobytes() + str(content.schema).encode())
    file_name = f"{ORDERED}/{name}-{identity[:16]}.arrow"
    if not are_intact(folder, file_name, identity):
        folder.create(ORDERED)
        with folder.publish(file_name) as file, pa.ipc.new_stream(file, content.schema) as writer:
            for batch in gather(content, rows):
                writer.write_table(batch)
        commit_rows(folder, file_name, identity)
    return table_of([folder.path(file_name)], content.schema)


def gather(table: pa.Table, rows: npt.NDArray[np.integer[Any]]) -> Iterator[pa.Table]:
    """Yield some rows of a table in this order, in batches. Each batch takes its rows from a record batch at once."""
    batches = table.to_batches()
    first = np.cumsum([0, *(batch.num_rows for batch in batches)])
    batch_rows = max(1, min(GATHER_ROWS, GATHER_BYTES * table.num_rows // max(table.nbytes, 1)))
    for start in range(0, len(rows), batch_rows):
        chosen = rows[start : start + batch_rows]
        order = np.argsort(chosen, kind="stable")
        ascending = chosen[order].astype(np.int64)
        holders = np.searchsorted(first, ascending, side="right") - 1
        edges = np.flatnonzero(np.diff(holders, prepend=-1, append=-1))
        taken = [
            batches[holders[low]].take(pa.array(ascending[low:high] - first[holders[low]]))
            for low, high in itertools.pairwise(edges.tolist())
        ]
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        yield pa.Table.from_batches(taken).combine_chunks().take(pa.array(position))


def _shown_as(dataset: Dataset, mapped: Dataset, others: list[str]) -> Dataset:
    """The mapped dataset with the output format of the dataset."""
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
