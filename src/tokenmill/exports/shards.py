"""Plan the shards of an export: arithmetic on counts, from blocks of documents to ranges of token streams.

The stream of a document, and its position in a shuffle, follow from a hash of its source and row.
A block is the smallest unit that is read whole: a part, or a range of keys of a shuffle. A stream is a sequence of
documents over the blocks: the training documents, or the validation documents.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, UsageError
from tokenmill.exports.file_checks import WRITE_AGAIN, damaged, publish_checked, read_checked
from tokenmill.exports.job import FIRST_SHARD, MAX_TOKENS, PLAN, ExportJob, FrozenExport, Selection
from tokenmill.storage import Folder
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store.held_out import HeldOut
from tokenmill.token_files.protocol import LABEL, FormatSpec, Split
from tokenmill.tokenization import document_hash

# Tokens per shard where a split is one file: a worker writes one region of the file at a time.
REGION_TOKENS = 64_000_000

# Numbers of the streams.
TRAIN, VAL = 0, 1

# Metadata keys of the plan: the tokens in no shard, and the checksum of the table.
_SKIPPED_KEY = b"tokenmill.left_out"
_CHECKSUM_KEY = b"tokenmill.plan"

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Blocks:
    """The number of documents and tokens of each block, one row for each stream."""

    documents: Counts
    tokens: Counts

    def ends(self, stream: int) -> Counts:
        """Return the token at which each block of a stream ends."""
        return np.cumsum(self.tokens[stream])

    def total(self, stream: int) -> int:
        """Return the tokens of a stream."""
        return int(self.tokens[stream].sum())

    def slice(self, start: int, stop: int) -> Blocks:
        """Return blocks [start, stop)."""
        return Blocks(self.documents[:, start:stop], self.tokens[:, start:stop])


class ShardTask(msgspec.Struct, frozen=True):
    """One shard as it is sent to a worker: tokens [start, stop) of a stream, which are in blocks [first, last].

    `before` is the number of tokens before the first of these blocks. `final` means that the stream ends with this
    shard. `position` is the token at which the shard starts in its file of `file_tokens` tokens.
    """

    shard: int
    split: Split
    stream: int
    number: int
    count: int
    start: int
    stop: int
    final: bool
    first_block: int
    last_block: int
    before: int
    position: int
    file_tokens: int

    @property
    def tokens(self) -> int:
        """The number of tokens in the shard."""
        return self.stop - self.start


_COLUMN_TYPES = {int: pa.int64(), bool: pa.bool_(), Split: pa.string()}

SCHEMA = pa.schema([(field.name, _COLUMN_TYPES[field.type]) for field in msgspec.structs.fields(ShardTask)])

# Moves positions of a stream to the next starts of documents.
ToEdges = Callable[[int, Counts], Counts]


def plan(job: ExportJob, spec: FormatSpec, blocks: Blocks, resolve: ToEdges, store_blocks: Sequence[int]) -> pa.Table:
    """Return one row for each shard. `resolve` moves the edges to document starts, unless the format cuts documents.

    `store_blocks` is the number of blocks of each store. No shard holds documents of two stores, unless they are
    shuffled or the validation split is one file. So the shards of a store stay the same when a store is added after it.
    """
    rows: list[dict[str, Any]] = []
    dropped: Counter[str] = Counter()
    numbered: Counter[str] = Counter()
    is_whole = joins_stores(spec, job.shuffle, job.shard_tokens)
    first_block, before = 0, np.zeros(len(blocks.tokens), np.int64)
    for count in [blocks.tokens.shape[1]] if is_whole else store_blocks:
        own = blocks.slice(first_block, first_block + count)
        for split, stream, start, stop in _ranges(job, own, with_first_shard=not rows):
            is_one = spec.layout.val_last and split == "val"
            edges = np.array([start, stop], np.int64) if is_one else _edges(job, start, stop)
            if not spec.cuts:
                edges = resolve(stream, edges + before[stream]) - before[stream]
            end = max(int(edges[-1]), stop)
            edges = _with_tail(job, edges, partial=(stop - start) % tokens_per_shard(job) != 0)
            dropped[split] += end - int(edges[-1])
            series, first = ("", int(split == "train")) if spec.layout.numbered_together else (split, 0)
            columns = _rows(split, stream, edges, own)
            columns["number"] = np.arange(len(edges) - 1) + max(numbered[series], first)
            numbered[series] = max(numbered[series], first) + len(edges) - 1
            for name in ("start", "stop", "before"):
                columns[name] = columns[name] + before[stream]
            for name in ("first_block", "last_block"):
                columns[name] = columns[name] + first_block
            rows.append(columns)
        first_block, before = first_block + count, before + own.tokens.sum(axis=1)
    shards = _numbered(rows, val_last=spec.layout.val_last)
    _check_sizes(job, spec, shards, blocks)
    return shards.replace_schema_metadata({_SKIPPED_KEY: msgspec.json.encode(dropped)})


def joins_stores(spec: FormatSpec, shuffle: int | None, shard_tokens: int | None) -> bool:
    """Whether a shard may hold documents of several stores."""
    return shuffle is not None or shard_tokens is None or spec.layout.val_last


def _numbered(rows: list[dict[str, Any]], *, val_last: bool) -> pa.Table:
    """The table of all shards, with the number of each and the number of shards in its split."""
    counts = Counter(split for columns in rows for split in columns["split"])
    tables: list[pa.Table] = []
    shard = 0
    for columns in rows:
        length = len(columns["split"])
        columns["shard"] = np.arange(shard, shard + length)
        if val_last and "val" in columns["split"]:
            columns["number"] = columns["number"] + counts["train"]
        columns["count"] = np.array([counts[split] for split in columns["split"]], np.int64)
        tables.append(pa.table(columns, schema=SCHEMA))
        shard += length
    return pa.concat_tables(tables) if tables else SCHEMA.empty_table()


def publish_plan(folder: Folder, plan: pa.Table, work: str) -> None:
    """Publish the plan of an export with this work digest."""
    publish_checked(folder, PLAN, plan, _CHECKSUM_KEY, work)


def read_export_plan(folder: Folder, frozen: FrozenExport) -> pa.Table:
    """The plan of an export, without the check that needs the counts of its stores."""
    return read_plan(folder, frozen.work_digest(), MAX_TOKENS, MAX_TOKENS)


def read_plan(folder: Folder, work: str, tokens: int, blocks: int) -> pa.Table:
    """Read a published plan, and check that its shards are ranges of this many tokens and blocks."""
    plan = read_checked(folder, PLAN, SCHEMA, _CHECKSUM_KEY, work)
    column = {field.name: plan[field.name].to_numpy() for field in SCHEMA}
    is_valid = (
        np.array_equal(column["shard"], np.arange(len(plan)))
        and set(plan["split"].unique().to_pylist()) <= {"train", "val"}
        and all(bool((column[name] >= 0).all()) for name in ("number", "start", "before", "first_block", "position"))
        and bool((np.isin(column["stream"], (TRAIN, VAL))).all())
        and bool((column["start"] <= column["stop"]).all() and (column["stop"] <= tokens).all())
        and bool((column["before"] <= column["start"]).all())
        and bool((column["last_block"] < blocks).all() and (column["count"] <= len(plan)).all())
        and bool((column["position"] + (column["stop"] - column["start"]) <= column["file_tokens"]).all())
        and bool((column["position"] <= tokens).all() and (column["file_tokens"] <= tokens).all())
    )
    if not is_valid:
        raise damaged(folder, PLAN, "its shards are not ranges of the store")
    return plan


def skipped_tokens(shards: pa.Table) -> dict[str, int]:
    """Return how many tokens at the end of each split are in no shard because of `--tail drop`."""
    try:
        return decode((shards.schema.metadata or {}).get(_SKIPPED_KEY, b""), dict[str, int])
    except MalformedDataError as damage:
        raise CorruptStore("the plan of an export is damaged", f"reason       {damage}", WRITE_AGAIN) from damage


def tasks(shards: pa.Table, wanted: Iterable[int]) -> Iterator[ShardTask]:
    """Yield the tasks of the shards with these numbers."""
    for row in map(int, wanted):
        yield ShardTask(**shards.slice(row, 1).to_pylist()[0])


def tokens_per_shard(job: ExportJob) -> int:
    """Return the planned tokens per shard: a multiple of the sequence length, if there is one."""
    tokens = job.shard_tokens if job.shard_tokens is not None else REGION_TOKENS
    return tokens - tokens % job.sequence_tokens if job.sequence_tokens else tokens


def _ranges(job: ExportJob, blocks: Blocks, *, with_first_shard: bool) -> Iterator[tuple[Split, int, int, int]]:
    """Yield each split that is not empty: its name, its stream, and its range of tokens there.

    Without `with_first_shard`, an earlier store has the first shard.
    """
    total = blocks.total(TRAIN)
    if job.val == FIRST_SHARD and job.val_tokens is not None and total and with_first_shard:
        yield "val", TRAIN, 0, job.val_tokens
        yield "train", TRAIN, job.val_tokens, total
        return
    if job.holds_out and blocks.total(VAL):
        yield "val", VAL, 0, blocks.total(VAL)
    if total:
        yield "train", TRAIN, 0, total


def _edges(job: ExportJob, start: int, stop: int) -> Counts:
    if job.sequence_tokens and job.tail == "drop":
        stop -= (stop - start) % job.sequence_tokens
    return np.append(np.arange(start, stop, tokens_per_shard(job), dtype=np.int64), max(start, stop))


def _with_tail(job: ExportJob, edges: Counts, *, partial: bool) -> Counts:
    """Apply `--tail` to a last shard that is not full. A single shard is always kept."""
    tail = partial and len(edges) > 2 and edges[-2] < edges[-1]  # otherwise no document starts in the last shard
    edges = np.unique(edges)
    if job.shard_tokens is None or job.sequence_tokens or not tail or len(edges) < 3 or job.tail == "keep":
        return edges
    return edges[:-1] if job.tail == "drop" else np.delete(edges, -2)


def _rows(split: Split, stream: int, edges: Counts, blocks: Blocks) -> dict[str, Any]:
    """Return the columns of a split's shards. Adjacent blocks are included, as they may have empty documents there."""
    ends = blocks.ends(stream)
    starts = ends - blocks.tokens[stream]
    count = len(edges) - 1
    first = np.searchsorted(ends, edges[:-1], side="left")
    last = np.searchsorted(starts, edges[1:], side="right") - 1
    return {
        "split": [split] * count,
        "stream": np.full(count, stream),
        "start": edges[:-1],
        "stop": edges[1:],
        "final": edges[1:] == (ends[-1] if len(ends) else 0),
        "first_block": first,
        "last_block": last,
        "before": starts[first] if count else np.zeros(0, np.int64),
        "position": edges[:-1] - (edges[0] if len(edges) else 0),
        "file_tokens": np.full(count, edges[-1] - edges[0] if len(edges) else 0),
    }


