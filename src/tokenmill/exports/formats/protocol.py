"""What a format tells of itself, and what passes between an export and the module of its format.

A format is one module: `SPEC`, `files` (the names of a shard's files), `write` (one shard), `finish` (what can only
be written when every shard is there) and `read` (a shard back to tokens). It knows nothing of stores or workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.storage import Folder

Tokens = npt.NDArray[np.integer[Any]]
Split = Literal["train", "val"]
EndTokenPosition = Literal["appended", "prepended"]
Tail = Literal["keep", "drop", "merge"]


@dataclass(frozen=True, slots=True)
class FormatSpec:
    """What a format is for, what its reader takes, and what its own scripts do unless told otherwise.

    `cuts` tells that a document may go on in the next shard, so that shards hold exact counts. `shard_tokens` is None
    where a split is one file, which several workers then fill together. `val` is `first-shard`, a share of the
    documents or nothing. `folders` tells that each split has a directory of its own, if there is more than one;
    `single` that a split is always one file; `numbered_together` that shards are counted through both splits, train
    from 1 on; `named` that a name can be chosen for its files. `most_bytes` is the size of a file that readers can
    address, of which `header_bytes` and `item_bytes` for each document or sequence are not tokens. `use` is how the
    trainer is told of the files, and `use_val` the same where there is a val: templates with the `{directory}`, the
    directory `{train_folder}`, the files `{train}` and `{val}` (a pattern if they are several), their paths without
    endings, one after the other (`{train_prefix}` and `{val_prefix}`), and `{token_bytes}`.
    """

    name: str
    trainer: str
    files: str
    end: EndTokenPosition
    dtypes: tuple[str, ...]
    cuts: bool
    shard_tokens: int | None
    use: str
    use_val: str | None = None
    val: str | None = None
    tail: Tail = "keep"
    folders: bool = False
    single: bool = False
    numbered_together: bool = False
    named: bool = False
    most_bytes: int | None = None
    header_bytes: int = 0
    item_bytes: int = 0
    most_documents: int | None = None
    sequence_tokens: int | None = None
    shortest_shard: str | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard to be written: its place in the export, and what the export's options mean for its files.

    `number` counts within the naming of the format, `position` is the token at which this shard starts in its file (0
    unless it is a `piece` of one that is written in several), `file_tokens` the length of that file.
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
    paths: pa.Array
    is_partial: bool = False
    position: int = 0
    file_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Content:
    """The documents of a shard. The batches hold `lengths.sum()` tokens of the shard's dtype, in order.

    Where the format cuts documents, the first and the last may be pieces of documents. `source` indexes the paths of
    the shard.
    """

    lengths: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]
    batches: Iterator[Tokens]

    @property
    def tokens(self) -> int:
        """How many tokens the batches hold."""
        return int(self.lengths.sum())


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that was written, or a piece of one, and the checksum (XXH3, 128 bits) of those bytes."""

    name: str
    bytes: int
    xxh3: str


class ShardRecord(msgspec.Struct, frozen=True):
    """What is known of a committed shard. `start` is its first token in the stream of documents it is cut from.

    Of its `documents` all but one are `begun` in it if the first began in the shard before, with `cut` tokens.
    `documents_xxh3` is the checksum of where they are from, `export` the digest of the export.
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


@dataclass(frozen=True, slots=True)
class CompletedSplit:
    """A split whose shards are all there, for `finish`.

    `file` is the one file of the split if its shards are pieces of it. `lengths` starts over the lengths of the
    documents, shard by shard, each time it is called.
    """

    folder: str
    dtype: str
    records: Sequence[ShardRecord]
    lengths: Callable[[], Iterator[npt.NDArray[np.int64]]]
    sequence_tokens: int | None = None
    file: str | None = None


@dataclass(frozen=True, slots=True)
class ShardData:
    """A shard as its reader gives it: the token stream, and the documents' lengths where the format knows them."""

    tokens: Tokens
    lengths: npt.NDArray[np.int64] | None = None


class Format(Protocol):
    """A format's module."""

    @property
    def SPEC(self) -> FormatSpec:  # noqa: N802 - a constant of the module
        """What the format is."""

    def files(self, shard: Shard) -> tuple[str, ...]:
        """The names of a shard's files in the export's directory, the one with the tokens first."""

    def write(self, folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
        """Publish the files of one shard."""

    def finish(self, folder: Folder, split: CompletedSplit) -> tuple[WrittenFile, ...]:
        """Publish what needs all shards of a split; nothing for most formats."""

    def read(self, folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
        """Read a shard's files (as `files` names them) back."""
