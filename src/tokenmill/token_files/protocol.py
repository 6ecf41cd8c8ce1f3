"""The interface of a format's module, and the records that an export exchanges with it.

A format is one module: `SPEC`, `files` (the names of a shard's files), `write` (one shard), `finish` (files that need
every shard) and `read` (a shard back to tokens). It depends on neither stores nor workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.choices import EndTokenPosition, Tail
from tokenmill.humanize import Readable
from tokenmill.storage import Folder

Tokens = npt.NDArray[np.integer[Any]]
Split = Literal["train", "val"]

ColumnType = Literal["string", "int64", "float64", "bool"]
# The types of the kept columns in an export.
COLUMN_TYPES: dict[ColumnType, pa.DataType] = {
    "string": pa.large_string(),
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
}


class ExportedColumn(msgspec.Struct, frozen=True):
    """A kept column in the files of an export."""

    name: str
    type: ColumnType


@dataclass(frozen=True, slots=True, repr=False)
class ScriptDefaults(Readable):
    """The defaults of an export: what the trainer's own script does.

    Attributes:
        end: Where the end token stands.
        shard_tokens: Tokens per shard. None if a split is one file, of which workers write regions.
        val: The default of `--val`: `first-shard`, a fraction of the documents, or None.
        tail: What becomes of the last tokens of a split if they do not fill a shard.
        sequence_tokens: Tokens of a sequence, if the format has sequences of one length.
        columns: The columns, that of the tokens first, if the format has columns.
    """

    end: EndTokenPosition
    shard_tokens: int | None
    val: str | None = None
    tail: Tail = "keep"
    sequence_tokens: int | None = None
    columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class FileLayout(Readable):
    """How the files of an export are arranged and named.

    Attributes:
        folders: Each split has its own directory, if there are two.
        single: A split is always one file.
        numbered_together: Shards are numbered through both splits, and train starts at 1 or later.
        val_last: Shards are numbered through both splits, and the last one is the validation split.
        named: `--name` is allowed.
        states_type: The files of a shard state the type of its tokens. They cannot be read as another one.
        states_length: They state how many tokens there are. A file that was cut off is noticed.
    """

    folders: bool = False
    single: bool = False
    numbered_together: bool = False
    val_last: bool = False
    named: bool = False
    states_type: bool = True
    states_length: bool = True


@dataclass(frozen=True, slots=True, repr=False)
class ReaderLimits(Readable):
    """The largest and smallest files that the trainer's readers accept, and the numbers that decide a file's size.

    Attributes:
        most_bytes: The largest file that readers can address.
        header_bytes: Bytes of a file before its items and tokens.
        item_bytes: Bytes for each document or sequence, in addition to its tokens.
        most_documents: The largest number of documents that readers can address in a file.
        shortest_shard: The trainer stops at shards with less than this, as text for a notice.
    """

    most_bytes: int | None = None
    header_bytes: int = 0
    item_bytes: int = 0
    most_documents: int | None = None
    shortest_shard: str | None = None


@dataclass(frozen=True, slots=True, repr=False)
class FormatSpec(Readable):
    """The trainer of a format, the files that its readers accept, and the defaults of the trainer's own scripts.

    Attributes:
        cuts: A document may continue in the next shard, so shards have exactly the planned tokens.
        is_text: The files hold the text of documents instead of their tokens.
        use: How to point the trainer at the files: a template with `{directory}`, `{train_folder}`, `{train}` and
            `{val}` (a file, or a pattern for several), `{train_prefix}` and `{val_prefix}` (paths without extensions,
            separated by spaces), and `{token_bytes}`.
        use_val: The same for an export with a validation split.
        use_mask: The same for an export with a mask, if the mask has files of its own, whose pattern is `{mask}`, and
            whose paths without extensions are the list `{mask_prefixes}`. Those of the tokens are `{train_prefixes}`.
        mask_reader: The only program that reads the mask, if the trainers ignore it. Such a mask must be asked for.
        use_packed: The same for rows of whole documents with a loss mask, of at most `{row_tokens}` tokens. None if the
            format has no such rows.
        masks: How the files can tell which tokens are trained on (`labels`, `weights`, or a file for the `mask`), and
            the columns that tell it.
    """

    name: str
    trainer: str
    files: str
    dtypes: tuple[str, ...]
    cuts: bool
    use: str
    defaults: ScriptDefaults
    is_text: bool = False
    use_val: str | None = None
    use_mask: str | None = None
    mask_reader: str = ""
    use_packed: str | None = None
    layout: FileLayout = FileLayout()
    limits: ReaderLimits = ReaderLimits()
    masks: Mapping[str, tuple[str, ...]] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class FileRegion:
    """A region of a file that several workers write: `position` is its first token, of `file_tokens` in the file."""

    position: int
    file_tokens: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard to be written: its position in the export, and the options of the export that its files depend on.

    `number` is the number in the file name. `region` is set if the shard is not a file of its own. `mask` is how the
    files tell which tokens are trained on, one of the format's masks; empty if they do not. With `row_tokens`, the
    documents follow each other as `best_fit.whole_rows` packs them, and a row ends where the next one does not fit.
    """

    number: int
    count: int
    split: Split
    folder: str
    name: str
    dtype: str
    tokenizer: str
    shuffled: bool
    sequence_tokens: int | None
    columns: str
    paths: pa.Array
    region: FileRegion | None = None
    with_columns: tuple[ExportedColumn, ...] = ()
    mask: str = ""
    row_tokens: int | None = None


