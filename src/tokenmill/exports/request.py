"""Turn the options of an export into its job: check them, and fill in the defaults of the format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from tokenmill.choices import EndTokenPosition, Tail
from tokenmill.errors import UsageError
from tokenmill.exports import shards
from tokenmill.exports.job import FIRST_SHARD, ExportJob, Selection, stores_digest
from tokenmill.exports.text import text_notices
from tokenmill.humanize import parse_size
from tokenmill.options import ExportOptions
from tokenmill.sources import splits_of
from tokenmill.store.collection import Collection, trial_notes
from tokenmill.store.held_out import parse_held_out, require_split, split_name
from tokenmill.system.arguments import column_names
from tokenmill.token_files import FORMATS, find_format
from tokenmill.token_files.protocol import ExportedColumn, FormatSpec
from tokenmill.tokenization.spec import TokenizerSpec

# How many ids a token type can hold.
ID_LIMITS = {"uint16": 1 << 16, "int32": 1 << 31, "uint32": 1 << 32}

# Shards of a store that is too small for two default shards.
SMALL_CORPUS_SHARDS = 10

MAX_SHARDS = 1_000_000

# Tokens of a shard of packed rows: it is packed as a whole, in memory.
PACKED_SHARD_TOKENS = 16_000_000
MAX_ROW_TOKENS = 1 << 28

# What `--name` may be: the start of a file name.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# The end of a size in bytes, such as the B of 100MB, where a number of tokens is expected.
BYTE_SUFFIX = re.compile(r"(?<=[kmgtb])i?b\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """Options that fit the tokenizer and the format. Shard sizes may still change with the size of the store."""

    options: ExportOptions
    spec: FormatSpec
    dtype: str
    end: EndTokenPosition
    val: str | None
    shard_tokens: int | None
    tail: Tail
    sequence_tokens: int | None
    row_tokens: int | None
    columns: str
    with_columns: tuple[str, ...]


def make_export_request(options: ExportOptions, tokenizer: TokenizerSpec) -> ExportRequest:
    """Check the options against the format and the tokenizer. This needs no store."""
    spec = find_format(options.to).SPEC
    _check_name(spec, options.name)
    _check_text(spec, options)
    if options.shuffle is not None and not 0 <= options.shuffle < 1 << 64:
        raise UsageError(f"--shuffle {options.shuffle} is not a seed", "Give a whole number from 0 to 2^64 - 1.")
    sequence = _tokens("--sequence-tokens", options.sequence_tokens)
    if sequence is not None and spec.defaults.sequence_tokens is None:
        raise UsageError(f"{spec.name} has no sequences of a fixed length", "--sequence-tokens is for mds.")
    tokens = _tokens("--shard-tokens", options.shard_tokens)
    row_tokens = _row_tokens(spec, options)
    default_tokens = PACKED_SHARD_TOKENS if row_tokens else spec.defaults.shard_tokens
    request = ExportRequest(
        options=options,
        spec=spec,
        dtype=_dtype(spec, options.dtype, tokenizer),
        end=options.eot_position or spec.defaults.end,
        val=parse_val(options.val, spec.defaults.val),
        shard_tokens=None if spec.layout.single else tokens or default_tokens,
        tail=options.tail or spec.defaults.tail,
        sequence_tokens=sequence or spec.defaults.sequence_tokens,
        row_tokens=row_tokens,
        columns=_columns(spec, options.columns),
        with_columns=_with_columns(spec, options.columns, column_names(options.with_columns, "with_columns") or ()),
    )
    _check(request)
    return request


def choose_mask(spec: FormatSpec, wanted: str | None, *, has_mask: bool) -> str:
    """How the files tell which tokens are trained on; empty if they do not.

    Raises UsageError if they would train on tokens that the store does not train on, unless that is wanted.
    """
    if wanted == "ignore":
        return ""
    if wanted is not None and wanted not in spec.masks:
        ways = f"It has {' and '.join(spec.masks)}." if len(spec.masks) > 1 else ""
        raise UsageError(f"{spec.name} has no {wanted}", *filter(None, [ways]))
    if not has_mask:
        if wanted is not None:
            raise UsageError(f"--mask {wanted} has no effect: the store trains on all tokens", "Remove --mask.")
        return ""
    if not spec.masks or (spec.mask_reader and wanted is None):
        masked = [name for name, format_ in FORMATS.items() if format_.SPEC.masks and not format_.SPEC.mask_reader]
        written = [f"Use --mask {mask} to write which, for {spec.mask_reader}." for mask in spec.masks]
        raise UsageError(
            f"only some tokens of the documents are trained on, and the files of {spec.name} do not say which",
            f"Export to {' or '.join(masked)}, or train with tokenmill.loader.",
            *written,
            "Use --mask ignore to train on all tokens.",
        )
    return wanted or next(iter(spec.masks))


def make_job(
    request: ExportRequest,
    stores: Collection,
    left_out: Sequence[int],
    with_columns: tuple[ExportedColumn, ...] = (),
    selection: Selection | None = None,
) -> tuple[ExportJob, list[str]]:
    """Return the job for some stores, or for the documents of a selection, and notices for the user.

    Documents that the first `left_out` changes of each store erased are not in the export. `with_columns` are the kept
    columns of the request, with their types.
    """
    options, spec = request.options, request.spec
    has_mask = bool(request.row_tokens) or any(member.run.job.has_spans for member in stores.members)
    mask = choose_mask(spec, options.mask, has_mask=has_mask)
    if mask and request.end == "prepended":
        raise UsageError("--eot-position prepended cannot be used with a mask", "The end token is a document's last.")
    taken = {request.columns, *request.with_columns}.intersection(spec.masks.get(mask, ()))
    if taken:
        raise UsageError(f"the column {min(taken)!r} tells which tokens are trained on", "Leave out the other one.")
    if selection is None and split_name(request.val) is not None:  # a recipe is checked when its stores are opened
        require_split(request.val, splits_of(stores.sources))
    documents = int(np.sum(stores.manifest_without_erased(left_out)["documents"].to_numpy()))
    tokens, first_store_tokens = _token_counts(request, stores, left_out)
    shard_tokens, first_tokens, notices = _shard_sizes(request, first_store_tokens)
    if spec.limits.most_documents is not None and shard_tokens is None and documents > spec.limits.most_documents:
        raise UsageError(
            f"{spec.name} counts the documents of a file in 31 bits",
            f"documents    {documents:,}",
            "Cut the export into several files: --shard-tokens 100B.",
        )
    job = ExportJob(
        format=spec.name,
        store=stores_digest(stores, left_out),
        tokenizer=stores.job.tokenizer.name,
        dtype=request.dtype,
        end=request.end,
        end_token=stores.job.end,
        name=options.name or "",
        val=request.val,
        val_tokens=first_tokens if request.val == FIRST_SHARD else None,
        shuffle=options.shuffle,
        shard_tokens=shard_tokens,
        tail=request.tail if shard_tokens is not None else "keep",
        sequence_tokens=request.sequence_tokens,
        row_tokens=request.row_tokens,
        mask=mask,
        columns=request.columns,
        with_columns=with_columns,
        selection=selection,
    )
    _check_shards(job, tokens, first_store_tokens)
    if job.val_tokens and job.sequence_tokens:  # whole sequences
        job = msgspec.structs.replace(job, val_tokens=shards.tokens_per_shard(job))
    return job, [*trial_notes(stores), *notices, *(text_notices(stores) if spec.is_text else [])]


def _token_counts(request: ExportRequest, stores: Collection, left_out: Sequence[int]) -> tuple[int, int]:
    """Return the tokens of all stores, and those among which the first shard is: the tokens of the first store.

    If documents of several stores can be in one shard, both are the tokens of all stores.
    """
    pairs = zip(stores.members, left_out, strict=True)
    counts = [int(np.sum(member.manifest_without_erased(changes)["tokens"].to_numpy())) for member, changes in pairs]
    is_whole = shards.joins_stores(request.spec, request.options.shuffle, request.shard_tokens)
    return sum(counts), sum(counts) if is_whole else next(filter(None, counts), 0)


def _shard_sizes(request: ExportRequest, tokens: int) -> tuple[int | None, int | None, list[str]]:
    """Return the tokens per shard, the tokens of a first shard, and notices about options that changed or are unused.

    A store of less than two default shards gets smaller ones if the first is the validation split.
    """
    options, spec = request.options, request.spec
    notices = []
    shard_tokens = request.shard_tokens
    first_tokens = _tokens("--shard-tokens", options.shard_tokens) or shard_tokens
    if request.val == FIRST_SHARD and options.shard_tokens is None and first_tokens and tokens < 2 * first_tokens:
        shard_tokens = first_tokens = max(1, request.sequence_tokens or 1, -(-tokens // SMALL_CORPUS_SHARDS))
        notices.append(
            f"the store is smaller than two shards of {spec.defaults.shard_tokens:,} tokens. Shards have "
            f"{shard_tokens:,} tokens instead, so that the first shard can be val. --shard-tokens or --val change this"
        )
    if spec.layout.single and options.shard_tokens is not None and request.val != FIRST_SHARD:
        notices.append(f"{spec.name} is one file for each split: --shard-tokens has no effect")
    if shard_tokens is None and options.tail is not None:
        notices.append("one file for each split has no tail: --tail has no effect")
    return shard_tokens, first_tokens, notices


def _check_shards(job: ExportJob, tokens: int, first_store_tokens: int) -> None:
    """Raise if the store would have too many shards, or nothing beside its first shard."""
    shard_tokens = shards.tokens_per_shard(job)
    if tokens // shard_tokens > MAX_SHARDS:
        raise UsageError(
            f"--shard-tokens {shard_tokens:,} would make more than {MAX_SHARDS:,} shards",
            f"tokens       {tokens:,}",
            "Choose larger shards.",
        )
    if job.val_tokens and 0 < first_store_tokens <= job.val_tokens:
        raise UsageError(
            f"a first shard of {job.val_tokens:,} tokens would hold all tokens of the store",
            f"tokens       {first_store_tokens:,}",
            "Choose a smaller --shard-tokens, or a fraction of documents: --val 0.01.",
        )


def _dtype(spec: FormatSpec, wanted: str | None, tokenizer: TokenizerSpec) -> str:
    """Return the wanted token type, or the first one of the format that holds every id."""
    if wanted is not None and wanted not in spec.dtypes:
        raise UsageError(f"{spec.name} has no tokens of type {wanted!r}", f"types        {', '.join(spec.dtypes)}")
    for dtype in [wanted] if wanted else spec.dtypes:
        if tokenizer.vocabulary_size <= ID_LIMITS[dtype]:
            return dtype
    largest = wanted or spec.dtypes[-1]
    fitting = [name for name, format_ in FORMATS.items() if format_.SPEC.dtypes != ("uint16",)]
    raise UsageError(
        f"the ids of {tokenizer.name} do not fit into {spec.name}",
        f"ids          {tokenizer.vocabulary_size:,} of {tokenizer.name}; {largest} holds {ID_LIMITS[largest]:,}",
        f"Use a format with larger ids ({', '.join(fitting)}) or a tokenizer with at most 65,536 ids, such as gpt2.",
    )


def _row_tokens(spec: FormatSpec, options: ExportOptions) -> int | None:
    """The tokens of a row of whole documents, or None. Raises UsageError for options that such rows do not have."""
    row_tokens = _tokens("--packed", options.packed)
    if row_tokens is None:
        return None
    if spec.use_packed is None:
        raise UsageError(f"{spec.name} has no packed rows", "--packed is for parquet.")
    if row_tokens > MAX_ROW_TOKENS:
        raise UsageError(f"--packed {row_tokens:,} is too large for a row", f"The largest is {MAX_ROW_TOKENS:,}.")
    given = {"--mask": options.mask, "--columns": options.columns, "--with": options.with_columns}
    for name, value in given.items():
        if value:
            raise UsageError(
                f"{name} is given with --packed", "Packed rows always have input_ids, loss_mask and seq_start_id."
            )
    return row_tokens


def _tokens(option: str, value: str | int | None) -> int | None:
    if value is None:
        return None
    if isinstance(value, str) and BYTE_SUFFIX.search(value):
        raise UsageError(
            f"{option} {value} is a size in bytes", f"{option} counts tokens: write {BYTE_SUFFIX.sub('', value)}."
        )
    tokens = parse_size(value)
    if tokens < 1:
        raise UsageError(f"{option} must be at least 1")
    return tokens


def _check(request: ExportRequest) -> None:
    """Raise if the readers of the format could not read the files."""
    spec, tokens = request.spec, request.shard_tokens
    if spec.defaults.sequence_tokens and request.tail == "merge":
        raise UsageError(
            f"{spec.name} holds sequences of one length: there is no shard to merge the rest into",
            "Use --tail drop, as its own tools do, or keep, for a last sequence that is shorter.",
        )
    if tokens and request.sequence_tokens and tokens < request.sequence_tokens:
        raise UsageError(f"--shard-tokens {tokens:,} is less than one sequence of {request.sequence_tokens:,} tokens")
    if request.val == FIRST_SHARD and tokens is None and request.options.shard_tokens is None:
        raise UsageError(
            f"{spec.name} is one file for each split, so there is no first shard",
            "Set the size of val with --shard-tokens 100M, or give a fraction: --val 0.0005.",
        )
    if tokens is not None:
        largest = 2 * tokens - 1 if request.tail == "merge" else tokens
        shards.check_bytes(spec, np.dtype(request.dtype).itemsize, request.sequence_tokens, largest, 1)


def _check_name(spec: FormatSpec, name: str | None) -> None:
    if name is None:
        return
    if not spec.layout.named:
        raise UsageError(f"{spec.name} names its files itself", "--name is for llmc, build-nanogpt and megatron.")
    if not NAME.fullmatch(name):
        raise UsageError(f"--name {name!r} cannot start the name of a file", "Use letters, digits, '.', '_' and '-'.")
    if spec.name == "build-nanogpt" and ("train" in name or "val" in name):
        raise UsageError(f"--name {name} would mix up the splits", "build-nanogpt finds them by 'train' and 'val'.")


def _check_text(spec: FormatSpec, options: ExportOptions) -> None:
    """Raise UsageError for options of tokens if the files hold text."""
    given = {"--dtype": options.dtype, "--eot-position": options.eot_position} if spec.is_text else {}
    for name, value in given.items():
        if value is not None:
            raise UsageError(f"{name} has no effect: {spec.name} holds text, without end tokens", f"Remove {name}.")


def _columns(spec: FormatSpec, name: str | None) -> str:
    """The column of the tokens; empty if the format has no columns."""
    if not spec.defaults.columns:
        if name is not None:
            raise UsageError(f"{spec.name} has no columns", "--columns is for parquet and text.")
        return ""
    first, *others = spec.defaults.columns
    if name is not None and (not name or name in others):
        raise UsageError(
            f"--columns {name!r} cannot be the column of the tokens", f"Other columns are called {', '.join(others)}."
        )
    return name or first


def _with_columns(spec: FormatSpec, tokens: str | None, names: tuple[str, ...]) -> tuple[str, ...]:
    """The kept columns that are added to the files."""
    if not names:
        return ()
    if not spec.defaults.columns:
        raise UsageError(f"{spec.name} has no columns", "--with is for parquet and text.")
    taken = [tokens or spec.defaults.columns[0], *spec.defaults.columns[1:]]
    for index, name in enumerate(names):
        if not name or name in names[:index]:
            raise UsageError(f"--with {','.join(names)!r} names {'a column twice' if name else 'an empty column'}")
        if name in taken:
            raise UsageError(
                f"--with {name!r} is the name of another column of the file",
                f"columns      {', '.join(taken)}",
                *(["Give the column of the tokens another name with --columns NAME."] if name == taken[0] else []),
            )
    return names


def parse_val(given: str | float | None, default: str | None) -> str | None:
    """The `val` of the job: a fraction as its shortest text, `split:NAME`, `first-shard`, or None.

    None means that all documents are for training. `default` is the format's own, for an option that is not given.
    """
    val = str(given) if given is not None else default
    if val is None or val == FIRST_SHARD:
        return val
    return parse_held_out(val, others=f"{FIRST_SHARD}, ")
