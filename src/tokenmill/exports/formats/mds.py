"""MosaicML Streaming: shards of samples of one length, cut from the token stream, and an `index.json` for all shards.

A sample has one column, `tokens`: a NumPy array that is stored with its shape.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.exports.formats.files import (
    array,
    check_fits,
    damaged,
    file_size,
    publish,
    rechunk,
    spans,
    write_listing,
)
from tokenmill.exports.formats.protocol import (
    CompletedSplit,
    Content,
    FileLayout,
    FormatSpec,
    ReaderLimits,
    ScriptDefaults,
    Shard,
    ShardData,
    ShardRecord,
    Tokens,
    WrittenFile,
)
from tokenmill.storage import Folder

# Offsets in a shard are uint32.
MAX_BYTES = (1 << 32) - 1

# The default length of a sample.
SEQUENCE_TOKENS = 2048

SPEC = FormatSpec(
    name="mds",
    trainer="MosaicML Streaming, llm-foundry",
    files="shard.00000.mds, index.json",
    dtypes=("uint16", "int32", "uint32"),
    cuts=True,
    use='StreamingDataset(local="{train_folder}", batch_size=8)',
    defaults=ScriptDefaults(end="appended", shard_tokens=8_388_608, tail="drop", sequence_tokens=SEQUENCE_TOKENS),
    layout=FileLayout(folders=True),
    limits=ReaderLimits(most_bytes=MAX_BYTES, item_bytes=13),
)
# Values for the `size_limit` of a shard. The first is the default of MosaicML's writer.
LIMITS = (*(1 << power for power in range(26, 32)), MAX_BYTES)

# Tokens that are packed into samples at a time.
TOKENS_PER_BATCH = 1 << 20


def files(shard: Shard) -> tuple[str, ...]:
    """Return one file of samples."""
    return (os.path.join(shard.folder, f"shard.{shard.number:05d}.mds"),)


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write samples of `sequence_tokens` tokens. The last one may be shorter."""
    name = files(shard)[0]
    length = shard.sequence_tokens or SEQUENCE_TOKENS
    samples, rest = divmod(content.tokens, length)
    edges = np.arange(samples + 1) * _sample(length, shard.dtype).itemsize
    if rest:
        edges = np.append(edges, edges[-1] + _sample(rest, shard.dtype).itemsize)
    head_bytes = 4 * (len(edges) + 1)
    config = _config(head_bytes + int(edges[-1]), shard.dtype)
    edges += head_bytes + len(config)
    check_fits(folder, name, int(edges[-1]), MAX_BYTES)
    step = max(TOKENS_PER_BATCH // length, 1)
    sizes = [min(step, samples - first) * length for first in range(0, samples, step)]
    with publish(folder, name) as file:
        file.write_array(np.array([len(edges) - 1], np.uint32))
        file.write_array(edges.astype(np.uint32))
        file.write(config)
        for tokens in rechunk(content.batches, [*sizes, rest] if rest else sizes, shard.dtype):
            file.write_array(_pack(tokens.reshape(-1, min(length, len(tokens))), shard.dtype))
        return (file.written,)


def finish(folder: Folder, split: CompletedSplit) -> tuple[WrittenFile, ...]:
    """Write the index of a split's shards, without hashes."""
    length = split.sequence_tokens or SEQUENCE_TOKENS
    records = sorted(split.records, key=lambda record: record.number)
    shards = (_describe(record, length, split.dtype) for record in records)
    name = os.path.join(split.folder, "index.json")
    return (write_listing(folder, name, '{"shards": [', shards, '], "version": 2}'),)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens and lengths of a shard's samples. Raises if `write` would not write such a file."""
    name = names[0]
    size = file_size(folder, name)
    samples = int(array(folder, name, "uint32", 0, 1)[0])
    edges = array(folder, name, "uint32", 4, samples + 1).astype(np.int64)
    sizes = spans(folder, name, edges, size)
    head_bytes = 4 * (samples + 2)
    config = _config(head_bytes + size - int(edges[0]), dtype)
    if int(edges[0]) != head_bytes + len(config) or folder.read(name, int(edges[0]))[head_bytes:] != config:
        raise damaged(folder, name, f"it does not describe itself as a shard of {dtype}")
    whole = samples - int(samples > 1 and bool(sizes[-1] < sizes[0]))
    blocks = [_unpack(folder, name, part, dtype) for part in (edges[: whole + 1], edges[whole:])]
    lengths = np.repeat([block.shape[1] for block in blocks], [len(block) for block in blocks])
    return ShardData(np.concatenate([block.reshape(-1) for block in blocks]), lengths)


def _sample(length: int, dtype: str) -> np.dtype[np.void]:
    """Return the layout of a sample: its size, the code of its shape, the length in the fewest bytes, the values."""
    length_type, values = (kind.newbyteorder("<") for kind in (np.min_scalar_type(length), np.dtype(dtype)))
    return np.dtype([("size", "<u4"), ("code", "u1"), ("length", length_type), ("tokens", values, (length,))])


def _head(sample: np.dtype[np.void]) -> tuple[int, int, int]:
    """Return the values of size, code (one dimension, bytes of the length) and length."""
    return sample.itemsize - 4, 4 | sample["length"].itemsize.bit_length() - 1, sample["tokens"].shape[0]


def _pack(tokens: Tokens, dtype: str) -> npt.NDArray[np.void]:
    """Return samples of one length from the rows of an array."""
    block = np.empty(len(tokens), _sample(tokens.shape[1], dtype))
    block["size"], block["code"], block["length"] = _head(block.dtype)
    block["tokens"] = tokens
    return block


def _unpack(folder: Folder, name: str, edges: npt.NDArray[np.int64], dtype: str) -> Tokens:
    """Read the samples between edges as rows of an array. Raises if their sizes differ."""
    if len(edges) == 1:
        return np.empty((0, 0), dtype)
    size = int(edges[1] - edges[0])
    lengths = [(size - 5 - width) // np.dtype(dtype).itemsize for width in (1, 2, 4)] if size < 1 << 31 else []
    samples = [_sample(length, dtype) for length in lengths if length > 0]
    sample = next((sample for sample in samples if sample.itemsize == size), None)
    if sample is None or bool((np.diff(edges) != size).any()):
        raise damaged(folder, name, "its samples are not of one length")
    block = array(folder, name, "uint8", int(edges[0]), int(edges[-1] - edges[0])).view(sample)
    for field, value in zip(("size", "code", "length"), _head(sample), strict=True):
        if bool((block[field] != value).any()):
            raise damaged(folder, name, f"a sample of {size} bytes has another {field} than {value}")
    tokens: Tokens = block["tokens"]
    return tokens


def _config(other_bytes: int, dtype: str) -> bytes:
    """Return the JSON description in a shard, given the size of the rest of the file."""
    texts = [json.dumps(_description(limit, dtype), sort_keys=True).encode() for limit in LIMITS]
    fitting = [text for text, limit in zip(texts, LIMITS, strict=True) if other_bytes + len(text) <= limit]
    return fitting[0] if fitting else texts[-1]


def _describe(record: ShardRecord, length: int, dtype: str) -> dict[str, Any]:
    """Return the entry of a shard in the index."""
    file = record.files[0]
    return {
        **_description(next(limit for limit in LIMITS if file.bytes <= limit), dtype),
        "raw_data": {"basename": os.path.basename(file.name), "bytes": file.bytes, "hashes": {}},
        "samples": -(-record.tokens // length),
        "zip_data": None,
    }


def _description(limit_bytes: int, dtype: str) -> dict[str, Any]:
    return {
        "column_encodings": [f"ndarray:{dtype}"],
        "column_names": ["tokens"],
        "column_sizes": [None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": limit_bytes,
        "version": 2,
    }
