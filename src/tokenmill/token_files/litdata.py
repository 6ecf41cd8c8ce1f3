"""litdata: chunks of offsets and documents, as its `TokensLoader` reads them, and an `index.json` for all chunks."""

from __future__ import annotations

import json
import os.path
from collections.abc import Sequence
from typing import Any

import numpy as np

from tokenmill import storage
from tokenmill.storage import FileInfo, Folder
from tokenmill.token_files.files import array, check_fits, damaged, file_size, publish, spans, write_listing
from tokenmill.token_files.protocol import (
    CompletedSplit,
    Content,
    FileLayout,
    FormatSpec,
    ReaderLimits,
    ScriptDefaults,
    Shard,
    ShardData,
    ShardRecord,
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

# Offsets in a chunk are uint32.
MAX_BYTES = (1 << 32) - 1
SPEC = FormatSpec(
    name="litdata",
    trainer="litdata, LitGPT",
    files="chunk-0-0.bin, index.json",
    dtypes=("uint16", "int32", "uint32"),
    cuts=False,
    use='StreamingDataset("{train_folder}", item_loader=TokensLoader(block_size=2049))',
    defaults=ScriptDefaults(end="appended", shard_tokens=16_000_000),
    layout=FileLayout(folders=True, states_type=False),
    limits=ReaderLimits(most_bytes=MAX_BYTES, header_bytes=8, item_bytes=4),
)
# litdata's codes for dtypes. For int32, its TokensLoader accepts only the code of torch's table.
DATA_FORMATS = {"uint16": "no_header_numpy:5", "uint32": "no_header_numpy:6", "int32": "no_header_tensor:16"}

# The codes of what others write: NumPy's table and torch's.
OTHER_FORMATS = {
    **{f"no_header_numpy:{code}": name for code, name in enumerate(("int8", "int16", "int32", "int64", "uint8"))},
    **{f"no_header_tensor:{code}": name for code, name in ((11, "uint8"), (12, "int8"), (13, "int16"), (15, "int32"))},
    **{f"no_header_tensor:{code}": name for code, name in ((17, "int64"), (18, "int64"), (20, "uint16"))},
    "no_header_numpy:7": "uint64",
}

# The smallest chunk size that the index states.
CHUNK_BYTES = 1 << 26


def files(shard: Shard) -> tuple[str, ...]:
    """Return one chunk, named like those of litdata's first worker."""
    return (os.path.join(shard.folder, f"chunk-0-{shard.number}.bin"),)


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write the number of documents, the byte offsets of the documents, and the tokens."""
    name = files(shard)[0]
    documents = len(content.lengths)
    edges = np.full(documents + 1, _first_byte(documents), np.int64)
    edges[1:] += np.cumsum(content.lengths) * np.dtype(shard.dtype).itemsize
    check_fits(folder, name, int(edges[-1]), MAX_BYTES)
    with publish(folder, name) as file:
        file.write_array(np.array([documents], np.uint32))
        file.write_array(edges.astype(np.uint32))
        file.write_tokens(content)
        return (file.written,)


def finish(folder: Folder, split: CompletedSplit) -> tuple[WrittenFile, ...]:
    """Write the index of a split's chunks. Its time is a constant, so that the file is deterministic."""
    records = sorted(split.records, key=lambda record: record.number)
    config = {
        "chunk_bytes": max([CHUNK_BYTES, *(record.files[0].bytes for record in records)]),
        "chunk_size": None,
        "compression": None,
        "data_format": [DATA_FORMATS[split.dtype]],
        "data_spec": '[1, {"type": null, "context": null, "children_spec": []}]',
        "encryption": None,
        "item_loader": "TokensLoader",
    }
    after = f'], "config": {json.dumps(config, sort_keys=True)}, "updated_at": "0"}}'
    name = os.path.join(split.folder, "index.json")
    return (write_listing(folder, name, '{"chunks": [', map(_describe, records), after),)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens and lengths of a chunk. Raises if its offsets do not cover the file."""
    name = names[0]
    size = file_size(folder, name)
    documents = int(array(folder, name, "uint32", 0, 1)[0])
    edges = array(folder, name, "uint32", 4, documents + 1).astype(np.int64)
    first, item = _first_byte(documents), np.dtype(dtype).itemsize
    lengths = spans(folder, name, edges, size)
    if int(edges[0]) != first or bool((lengths % item).any()):
        raise damaged(folder, name, f"its offsets are not those of documents of {dtype} from byte {first} on")
    return ShardData(array(folder, name, dtype, first), lengths // item)


def open_tokens(file: FileInfo, dtype: str = "") -> TokenFile:
    """Open a chunk that anybody wrote, whose items are documents. The `index.json` beside it states the type.

    Raises SourceError if its offsets do not cover the file.
    """
    index = companion(file, os.path.join(os.path.dirname(file.path), "index.json"))
    stated = check_dtype(file, _stated_type(index), dtype)
    documents = int(read_values(file, "uint32", 0, 1)[0])
    first, item = _first_byte(documents), np.dtype(stated).itemsize
    if first > file.size:
        raise refused(file, f"it is no chunk of {documents} items")
    rows = contiguous(file, stated, first)

    def edges(start: int, last: int) -> Positions:
        offsets = read_values(file, "uint32", 4 + 4 * start, last - start + 1).astype(np.int64) - first
        if bool((offsets % item).any()):
            raise refused(file, f"its items are not whole numbers of {stated}")
        return rising(file, offsets // item, rows[0].tokens)

    if (int(edges(0, 0)[0]), int(edges(documents, documents)[0])) != (0, rows[0].tokens):
        raise refused(file, f"its items do not cover its bytes from {first} to {file.size}")
    return TokenFile(file, stated, rows, documents, edges)


def is_chunk(start: bytes) -> bool:
    """Whether the first bytes of a file are those of a chunk."""
    documents, offset = np.frombuffer(start[:8], "<u4") if len(start) >= 8 else (0, 0)
    return int(offset) == _first_byte(int(documents))


def _stated_type(index: FileInfo) -> str:
    """The type of the tokens as the index states it."""
    try:
        config = json.loads(storage.read_start(index, index.size))["config"]
        kinds, compression = list(config["data_format"]), config["compression"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise refused(index, f"it is no index of litdata: {type(error).__name__} {error}") from error
    if compression:
        raise refused(index, f"its chunks are compressed with {compression}", "Write them without compression.")
    known = {code: name for name, code in DATA_FORMATS.items()} | OTHER_FORMATS
    if len(kinds) != 1 or kinds[0] not in known:
        raise refused(index, f"its items are {kinds}, which are not the tokens of documents")
    return known[kinds[0]]


def _first_byte(documents: int) -> int:
    """Return the byte at which the tokens start."""
    return 4 * (documents + 2)


def _describe(record: ShardRecord) -> dict[str, Any]:
    file = record.files[0]
    return {
        "chunk_bytes": file.bytes,
        "chunk_size": record.documents,
        "dim": record.tokens,
        "filename": os.path.basename(file.name),
    }
