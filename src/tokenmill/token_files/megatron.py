"""Megatron-LM: the tokens of a split in a `.bin`, the lengths and offsets of its documents in an `.idx`.

With labels there is a second pair, as GPT-NeoX reads it: a label for each token, not shifted, and the same documents.
Workers write regions of the `.bin`. The `.idx` needs all lengths, so it is written last, in three passes over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tokenmill.errors import StoreError
from tokenmill.storage import FileInfo, Folder
from tokenmill.token_files.files import (
    IGNORED,
    array,
    damaged,
    file_size,
    join_marks,
    publish,
    write_masked,
    write_raw,
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
    WrittenFile,
)
from tokenmill.token_files.token_file import (
    Positions,
    TokenFile,
    check_dtype,
    check_size,
    companion,
    contiguous,
    read_bytes,
    read_values,
    refused,
    rising,
)

SPEC = FormatSpec(
    name="megatron",
    trainer="Megatron-LM, NeMo, MaxText",
    files="train_text_document.bin, train_text_document.idx",
    dtypes=("uint16", "int32"),
    cuts=False,
    use="--data-path {train_prefix} --split 99,1,0",
    use_val="--train-data-path {train_prefix} --valid-data-path {val_prefix}",
    use_mask='"train_data_paths": {train_prefixes}, "train_label_data_paths": {mask_prefixes}',
    mask_reader="GPT-NeoX",
    defaults=ScriptDefaults(end="appended", shard_tokens=None),
    layout=FileLayout(named=True),
    limits=ReaderLimits(most_documents=(1 << 31) - 1),
    masks={"labels": ()},
)
# Magic number and version of an index.
NAME = b"MMIDIDX\0\0"
MAGIC = NAME + (1).to_bytes(8, "little")

# Megatron's codes for dtypes.
CODES = {"uint16": 8, "int32": 4}

# The others, which no export has.
OTHER_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int64": 5, "float64": 6, "float32": 7}

# The ending of an index.
INDEX = ".idx"

# Magic number, version, dtype, and two counts.
HEADER_BYTES = 34

# Lengths are int32.
MAX_TOKENS = (1 << 31) - 1

Lengths = npt.NDArray[np.int64]


def files(shard: Shard) -> tuple[str, ...]:
    """Return the pair of files of a split, or of a shard if a split has several. With labels: both `.bin`, both `.idx`.

    The labels are named as GPT-NeoX's script for chats names them.
    """
    prefix = f"{shard.name}_" if shard.name else ""
    number = "" if shard.region is not None else f"_{shard.number:06d}"
    kinds = ("text", "text_label") if shard.mask else ("text",)
    stems = [f"{prefix}{shard.split}{number}_{kind}_document" for kind in kinds]
    return (*(f"{stem}.bin" for stem in stems), *(f"{stem}.idx" for stem in stems))


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write the tokens, their labels and the indexes. For a region of a file, `finish` writes the indexes."""
    names = files(shard)
    if shard.mask:
        written = write_masked(folder, names[0], names[1], shard, content)
    else:
        written = (write_raw(folder, names[0], shard, content),)
    if shard.region is None:
        documents = len(content.lengths)
        for file, dtype in zip(written, (shard.dtype, LABEL), strict=False):
            written += (_write_index(folder, file.name, dtype, documents, lambda: iter([content.lengths])),)
    return written


