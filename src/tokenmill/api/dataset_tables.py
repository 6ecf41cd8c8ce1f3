"""What `datasets` looks like from here: the files behind a dataset, its text, and a dataset made of tokens.

This is the one module that knows that library. It is imported when a function needs it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tokenmill.errors import UsageError

if TYPE_CHECKING:
    from datasets import Dataset

    from tokenmill.storage import Folder

SPILL_ROWS = 1000
KEEPS_ROWS = ("slice", "drop", "select", "remove_column", "replace_schema_metadata", "cast", "combine_chunks")
"""What may have been done to a table of a file whose text is still the file's own, under the name it has there."""


@dataclass(frozen=True, slots=True)
class Extent:
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


def extents_of(dataset: Dataset, column: str) -> tuple[Extent, ...]:
    """The rows of files that a dataset's table consists of, in order; none if some of it is in no file as it is.

    A selection or an order of rows that lies over the table is not looked at.
    """
    blocks = getattr(dataset.data, "blocks", [[dataset.data]])
    extents = [_extent(block) for beside in blocks for block in beside if column in block.column_names]
    known = tuple(extent for extent in extents if extent is not None)
    return known if len(known) == len(blocks) else ()


def _extent(block: Any) -> Extent | None:
    replays = getattr(block, "replays", None)
    if replays is None or any(name not in KEEPS_ROWS for name, _, _ in replays):
        return None
    first = sum(arguments[0] for name, arguments, _ in replays if name == "slice")
    return Extent(block.path, first, block.num_rows)


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


def taken(table: Any, extents: Sequence[Extent], file_rows: Mapping[str, int]) -> Any:
    """What the extents take of a table with a row for each row of the files, in the order of `file_rows`."""
    from datasets.table import concat_tables  # noqa: PLC0415 - heavy

    stretches = list(_stretches(extents, file_rows))
    if stretches == [(0, len(table))]:
        return table
    return concat_tables([table.slice(start, rows) for start, rows in stretches])


def _stretches(extents: Sequence[Extent], file_rows: Mapping[str, int]) -> Iterator[tuple[int, int]]:
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
    from datasets.table import concat_tables  # noqa: PLC0415

    others = [name for name in dataset.column_names if name not in (column, *tokens.column_names)]
    selected = dataset._indices is not None  # noqa: SLF001 - there is no other way to ask
    rows = dataset.select_columns(others).flatten_indices() if others and selected and in_order else dataset
    table = concat_tables([rows.data.select(others), tokens], axis=1) if others else tokens
    info = dataset.info.copy()
    info.features = Features(
        {name: dataset.features[name] for name in others} | Features.from_arrow_schema(tokens.schema)
    )
    name = hashlib.sha256(f"{fingerprint(dataset)} {origin}".encode())
    indices = None if in_order else dataset._indices  # noqa: SLF001
    table = table.replace_schema_metadata(info.features.arrow_schema.metadata)  # where it is first looked for
    mapped = Dataset(table, info, dataset.split, indices, name.hexdigest()[:16])
    kind = dataset.format["type"]
    return mapped.with_format(kind, **dataset.format["format_kwargs"]) if kind else mapped
