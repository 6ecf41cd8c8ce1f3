"""From the words of an export to its job: formats found, defaults filled in, what cannot be refused before any work."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.errors import UsageError
from tokenmill.exports import shards
from tokenmill.exports.formats import FORMATS, find_format
from tokenmill.exports.formats.protocol import FormatSpec, Place, Tail
from tokenmill.exports.job import FIRST_SHARD, ExportJob
from tokenmill.pipeline.sizes import parse_size
from tokenmill.store.listed_parts import store_digest
from tokenmill.store.run import Run
from tokenmill.tokenizers.spec import TokenizerSpec

LARGEST_IDS = {"uint16": 1 << 16, "int32": 1 << 31, "uint32": 1 << 32}
SMALL_CORPUS_SHARDS = 10
MAX_SHARDS = 1_000_000
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
BYTE_SUFFIX = re.compile(r"(?<=[kmgtb])i?b\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What was said about exports; None means that nothing was said."""

    val: str | float | None = None
    shuffle: int | None = None
    shard_tokens: str | int | None = None
    tail: str | None = None
    end_token: str | None = None
    dtype: str | None = None
    sequence_tokens: str | int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class ExportRequest:
    """An export that the tokenizer and the format allow; how it is cut may still depend on the size of the store."""

    words: ExportOptions
    traits: FormatSpec
    dtype: str
    end: Place
    val: str | None
    shard_tokens: int | None
    tail: Tail
    sequence_tokens: int | None


def refuse_unused(words: ExportOptions, formats: list[str]) -> None:
    """Refuse words about an export where none is asked for."""
    said = [field.name for field in fields(words) if getattr(words, field.name) is not None]
    if said and not formats:
        option = f"--{said[0].replace('_', '-')}"
        raise UsageError(f"{option} is about an export, and none is asked for", "Add --to FORMAT, such as nanogpt.")


def make_export_request(to: str, words: ExportOptions, tokenizer: TokenizerSpec) -> ExportRequest:
    """Check the words of an export against its format and tokenizer: no store is needed for that."""
    traits = find_format(to).SPEC
    tail = _one_of("--tail", words.tail, Tail, traits.tail)
    _check_name(traits, words.name)
    if words.shuffle is not None and not 0 <= words.shuffle < 1 << 64:
        raise UsageError(f"--shuffle {words.shuffle} is not a seed", "Give a whole number from 0 to 2^64 - 1.")
    sequence = _tokens("--sequence-tokens", words.sequence_tokens)
    if sequence is not None and traits.sequence_tokens is None:
        raise UsageError(f"{traits.name} has no sequences of a fixed length", "--sequence-tokens is for mds.")
    request = ExportRequest(
        words=words,
        traits=traits,
        dtype=_dtype(traits, words.dtype, tokenizer),
        end=_one_of("--end-token", words.end_token, Place, traits.end),
        val=_val(words.val, traits),
        shard_tokens=None if traits.single else _tokens("--shard-tokens", words.shard_tokens) or traits.shard_tokens,
        tail=tail,
        sequence_tokens=sequence or traits.sequence_tokens,
    )
    _check(request)
    return request


