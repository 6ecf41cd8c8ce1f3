"""build-nanogpt: shards as `np.save` writes them, of exactly 100 million tokens each, the first for validation."""

from __future__ import annotations

import ast
from collections.abc import Sequence

import numpy as np

from tokenmill.storage import FileInfo, Folder
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
from tokenmill.token_files.token_file import (
    TokenFile,
    TokenRows,
    big_endian,
    check_dtype,
    check_size,
    read_bytes,
    refused,
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

# More than the header of an array has.
MAX_HEADER_BYTES = 4096

MAGIC = b"\x93NUMPY"
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


def open_tokens(file: FileInfo, dtype: str = "") -> TokenFile:
    """Open an array that anybody saved: a vector of tokens, or rows of them."""
    start = read_bytes(file, 0, min(file.size, MAX_HEADER_BYTES))
    at = 10 if start[6:7] == b"\x01" else 12  # the header starts after its length, of two bytes or of four
    first_byte = at + int.from_bytes(start[8:at], "little")
    try:
        fields = ast.literal_eval(start[at:first_byte].decode())
        kind, is_fortran, shape = np.dtype(fields["descr"]), fields["fortran_order"], tuple(map(int, fields["shape"]))
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError) as error:
        raise refused(file, f"its header is not one of NumPy: {type(error).__name__} {error}") from error
    if kind.kind not in "ui":
        raise refused(file, f"it holds an array of {kind}, which are not tokens")
    if kind.byteorder == ">":
        raise big_endian(file)
    if len(shape) not in {1, 2} or min(shape) < 0 or (is_fortran and len(shape) > 1):
        raise refused(file, f"it holds an array of shape {shape}, neither a vector of tokens nor rows of them")
    stated = check_dtype(file, kind.newbyteorder("=").name, dtype)
    count, tokens = (1, *shape) if len(shape) == 1 else shape
    rows = TokenRows(first_byte, count, tokens, tokens * kind.itemsize)
    check_size(file, rows.first_byte + count * rows.stride)
    return TokenFile(file, stated, (rows,), row_tokens=tokens if len(shape) > 1 else None)


def _header(tokens: int, dtype: str) -> bytes:
    """Return NumPy's header of version 1.0, as every NumPy version writes it for a vector."""
    fields = f"{{'descr': '<u{np.dtype(dtype).itemsize}', 'fortran_order': False, 'shape': ({tokens},), }}"
    text = fields.ljust(HEADER_BYTES - 11) + "\n"
    return MAGIC + b"\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