def check_bytes(spec: FormatSpec, token_bytes: int, sequence_tokens: int | None, tokens: int, documents: int) -> None:
    """Raise if the file of a shard would be too large for the format's readers."""
    items = tokens // sequence_tokens + 1 if sequence_tokens else documents
    limits = spec.limits
    size = limits.header_bytes + items * limits.item_bytes + tokens * token_bytes
    if limits.most_bytes is not None and size > limits.most_bytes:
        raise UsageError(
            f"a shard of {tokens:,} tokens is too large for {spec.name}",
            f"limit        {limits.most_bytes:,} bytes in a file; about {size:,} are needed",
            f"Choose --shard-tokens {limits.most_bytes // token_bytes // 2:,} or less.",
        )


def _check_sizes(job: ExportJob, spec: FormatSpec, shards: pa.Table, blocks: Blocks) -> None:
    """Check the size of the largest shard, with all documents of the blocks that it touches."""
    if spec.limits.most_bytes is None or not len(shards):
        return
    tokens = shards["stop"].to_numpy() - shards["start"].to_numpy()
    before = np.pad(np.cumsum(blocks.documents, axis=1), ((0, 0), (1, 0)))
    stream = shards["stream"].to_numpy()
    documents = before[stream, shards["last_block"].to_numpy() + 1] - before[stream, shards["first_block"].to_numpy()]
    token_bytes = np.dtype(job.dtype).itemsize + (np.dtype(LABEL).itemsize if job.mask else 0)
    check_bytes(spec, token_bytes, job.sequence_tokens, int(tokens.max()), int(documents.max()))