def make_job(request: ExportRequest, run: Run, manifest: pa.Table) -> tuple[ExportJob, list[str]]:
    """The job for a store, and what a person should know of it."""
    words, traits = request.words, request.traits
    tokens, documents = (int(np.sum(manifest[name].to_numpy())) for name in ("tokens", "documents"))
    notices = []
    shard_tokens = request.shard_tokens
    first_tokens = _tokens("--shard-tokens", words.shard_tokens) or shard_tokens
    if request.val == FIRST_SHARD and words.shard_tokens is None and first_tokens and tokens < 2 * first_tokens:
        shard_tokens = first_tokens = max(1, request.sequence_tokens or 1, -(-tokens // SMALL_CORPUS_SHARDS))
        notices.append(
            f"the store has less than two shards of {traits.shard_tokens:,} tokens; they hold {shard_tokens:,} "
            "instead, so that the first can be val. --shard-tokens and --val decide it otherwise"
        )
    if traits.single and words.shard_tokens is not None and request.val != FIRST_SHARD:
        notices.append(f"{traits.name} is one file for each split: --shard-tokens has no effect")
    if shard_tokens is None and words.tail is not None:
        notices.append("one file for each split has no tail: --tail has no effect")
    if traits.most_documents is not None and shard_tokens is None and documents > traits.most_documents:
        raise UsageError(
            f"{traits.name} counts the documents of a file in 31 bits",
            f"documents    {documents:,}",
            "Cut the export into several files: --shard-tokens 100B.",
        )
    job = ExportJob(
        format=traits.name,
        store=store_digest(manifest),
        tokenizer=run.job.tokenizer.name,
        dtype=request.dtype,
        end=request.end,
        end_token=run.job.end,
        name=words.name or "",
        val=request.val,
        val_tokens=first_tokens if request.val == FIRST_SHARD else None,
        shuffle=words.shuffle,
        shard_tokens=shard_tokens,
        tail=request.tail if shard_tokens is not None else "keep",
        sequence_tokens=request.sequence_tokens,
    )
    if tokens // shards.tokens_per_shard(job) > MAX_SHARDS:
        raise UsageError(
            f"--shard-tokens {shards.tokens_per_shard(job):,} would make more than {MAX_SHARDS:,} shards",
            f"tokens       {tokens:,}",
            "Choose larger shards.",
        )
    if job.val_tokens and 0 < tokens <= job.val_tokens:
        raise UsageError(
            f"a first shard of {job.val_tokens:,} tokens would be all there is",
            f"tokens       {tokens:,}",
            "Choose a smaller --shard-tokens, or a share of the documents: --val 0.01.",
        )
    if job.val_tokens and job.sequence_tokens:  # whole sequences
        job = msgspec.structs.replace(job, val_tokens=shards.tokens_per_shard(job))
    return job, notices


def _dtype(traits: FormatSpec, wanted: str | None, tokenizer: TokenizerSpec) -> str:
    """The token type: the one asked for, or the first of the format's that holds every id."""
    if wanted is not None and wanted not in traits.dtypes:
        raise UsageError(f"{traits.name} has no tokens of type {wanted!r}", f"types        {', '.join(traits.dtypes)}")
    for dtype in [wanted] if wanted else traits.dtypes:
        if tokenizer.vocabulary_size <= LARGEST_IDS[dtype]:
            return dtype
    largest = wanted or traits.dtypes[-1]
    fitting = [name for name, each in FORMATS.items() if each.SPEC.dtypes != ("uint16",)]
    raise UsageError(
        f"the ids of {tokenizer.name} do not fit into {traits.name}",
        f"ids          {tokenizer.vocabulary_size:,} of {tokenizer.name}; {largest} holds {LARGEST_IDS[largest]:,}",
        f"Use a format with larger ids ({', '.join(fitting)}) or a tokenizer with at most 65,536 ids, such as gpt2.",
    )


def _val(said: str | float | None, traits: FormatSpec) -> str | None:
    val = str(said) if said is not None else traits.val
    if val is None or val == "none":
        return None
    if val == FIRST_SHARD:
        return val
    share = _share(val)
    if share == 0:
        return None
    if share is None or not 0 < share < 1:
        raise UsageError(
            f"--val {val} is not a share",
            "Give the share of the documents to hold out, between 0 and 1 (0.0005, or 0.05%), first-shard, or none.",
        )
    return repr(share)


def _share(said: str) -> float | None:
    """A share that was written as a number or in percent; exact, so that both ways of writing it are the same job."""
    try:
        return float(Decimal(said.strip().removesuffix("%")) / (100 if said.strip().endswith("%") else 1))
    except (ArithmeticError, ValueError):
        return None


def _tokens(option: str, said: str | int | None) -> int | None:
    if said is None:
        return None
    if isinstance(said, str) and BYTE_SUFFIX.search(said):
        raise UsageError(
            f"{option} {said} is a size in bytes", f"{option} counts tokens: write {BYTE_SUFFIX.sub('', said)}."
        )
    tokens = parse_size(said)
    if tokens < 1:
        raise UsageError(f"{option} has to be at least 1")
    return tokens


def _one_of(option: str, said: str | None, choices: Any, default: Any) -> Any:
    if said is None:
        return default
    if said not in get_args(choices):
        raise UsageError(f"{option} cannot be {said!r}", f"choices      {', '.join(get_args(choices))}")
    return said


def _check(request: ExportRequest) -> None:
    """Refuse what the format's readers could not read."""
    traits, tokens = request.traits, request.shard_tokens
    if traits.sequence_tokens and request.tail == "merge":
        raise UsageError(
            f"{traits.name} holds sequences of one length: there is no shard to merge the rest into",
            "Use --tail drop, as its own tools do, or keep, for a last sequence that is shorter.",
        )
    if tokens and request.sequence_tokens and tokens < request.sequence_tokens:
        raise UsageError(f"--shard-tokens {tokens:,} is less than one sequence of {request.sequence_tokens:,} tokens")
    if request.val == FIRST_SHARD and tokens is None and request.words.shard_tokens is None:
        raise UsageError(
            f"{traits.name} is one file for each split, so there is no first shard",
            "Say how large val is to be with --shard-tokens 100M, or give a share: --val 0.0005.",
        )
    if tokens is not None:
        largest = 2 * tokens - 1 if request.tail == "merge" else tokens
        shards.check_bytes(traits, request.dtype, request.sequence_tokens, largest, 1)


def _check_name(traits: FormatSpec, name: str | None) -> None:
    if name is None:
        return
    if not traits.named:
        raise UsageError(f"{traits.name} names its files itself", "--name is for llmc, build-nanogpt and megatron.")
    if not NAME.fullmatch(name):
        raise UsageError(f"--name {name!r} cannot start the name of a file", "Use letters, digits, '.', '_' and '-'.")
    if traits.name == "build-nanogpt" and ("train" in name or "val" in name):
        raise UsageError(f"--name {name} would mix up the splits", "build-nanogpt finds them by 'train' and 'val'.")
