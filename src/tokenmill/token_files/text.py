"""Text: Parquet files with a row for each document, with its text, the path of its source, its row there, and columns.

Programs that encode for themselves read them, and `tokenmill prepare`. An erased document has a row with empty text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from tokenmill.errors import StoreError
from tokenmill.storage import Folder
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.token_files import parquet
from tokenmill.token_files.files import no_index
from tokenmill.token_files.protocol import (
    Content,
    FileLayout,
    FormatSpec,
    ScriptDefaults,
    Shard,
    ShardData,
    WrittenFile,
)

SPEC = FormatSpec(
    name="text",
    trainer="datasets (Hugging Face), anything that reads text",
    files="train-00000-of-00001.parquet",
    dtypes=("uint32",),
    cuts=False,
    is_text=True,
    use='datasets.load_dataset("{directory}")',
    defaults=ScriptDefaults(end="appended", shard_tokens=100_000_000, columns=("text", "source", "row")),
    layout=FileLayout(states_type=False),
)

# The bytes of one value in Parquet, at most.
MAX_BYTES = (1 << 31) - 1

files = parquet.files
finish = no_index


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write row groups like those of parquet."""
    fields = [text_field(shard.columns), *parquet.origin_fields(shard)]

    def tables() -> Iterator[pa.Table]:
        for group in parquet.row_groups(content.lengths):
            columns = [text_of(folder, content, group), *parquet.origin_columns(shard, content, group)]
            yield pa.table(columns, schema=pa.schema(fields))

    return (parquet.write_tables(folder, files(shard)[0], pa.schema(fields), tables()),)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the text and the kept columns of a file's documents."""
    with parquet.opened(folder, names[0]) as (reader, groups):
        text = reader.read(reader.schema_arrow.names[:1], use_threads=False).column(0)
        if text.type != pa.string() or text.null_count or len(text) != sum(group.rows for group in groups):
            raise ValueError(f"it does not hold text in each row, but {len(text)} values of {text.type}")
        text.validate(full=True)
        columns = parquet.read_columns(reader, len(SPEC.defaults.columns))
        large = text.cast(pa.large_string()).combine_chunks()
    return ShardData(np.empty(0, dtype), None, columns, large)


def text_field(name: str) -> pa.Field:
    """The column of the text."""
    return pa.field(name, pa.large_string(), nullable=False)


def text_of(folder: Folder, content: Content, group: slice) -> pa.LargeStringArray:
    """The text of some documents. Raises StoreError if Parquet cannot hold one of them."""
    text = content.text(group.start, group.stop)
    longest = int(np.diff(text_buffers(text)[1]).max(initial=0))
    if longest > MAX_BYTES:
        raise StoreError(f"a document of {longest} bytes is too long for {folder.root}")
    return text