@dataclass(frozen=True, slots=True)
class SplitAndShuffle:
    """The split and the shuffle of an export.

    The split follows from the identity or the split of a source, so it does not change when sources are added or moved.
    The shuffle hashes the number of a source, so equal files get different positions.
    """

    held_out: HeldOut | None
    seed: int | None
    identities: npt.NDArray[np.uint64]
    selection: Selection | None = None

    @classmethod
    def of(cls, job: ExportJob, identities: npt.NDArray[np.uint64], splits: Sequence[str | None]) -> SplitAndShuffle:
        """Return the order of a job for documents from sources with these identities and splits."""
        held_out = HeldOut.of(job.val, identities, splits) if job.val is not None and job.holds_out else None
        return cls(held_out, job.shuffle, identities, job.selection)

    def streams(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8] | None:
        """Return the stream of each document, or None if there is only one stream."""
        if self.held_out is None:
            return None
        return np.where(self.held_out.documents(source, row), VAL, TRAIN).astype(np.uint8)

    def selected(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
        """Return whether each document is in the export, or None if all are."""
        if self.selection is None:
            return None
        stores = self.selection.stores
        edges = np.cumsum([store.sources for store in stores])
        store = np.searchsorted(edges, source, side="right")
        limits = np.array([store.limit or 0 for store in stores], np.uint64)[store]
        is_whole = np.array([store.limit is None for store in stores])[store]
        keys = document_hash.selection_keys(self.identities, source, row, self.selection.seed)
        taken: npt.NDArray[np.bool_] = is_whole | (keys < limits)
        if self.held_out is None:
            return taken
        is_first = np.array([store.copy == 0 for store in stores])[store]
        return np.where(self.held_out.documents(source, row), is_first, taken)

    def keys(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> document_hash.Keys:
        """Return the key of each document. The shuffled corpus is sorted by it."""
        assert self.seed is not None  # noqa: S101 - callers check for a shuffle
        return document_hash.document_keys(self.seed, source, row)
