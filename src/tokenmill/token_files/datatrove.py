"""datatrove: tokens in a `.ds`, document ends in a `.ds.index`, tokenizer and count in a `.ds.metadata`."""

from __future__ import annotations

import os.path
from collections.abc import Sequence

import numpy as np

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.storage import FileInfo, Folder
from tokenmill.token_files.files import array, damaged, no_index, publish, spans, write_raw
from tokenmill.token_files.protocol import (
    Content,
    FileLayout,
    FormatSpec,
    ScriptDefaults,
    Shard,
    ShardData,
    WrittenFile,
)
from tokenmill.token_files.token_file import (
    Positions,
    TokenFile,
    check_dtype,
    companion,
    contiguous,
    read_values,
    refused,
    rising,
)

SPEC = FormatSpec(
    name="datatrove",
    trainer="datatrove, nanotron",
    files="00000_00000_unshuffled.ds, .ds.index, .ds.metadata",
    dtypes=("uint16", "uint32"),
    cuts=False,
    use='DatatroveFolderDataset("{train_folder}", seq_len=2048, filename_pattern="*.ds", token_size={token_bytes})',
    defaults=ScriptDefaults(end="appended", shard_tokens=100_000_000),
    layout=FileLayout(folders=True),
)
# The first lines of a file of metadata are shorter.
MAX_METADATA_BYTES = 4096
finish = no_index


def files(shard: Shard) -> tuple[str, ...]:
    """Return the three files of a shard, named like those of a datatrove rank."""
    order = "shuffled" if shard.shuffled else "unshuffled"
    name = os.path.join(shard.folder, f"{shard.number:05d}_00000_{order}.ds")
    return (name, f"{name}.index", f"{name}.metadata")


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write the tokens, the ends of the documents and the metadata."""
    tokens, index, metadata = files(shard)
    written = write_raw(folder, tokens, shard, content)
    with publish(folder, index) as ends:
        ends.write_array(np.cumsum(content.lengths, dtype=np.uint64))
    with publish(folder, metadata) as text:
        text.write(_metadata(shard, content.tokens).encode())
    return (written, ends.written, text.written)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens and lengths of a shard. Raises if the index or the metadata do not match the tokens."""
    name, index, metadata = names
    tokens = array(folder, name, dtype)
    ends = array(folder, index, "uint64").astype(np.int64)
    lengths = spans(folder, index, np.concatenate([np.zeros(1, np.int64), ends]), len(tokens))
    lines = folder.read(metadata, 1 << 20).split(b"\n")
    counts = [lines[0].rpartition(b"|")[2], *lines[1:2]]
    if counts != [b"%d" % tokens.dtype.itemsize, b"%d" % len(tokens)]:
        raise damaged(folder, metadata, f"it does not state {len(tokens)} tokens of {dtype}")
    return ShardData(tokens, lengths)


def open_tokens(file: FileInfo, dtype: str = "") -> TokenFile:
    """Open a file with its index that anybody wrote. The type of its tokens is that of the metadata, if there are any.

    Raises SourceError if the index does not end with the tokens.
    """
    index = companion(file, f"{file.path}.index")
    stated = check_dtype(file, _stated_type(file), dtype)
    documents, rest = divmod(index.size, 8)
    if rest:
        raise refused(index, f"its {index.size} bytes are not a whole number of uint64")
    rows = contiguous(file, stated)
    last = int(read_values(index, "uint64", index.size - 8, 1)[0]) if documents else 0
    if last != rows[0].tokens:
        raise refused(index, f"its documents end at token {last} of {rows[0].tokens}")

    def edges(first: int, stop: int) -> Positions:
        ends = read_values(index, "uint64", 8 * max(first - 1, 0), stop - max(first - 1, 0))
        return rising(index, np.concatenate([np.zeros(int(first == 0), np.uint64), ends]), last)

    return TokenFile(file, stated, rows, documents, edges)


def _stated_type(file: FileInfo) -> str | None:
    """The type of the tokens as the metadata beside a file states it; None without metadata."""
    try:
        metadata = storage.stat(f"{file.path}.metadata")
    except SourceError:
        return None
    first, _, _ = storage.read_start(metadata, MAX_METADATA_BYTES).partition(b"\n")
    return {b"2": "uint16", b"4": "uint32"}.get(first.rpartition(b"|")[2].strip())


def _metadata(shard: Shard, tokens: int) -> str:
    """Return the metadata: tokenizer and bytes per token, the count, and the count for humans.

    datatrove's merger splits the first line at its only `|`, and fails if the name is empty.
    """
    tokenizer = "_".join(shard.tokenizer.replace("|", "_").splitlines()) or "unknown"
    return f"{tokenizer}|{np.dtype(shard.dtype).itemsize}\n{tokens}\n{_abbreviate(tokens)}T"


def _abbreviate(count: int) -> str:
    """Return three digits and a prefix, as in `1.23 M`. A count below a thousand has no prefix."""
    power, digit = divmod(len(str(count)) - 1, 3)
    return f"{count / 1000**power:.{2 - digit}f} {'kMGTPE'[power - 1]}" if power else f"{count} "