LABEL = "int32"
"""The type of labels. Files of them that several workers write have one for each token."""

UNTRAINED = np.uint32(1 << 31)
"""What is added to a token that is not trained on. No vocabulary is that large."""


def no_text(start: int, stop: int) -> pa.LargeStringArray:
    """The text of documents [start, stop) if the format has none."""
    del start, stop
    return pa.array([], pa.large_string())


def no_columns(start: int, stop: int) -> pa.Table:
    """The kept columns of documents [start, stop) if an export has none."""
    del start, stop
    return pa.table({})


@dataclass(frozen=True, slots=True)
class Content:
    """The documents of a shard. The batches hold `lengths.sum()` tokens of the shard's dtype, in order.

    If the shard has a mask, they are of uint32, and UNTRAINED is added to each token that is not trained on.

    If the format cuts documents, the first and the last may be parts of documents. `source` indexes the paths of the
    shard. `columns` returns the kept columns of documents [start, stop) of the shard, and `text` their text: it is
    called for all documents in order, and takes the tokens from the batches.
    """

    lengths: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]
    batches: Iterator[Tokens]
    columns: Callable[[int, int], pa.Table] = no_columns
    text: Callable[[int, int], pa.LargeStringArray] = no_text

    @property
    def tokens(self) -> int:
        """The number of tokens in the batches."""
        return int(self.lengths.sum())


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that was written, or a region of one, and the checksum (XXH3, 128 bits) of those bytes."""

    name: str
    bytes: int
    xxh3: str


class ShardRecord(msgspec.Struct, frozen=True):
    """The counts and checksums of a committed shard. `start` is its first token in its stream of documents.

    `documents` counts all documents with tokens in the shard, `begun` those that start in it. `cut` is the number of
    tokens of the first document in earlier shards. `long_documents` with `long_tokens` tokens were left out, because
    they are longer than a row. `documents_xxh3` is the checksum of the documents' lengths and
    origins, `export` the digest of the export. `control_tokens` were spelled in a shard of text.
    """

    shard: int
    split: str
    number: int
    start: int
    documents: int
    tokens: int
    files: tuple[WrittenFile, ...]
    begun: int = 0
    cut: int = 0
    export: str = ""
    documents_xxh3: str = ""
    long_documents: int = 0
    long_tokens: int = 0
    control_tokens: int = 0


@dataclass(frozen=True, slots=True)
class CompletedSplit:
    """A split whose shards are all committed, for `finish`.

    `file` is the file of the split if its shards are regions of one file, `mask` that of all shards. Each call of
    `lengths` iterates over the lengths of the documents from the first shard on.
    """

    folder: str
    dtype: str
    records: Sequence[ShardRecord]
    lengths: Callable[[], Iterator[npt.NDArray[np.int64]]]
    sequence_tokens: int | None = None
    file: str | None = None
    mask: str = ""


@dataclass(frozen=True, slots=True)
class ShardData:
    """A shard that was read: the token stream, and the lengths and kept columns of documents if the format has them.

    The tokens of a shard with a mask are as in `Content`. A shard of text has `text`, and no tokens.
    """

    tokens: Tokens
    lengths: npt.NDArray[np.int64] | None = None
    columns: pa.Table | None = None
    text: pa.LargeStringArray | None = None


class Format(Protocol):
    """A format's module."""

    @property
    def SPEC(self) -> FormatSpec:  # noqa: N802 - a constant of the module
        """The description of the format."""

    def files(self, shard: Shard) -> tuple[str, ...]:
        """Return the names of a shard's files in the export's directory, the one with the tokens first."""

    def write(self, folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
        """Publish the files of one shard."""

    def finish(self, folder: Folder, split: CompletedSplit) -> tuple[WrittenFile, ...]:
        """Publish the files that need all shards of a split. Most formats have none."""

    def read(self, folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
        """Read a shard's files (as `files` names them) back."""
