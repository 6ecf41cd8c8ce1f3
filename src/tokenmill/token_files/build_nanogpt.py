"""build-nanogpt: shards as `np.save` writes them, of exactly 100 million tokens each, the first for validation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenmill.storage import Folder
from tokenmill.token_files.files import no_index, read_headed, write_headed
from tokenmill.token_files.protocol import (
    Content,
    FileLayout,
    FormatSpec,
    ReaderLimits,
    ScriptDefaults,
    Shard,
    ShardData,
    WrittenFile,
)

SPEC = FormatSpec(
    name="build-nanogpt",
    trainer="build-nanogpt",
    files="edufineweb_train_000001.npy",
    dtypes=("uint16", "uint32"),
    cuts=True,
    use="link {directory} to edu_fineweb10B, the data_root in train_gpt2.py",
    defaults=ScriptDefaults(end="prepended", shard_tokens=100_000_000, val="first-shard"),
    layout=FileLayout(numbered_together=True, named=True),
    limits=ReaderLimits(shortest_shard="batch x sequence x processes + 1 tokens"),
)
# The size of the header that NumPy writes for a vector.
HEADER_BYTES = 128

finish = no_index


def files(shard: Shard) -> tuple[str, ...]:
    """Return one file. The trainer finds it by the split in its name."""
    return (f"{shard.name or 'edufineweb'}_{shard.split}_{shard.number:06d}.npy",)


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write the header of a NumPy file, then the tokens."""
    return (write_headed(folder, files(shard)[0], _header(content.tokens, shard.dtype), content),)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens of a shard. Raises if its header does not match its size and dtype."""
    return read_headed(folder, names[0], dtype, _header)


def _header(tokens: int, dtype: str) -> bytes:
    """Return NumPy's header of version 1.0, as every NumPy version writes it for a vector."""
    fields = f"{{'descr': '<u{np.dtype(dtype).itemsize}', 'fortran_order': False, 'shape': ({tokens},), }}"
    text = fields.ljust(HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
