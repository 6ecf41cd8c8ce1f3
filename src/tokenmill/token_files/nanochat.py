"""nanochat: Parquet files with the column `text`, in row groups that its ranks take in turn.

Its loader reads all Parquet files of a directory in the order of their names. The last one is the validation split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from tokenmill.storage import Folder
from tokenmill.token_files import parquet, text
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
    name="nanochat",
    trainer="nanochat",
    files="shard_00000.parquet",
    dtypes=("uint32",),
    cuts=False,
    is_text=True,
    use="ln -s {directory} ${{NANOCHAT_BASE_DIR:-~/.cache/nanochat}}/base_data_climbmix",
    # Its own script writes 250 M characters to a file.
    defaults=ScriptDefaults(end="appended", shard_tokens=60_000_000, val="first-shard"),
    layout=FileLayout(val_last=True, states_type=False),
)

# Rows of a row group in the files of nanochat's own script.
GROUP_ROWS = 1024

# Row groups of a file with fewer rows. A rank without a row group in any file would wait for ever.
MIN_GROUPS = 64

finish = no_index


def files(shard: Shard) -> tuple[str, ...]:
    """Return one file."""
    return (f"shard_{shard.number:05d}.parquet",)


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write row groups of GROUP_ROWS documents, or of fewer in a small file."""
    schema = pa.schema([text.text_field("text")])
    rows = min(GROUP_ROWS, max(1, len(content.lengths) // MIN_GROUPS))

    def tables() -> Iterator[pa.Table]:
        for group in parquet.row_groups(content.lengths, rows):
            yield pa.table([text.text_of(folder, content, group)], schema=schema)

    return (parquet.write_tables(folder, files(shard)[0], schema, tables()),)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the text of a file's documents."""
    return text.read(folder, names, dtype)
