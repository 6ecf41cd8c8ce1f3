"""llm.c and modded-nanogpt: shards with a header of 256 int32: magic number, version, length, zeros."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tokenmill.storage import FileInfo, Folder
from tokenmill.token_files.files import check_fits, no_index, read_headed, write_headed
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
from tokenmill.token_files.token_file import (
    TokenFile,
    big_endian,
    check_dtype,
    check_size,
    contiguous,
    read_bytes,
    refused,
)

# 256 int32 values.
HEADER_BYTES = 1024

# llm.c seeks with a signed 32-bit offset.
MAX_BYTES = (1 << 31) - 1
SPEC = FormatSpec(
    name="llmc",
    trainer="llm.c, modded-nanogpt, NeMo AutoModel",
    files="fineweb_train_000001.bin",
    dtypes=("uint16", "uint32"),
    cuts=True,
    use='-i "{train}"',
    use_val='-i "{train}" -j "{val}"',
    defaults=ScriptDefaults(end="prepended", shard_tokens=100_000_000, val="first-shard"),
    layout=FileLayout(numbered_together=True, named=True),
    limits=ReaderLimits(
        most_bytes=MAX_BYTES, header_bytes=HEADER_BYTES, shortest_shard="batch x sequence x processes + 1 tokens"
    ),
)
# Magic number and version: for GPT-2's tokens, and for train_llama3.py.
KINDS = {"uint16": (20240520, 1), "uint32": (20240801, 7)}
finish = no_index


def files(shard: Shard) -> tuple[str, ...]:
    """Return one file. The trainer finds it by a pattern with the split."""
    return (f"{shard.name or 'fineweb'}_{shard.split}_{shard.number:06d}.bin",)


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write the header, then the tokens."""
    name = files(shard)[0]
    check_fits(folder, name, HEADER_BYTES + content.tokens * np.dtype(shard.dtype).itemsize, MAX_BYTES)
    return (write_headed(folder, name, _header(content.tokens, shard.dtype), content),)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens of a shard. Raises if its header does not match its dtype and size."""
    return read_headed(folder, names[0], dtype, _header)


def open_tokens(file: FileInfo, dtype: str = "") -> TokenFile:
    """Open a shard that anybody wrote. Raises SourceError if its header does not match its size."""
    header = np.frombuffer(read_bytes(file, 0, HEADER_BYTES), "<i4")
    kind, tokens = (int(header[0]), int(header[1])), int(header[2])
    stated = next((name for name, known in KINDS.items() if known == kind), None)
    if stated is None and is_shard(header[:1].byteswap().tobytes()):
        raise big_endian(file)
    if stated is None:
        raise refused(file, f"its magic number and version are {kind[0]} and {kind[1]}, which are not known")
    check_size(file, HEADER_BYTES + tokens * np.dtype(stated).itemsize)
    return TokenFile(file, check_dtype(file, stated, dtype), contiguous(file, stated, HEADER_BYTES))


def is_shard(start: bytes) -> bool:
    """Whether the first bytes of a file are those of a shard, in one order of bytes or the other."""
    magic = {int.from_bytes(start[:4], order) for order in ("little", "big")}
    return bool(magic & {number for number, _ in KINDS.values()})


def _header(tokens: int, dtype: str) -> bytes:
    return np.array([*KINDS[dtype], tokens], "<i4").tobytes().ljust(HEADER_BYTES, b"\0")
