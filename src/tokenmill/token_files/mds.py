"""MosaicML Streaming: shards of samples of one length, cut from the token stream, and an `index.json` for all shards.

A sample has a column `tokens`: a NumPy array that is stored with its shape. With a mask, it has `labels` of the same
shape before it: the tokens that are trained on, and -100 for the others.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.storage import FileInfo, Folder
from tokenmill.token_files.files import (
    IGNORED,
    array,
    check_fits,
    damaged,
    file_size,
    join_marks,
    labels,
    publish,
    rechunk,
    spans,
    split_marks,
    write_listing,
)
from tokenmill.token_files.protocol import (
    LABEL,
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
from tokenmill.token_files.token_file import (
    TokenFile,
    TokenRows,
    check_dtype,
    check_size,
    read_bytes,
    read_values,
    refused,
)

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
    mask_reader="a StreamingDataset of your own",
    masks={"labels": ("labels",)},
)
# Values for the `size_limit` of a shard. The first is the default of MosaicML's writer.
LIMITS = (*(1 << power for power in range(26, 32)), MAX_BYTES)

# The names of the column of ids.
ID_COLUMNS = ("tokens", "input_ids")

# Tokens that are packed into samples at a time.
TOKENS_PER_BATCH = 1 << 20

# The name and the type of each column, in the order of MosaicML's writer.
Columns = dict[str, str]


def files(shard: Shard) -> tuple[str, ...]:
    """Return one file of samples."""
    return (os.path.join(shard.folder, f"shard.{shard.number:05d}.mds"),)


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write samples of `sequence_tokens` tokens. The last one may be shorter."""
    name = files(shard)[0]
    length = shard.sequence_tokens or SEQUENCE_TOKENS
    columns = _columns(shard.dtype, shard.mask)
    samples, rest = divmod(content.tokens, length)
    edges = np.arange(samples + 1) * _sample(length, columns).itemsize
    if rest:
        edges = np.append(edges, edges[-1] + _sample(rest, columns).itemsize)
    head_bytes = 4 * (len(edges) + 1)
    config = _config(head_bytes + int(edges[-1]), columns)
    edges += head_bytes + len(config)
    check_fits(folder, name, int(edges[-1]), MAX_BYTES)
    step = max(TOKENS_PER_BATCH // length, 1)
    sizes = [min(step, samples - first) * length for first in range(0, samples, step)]
    with publish(folder, name) as file:
        file.write_array(np.array([len(edges) - 1], np.uint32))
        file.write_array(edges.astype(np.uint32))
        file.write(config)
        dtype = "uint32" if shard.mask else shard.dtype
        for tokens in rechunk(content.batches, [*sizes, rest] if rest else sizes, dtype):
            rows = tokens.reshape(-1, min(length, len(tokens)))
            if shard.mask:
                ids, is_trained = split_marks(rows, shard.dtype)
                file.write_array(_pack({"labels": labels(ids, is_trained), "tokens": ids}, columns))
            else:
                file.write_array(_pack({"tokens": rows}, columns))
        return (file.written,)


def finish(folder: Folder, split: CompletedSplit) -> tuple[WrittenFile, ...]:
    """Write the index of a split's shards, without hashes."""
    length = split.sequence_tokens or SEQUENCE_TOKENS
    records = sorted(split.records, key=lambda record: record.number)
    columns = _columns(split.dtype, split.mask)
    shards = (_describe(record, length, columns) for record in records)
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
    known = [_columns(dtype, mask) for mask in ("", *SPEC.masks)]
    configs = [(_config(head_bytes + size - int(edges[0]), columns), columns) for columns in known]
    fitting = [(config, columns) for config, columns in configs if int(edges[0]) == head_bytes + len(config)]
    described = folder.read(name, int(edges[0]))[head_bytes:] if fitting else b""
    columns = dict(fitting).get(described)
    if columns is None:
        raise damaged(folder, name, f"it does not describe itself as a shard of {dtype}")
    whole = samples - int(samples > 1 and bool(sizes[-1] < sizes[0]))
    blocks = [_unpack(folder, name, part, columns) for part in (edges[: whole + 1], edges[whole:])]
    lengths = np.repeat([block["tokens"].shape[1] for block in blocks], [len(block["tokens"]) for block in blocks])
    values = {column: np.concatenate([block[column].reshape(-1) for block in blocks]) for column in columns}
    tokens = values["tokens"]
    if "labels" in columns:
        is_trained = values["labels"] != IGNORED
        if not np.array_equal(values["labels"], labels(tokens, is_trained)):
            raise damaged(folder, name, "its labels are not those of its tokens")
        tokens = join_marks(tokens, is_trained)
    return ShardData(tokens, lengths)


def open_tokens(file: FileInfo, dtype: str = "") -> TokenFile:
    """Open a shard that anybody wrote: samples of one length, the last one of which may be shorter."""
    samples = int(read_values(file, "uint32", 0, 1)[0])
    edges = read_values(file, "uint32", 4, samples + 1).astype(np.int64)
    check_size(file, int(edges[-1]))
    first_byte = 4 * (samples + 2)
    if bool((np.diff(edges) < 0).any()) or int(edges[0]) < first_byte:
        raise refused(file, f"its offsets do not rise to {file.size}")
    columns = _described_columns(file, read_bytes(file, first_byte, int(edges[0])))
    name = next((name for name in ID_COLUMNS if name in columns), "")
    encoding, _, stated = columns.get(name, ("", None))[0].partition(":")
    stated = stated.partition(":")[0]
    if encoding != "ndarray" or not stated:
        shown = ", ".join(f"{column} ({encoding})" for column, (encoding, _) in columns.items())
        raise refused(file, f"it has no column of ids, which is {' or '.join(ID_COLUMNS)} of a type: {shown}")
    check_dtype(file, stated, dtype)
    whole = samples - int(samples > 1 and bool(edges[-1] - edges[-2] != edges[1] - edges[0]))
    if bool((np.diff(edges[: whole + 1]) != edges[1:2] - edges[:1]).any()):
        raise refused(file, "its samples are not of one length")
    parts = [(start, count) for start, count in ((0, whole), (whole, samples - whole)) if count]
    rows = tuple(_ids_of(file, name, columns, edges[start : start + 2], count) for start, count in parts)
    return TokenFile(file, stated, rows, row_tokens=rows[0].tokens if rows else None)


def _described_columns(file: FileInfo, described: bytes) -> dict[str, tuple[str, int | None]]:
    """The encoding of each column, and its size if it is the same in all samples."""
    try:
        config = json.loads(described)
        fields = (list(config[f"column_{key}"]) for key in ("names", "encodings", "sizes"))
        compression = config["compression"]
        columns = {str(name): (str(encoding), size) for name, encoding, size in zip(*fields, strict=True)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise refused(file, f"it does not describe itself as a shard: {type(error).__name__} {error}") from error
    if compression and file.path.endswith(str(compression).partition(":")[0]):
        raise refused(file, f"it is compressed with {compression}", "Decompress it first.")
    return columns


def _ids_of(
    file: FileInfo, name: str, columns: dict[str, tuple[str, int | None]], edges: npt.NDArray[np.int64], count: int
) -> TokenRows:
    """The ids in `count` samples of the size of the first one, which is between the edges."""
    start, stop = (int(edge) for edge in edges)
    sample = read_bytes(file, start, stop)
    sizes, place = {}, 0
    for column, (_, size) in columns.items():
        sizes[column] = int.from_bytes(sample[place : place + 4], "little") if size is None else size
        place += 4 * (size is None)
    place += sum(sizes[column] for column in list(columns)[: list(columns).index(name)])
    value = sample[place : place + sizes[name]]
    _, dtype, *shape = columns[name][0].split(":")
    head = 0 if shape else 1 + (1 << (value[0] & 3) if value else 0)
    tokens, item = (sizes[name] - head) // np.dtype(dtype).itemsize, np.dtype(dtype).itemsize
    has_shape = bool(shape) or (value[0] >> 2 == 1 and int.from_bytes(value[1:head], "little") == tokens)
    if sum(sizes.values()) + 4 * (len(columns) - sum(size is not None for _, size in columns.values())) != len(sample):
        raise refused(file, f"its first sample of {len(sample)} bytes does not have the sizes that it states")
    if not has_shape or head + tokens * item != sizes[name]:
        raise refused(file, f"its first sample does not hold a vector of {dtype}")
    return TokenRows(start + place + head, count, tokens, stop - start, value[:head])


def _columns(dtype: str, mask: str) -> Columns:
    return {"labels": LABEL, "tokens": dtype} if mask else {"tokens": dtype}


def _sample(length: int, columns: Columns) -> np.dtype[np.void]:
    """Return the layout of a sample: the sizes, and for each column the code of its shape, the length, the values.

    The length has the fewest bytes.
    """
    length_type = np.min_scalar_type(length).newbyteorder("<")
    fields: list[Any] = [(f"size of {name}", "<u4") for name in columns]
    for name, dtype in columns.items():
        fields += [(f"code of {name}", "u1"), (f"length of {name}", length_type)]
        fields += [(name, np.dtype(dtype).newbyteorder("<"), (length,))]
    return np.dtype(fields)


def _head(sample: np.dtype[np.void], columns: Columns) -> dict[str, int]:
    """Return the values of sizes, codes (one dimension, bytes of the length) and lengths."""
    values = {}
    for name in columns:
        width = sample[f"length of {name}"].itemsize
        values[f"size of {name}"] = 1 + width + sample[name].itemsize
        values[f"code of {name}"] = 4 | width.bit_length() - 1
        values[f"length of {name}"] = sample[name].shape[0]
    return values


def _pack(rows: dict[str, Tokens], columns: Columns) -> npt.NDArray[np.void]:
    """Return samples of one length from the rows of an array for each column."""
    count, length = rows["tokens"].shape
    block = np.empty(count, _sample(length, columns))
    for field, value in (_head(block.dtype, columns) | rows).items():
        block[field] = value
    return block


def _unpack(folder: Folder, name: str, edges: npt.NDArray[np.int64], columns: Columns) -> dict[str, Tokens]:
    """Read the samples between edges as rows of an array for each column. Raises if their sizes differ."""
    if len(edges) == 1:
        return {column: np.empty((0, 0), dtype) for column, dtype in columns.items()}
    size = int(edges[1] - edges[0])
    item, widths = sum(np.dtype(dtype).itemsize for dtype in columns.values()), (1, 2, 4) if size < 1 << 31 else ()
    lengths = [(size - len(columns) * (5 + width)) // item for width in widths]
    samples = [_sample(length, columns) for length in lengths if length > 0]
    sample = next((sample for sample in samples if sample.itemsize == size), None)
    if sample is None or bool((np.diff(edges) != size).any()):
        raise damaged(folder, name, "its samples are not of one length")
    block = array(folder, name, "uint8", int(edges[0]), int(edges[-1] - edges[0])).view(sample)
    for field, value in _head(sample, columns).items():
        if bool((block[field] != value).any()):
            raise damaged(folder, name, f"a sample of {size} bytes has another {field} than {value}")
    return {column: block[column] for column in columns}


def _config(other_bytes: int, columns: Columns) -> bytes:
    """Return the JSON description in a shard, given the size of the rest of the file."""
    texts = [json.dumps(_description(limit, columns), sort_keys=True).encode() for limit in LIMITS]
    fitting = [text for text, limit in zip(texts, LIMITS, strict=True) if other_bytes + len(text) <= limit]
    return fitting[0] if fitting else texts[-1]


def _describe(record: ShardRecord, length: int, columns: Columns) -> dict[str, Any]:
    """Return the entry of a shard in the index."""
    file = record.files[0]
    return {
        **_description(next(limit for limit in LIMITS if file.bytes <= limit), columns),
        "raw_data": {"basename": os.path.basename(file.name), "bytes": file.bytes, "hashes": {}},
        "samples": -(-record.tokens // length),
        "zip_data": None,
    }


def _description(limit_bytes: int, columns: Columns) -> dict[str, Any]:
    return {
        "column_encodings": [f"ndarray:{dtype}" for dtype in columns.values()],
        "column_names": list(columns),
        "column_sizes": [None for _ in columns],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": limit_bytes,
        "version": 2,
    }
