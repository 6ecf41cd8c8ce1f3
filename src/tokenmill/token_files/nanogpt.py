"""nanoGPT: `train.bin` and `val.bin`, each the uint16 tokens of a split and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.storage import FileInfo, Folder
from tokenmill.token_files.files import array, no_index, write_raw
from tokenmill.token_files.protocol import (
    Content,
    FileLayout,
    FormatSpec,
    ScriptDefaults,
    Shard,
    ShardData,
    WrittenFile,
)
from tokenmill.token_files.token_file import TokenFile, check_dtype, contiguous

SPEC = FormatSpec(
    name="nanogpt",
    trainer="nanoGPT",
    files="train.bin, val.bin",
    dtypes=("uint16",),
    cuts=True,
    use="link {directory} to data/NAME of nanoGPT, then train with --dataset=NAME",
    defaults=ScriptDefaults(end="appended", shard_tokens=None, val="0.0005"),
    layout=FileLayout(single=True, states_type=False, states_length=False),
)
finish = no_index


def files(shard: Shard) -> tuple[str, ...]:
    """Return the one file of the split."""
    return (f"{shard.split}.bin",)


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write the tokens as a file or as a region of one."""
    return (write_raw(folder, files(shard)[0], shard, content),)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens of a split."""
    return ShardData(array(folder, names[0], dtype))


def open_tokens(file: FileInfo, dtype: str = "") -> TokenFile:
    """Open raw tokens that anybody wrote. They do not state their type."""
    return TokenFile(file, check_dtype(file, None, dtype), contiguous(file, dtype))