def finish(folder: Folder, split: CompletedSplit) -> tuple[WrittenFile, ...]:
    """Write the indexes of a split that is one file, or one of tokens and one of labels."""
    if split.file is None:
        return ()
    documents = sum(record.documents for record in split.records)
    pairs = zip(split.records[0].files, (split.dtype, LABEL), strict=False)
    return tuple(_write_index(folder, file.name, dtype, documents, split.lengths) for file, dtype in pairs)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens and lengths of a pair, and its labels. Raises if a value of an index does not match them.

    The labels only tell which tokens are trained on: an erasure that was killed may have changed one file of the two.
    """
    pairs = list(zip(names[: len(names) // 2], names[len(names) // 2 :], (dtype, LABEL), strict=False))
    tokens, *others = (_read_pair(folder, *pair) for pair in pairs)
    if not others:
        return tokens
    (labels,) = others
    if not np.array_equal(tokens.lengths, labels.lengths):  # type: ignore[arg-type]
        raise damaged(folder, pairs[1][1], "its documents are not those of the tokens")
    return ShardData(join_marks(tokens.tokens, labels.tokens != IGNORED), tokens.lengths)


def open_tokens(file: FileInfo, dtype: str = "") -> TokenFile:
    """Open a `.bin` with its index that anybody wrote: a document is one sequence or several.

    Raises SourceError if the index does not describe all of the file, or its sequences do not follow each other.
    """
    index = companion(file, index_name(file.path))
    header = read_bytes(index, 0, HEADER_BYTES)
    if not header.startswith(MAGIC):
        is_other = header.startswith(NAME)
        raise refused(index, "it is an index of another version than 1" if is_other else "it is no index of Megatron")
    code = header[len(MAGIC)]
    stated = next((name for name, known in (CODES | OTHER_CODES).items() if known == code), f"the unknown code {code}")
    check_dtype(index, stated, dtype)
    sequences, entries = (int(count) for count in np.frombuffer(header[18:], "<u8"))
    check_size(index, HEADER_BYTES + 12 * sequences + 8 * entries)
    rows, item = contiguous(file, stated), np.dtype(stated).itemsize
    at_pointers, at_order = HEADER_BYTES + 4 * sequences, HEADER_BYTES + 12 * sequences
    order = [int(read_values(index, "int64", at_order + 8 * place, 1)[0]) for place in {0, entries - 1} if entries]
    if not order or sorted(order) != sorted({0, sequences} if entries > 1 else {0}) or (entries == 1 and sequences):
        raise refused(index, f"its documents do not cover its {sequences} sequences")

    def starts(first: int, last: int) -> Positions:
        """The positions at which sequences first to last start."""
        lengths = read_values(index, "int32", HEADER_BYTES + 4 * first, last - first).astype(np.int64)
        pointers = read_values(index, "int64", at_pointers + 8 * first, min(last + 1, sequences) - first)
        if last == sequences:
            pointers = np.append(pointers, file.size)
        if bool((lengths < 0).any()) or not np.array_equal(np.diff(pointers), lengths * item):
            raise refused(index, f"its sequences do not follow each other up to byte {file.size} of the tokens")
        if bool((pointers % item).any()):
            raise refused(index, f"its offsets are not those of values of {stated}")
        return rising(index, pointers // item, rows[0].tokens)

    def edges(first: int, last: int) -> Positions:
        numbers = rising(index, read_values(index, "int64", at_order + 8 * first, last - first + 1), sequences)
        positions: Positions = starts(int(numbers[0]), int(numbers[-1]))[numbers - numbers[0]]
        return positions

    if int(starts(0, min(1, sequences))[0]) != 0:
        raise refused(index, "its first sequence does not start at the first token")
    starts(max(sequences - 1, 0), sequences)
    return TokenFile(file, stated, rows, entries - 1, edges)


def index_name(name: str) -> str:
    """The name of the index of a `.bin`."""
    return f"{name.removesuffix('.bin')}{INDEX}"


def _read_pair(folder: Folder, name: str, index: str, dtype: str) -> ShardData:
    tokens = array(folder, name, dtype)
    size = file_size(folder, index)
    documents = int.from_bytes(folder.read(index, HEADER_BYTES)[18:26], "little")
    if folder.read(index, HEADER_BYTES) != _header(documents, dtype):
        raise damaged(folder, index, f"its header does not state whole documents of {dtype}")
    if size != HEADER_BYTES + documents * 20 + 8:
        raise damaged(folder, index, f"it has {size} bytes, not those of {documents} documents")
    lengths = array(folder, index, "int32", HEADER_BYTES, documents).astype(np.int64)
    if bool((lengths < 0).any()) or int(lengths.sum()) != len(tokens):
        raise damaged(folder, index, f"its lengths do not sum up to the {len(tokens)} tokens of {name}")
    pointers = array(folder, index, "int64", HEADER_BYTES + 4 * documents, documents)
    order = array(folder, index, "int64", HEADER_BYTES + 12 * documents, documents + 1)
    starts = (np.cumsum(lengths) - lengths) * tokens.dtype.itemsize
    if not np.array_equal(pointers, starts) or not np.array_equal(order, np.arange(documents + 1)):
        raise damaged(folder, index, "its documents do not follow each other")
    return ShardData(tokens, lengths)


def _header(documents: int, dtype: str) -> bytes:
    """Return the header of an index with one sequence for each document."""
    counts = documents.to_bytes(8, "little") + (documents + 1 & (1 << 64) - 1).to_bytes(8, "little")
    return MAGIC + bytes([CODES[dtype]]) + counts


def _write_index(
    folder: Folder, values: str, dtype: str, documents: int, lengths: Callable[[], Iterator[Lengths]]
) -> WrittenFile:
    """Write the index of a `.bin` with the lengths of only one shard in memory at a time."""
    name, item = index_name(values), np.dtype(dtype).itemsize
    with publish(folder, name) as file:
        file.write(_header(documents, dtype))
        count = 0
        for batch in lengths():
            if len(batch) and int(batch.max()) > MAX_TOKENS:
                raise StoreError(f"a document of {int(batch.max())} tokens is too long for {folder.path(name)}")
            file.write_array(batch.astype("<i4"))
            count += len(batch)
        if count != documents:
            raise StoreError(
                f"cannot write {folder.path(name)}", f"{count} documents were written, {documents} were expected"
            )
        start = 0
        for batch in lengths():
            ends = np.cumsum(batch)
            file.write_array((ends - batch + start) * item)
            start += int(batch.sum())
        count = 0
        for batch in lengths():
            file.write_array(np.arange(count, count + len(batch)))
            count += len(batch)
        file.write_array(np.array([documents]))
        return file.written
