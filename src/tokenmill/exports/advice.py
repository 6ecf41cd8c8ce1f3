"""What an export reports to its user: notices about surprising results, and how to point the trainer at the files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from tokenmill.exports import shards
from tokenmill.exports.job import ExportJob
from tokenmill.exports.write_shard import split_folder
from tokenmill.humanize import count
from tokenmill.storage import Folder
from tokenmill.store.held_out import TINY_VAL_TOKENS, VAL_FRACTIONS, split_name
from tokenmill.token_files import find_format
from tokenmill.token_files.protocol import ShardRecord

Splits = Mapping[str, Sequence[ShardRecord]]

# A shorter last shard may stop a trainer: a batch of GPT-2's size has half as many tokens.
SHORT_TOKENS = 1 << 20

# With more files than this, only the first and the last prefix are shown.
MAX_PREFIXES = 3


def split_notices(
    job: ExportJob, splits: Splits, skipped: Mapping[str, int], store_tokens: int, advise: Callable[[], str]
) -> Iterator[str]:
    """Yield a notice for each short, tiny or missing split.

    Args:
        job: The job of the export.
        splits: The records of each split that has shards.
        skipped: The tokens of each split that are in no shard. A split without documents is not in it.
        store_tokens: The tokens of the store.
        advise: Returns what gives documents to both splits; empty if nothing does.
    """
    shortest_shard = find_format(job.format).SPEC.limits.shortest_shard
    for split, records in splits.items():
        shortest = min(record.tokens for record in records)
        if shortest_shard and shortest < min(SHORT_TOKENS, shards.tokens_per_shard(job)):
            remedy = "A larger --val" if split == "val" else "--tail merge or drop"
            which = f"the last {split} shard" if records[-1].tokens == shortest else f"a {split} shard"
            yield (
                f"{which} has {shortest:,} tokens; the trainer stops at a shard with less than "
                f"{shortest_shard}. {remedy} avoids this"
            )
    spelled = sum(record.control_tokens for records in splits.values() for record in records)
    if spelled:
        yield f"{count(spelled, 'control token')} in the documents became text: its spelling"
    if not store_tokens:
        yield "the store holds no tokens: no file is written"
        return
    is_named = split_name(job.val) is not None
    for split in ["train"] if job.val is None else ["train", "val"]:
        if split not in skipped:
            remedy = "" if is_named else advise()
            yield "; ".join(filter(None, [f"{split} has no documents, so it has no file", remedy]))
        elif split not in splits:
            unit = "shard" if job.sequence_tokens is None else f"sequence of {job.sequence_tokens:,}"
            yield f"{split} has no file: its {skipped[split]:,} tokens are too few for one {unit}"
    if find_format(job.format).SPEC.layout.val_last and "train" in splits and "val" not in splits:
        yield f"{job.format} takes the last file as its validation split; --val chooses one"
    train, val = (sum(record.tokens for record in splits.get(split, [])) for split in ("train", "val"))
    if 0 < val < TINY_VAL_TOKENS and train > 10 * val and not shortest_shard and not is_named:
        yield "; ".join(filter(None, [f"val has only {val:,} tokens", advise()]))


def larger_val(job: ExportJob, store_tokens: int) -> str:
    """Return the advice with the smallest fraction that gives enough validation tokens; empty without a larger one."""
    larger = [
        fraction
        for fraction in VAL_FRACTIONS
        if fraction > (float(job.val) if job.val is not None and job.holds_out else 0.0)
    ]
    enough = [fraction for fraction in larger if fraction * store_tokens > 2 * TINY_VAL_TOKENS]
    where = "--val" if job.selection is None else "in the recipe, val ="
    return f"use {where} {(enough or larger)[0]}, or larger" if larger else ""


def trainer_usage(job: ExportJob, folder: Folder, splits: Splits) -> str:
    """Return how to point the trainer at the files, or an empty string without a train split."""
    if "train" not in splits:
        return ""
    spec = find_format(job.format).SPEC
    files = {split: sorted({record.files[0].name for record in records}) for split, records in splits.items()}
    masks = sorted({record.files[-1].name for record in splits["train"]})
    listed = {**files, "mask": masks}
    prefixes = {split: [os.path.splitext(folder.path(name))[0] for name in names] for split, names in listed.items()}
    for stems in prefixes.values():
        if len(stems) > MAX_PREFIXES:
            stems[1:-1] = ["..."]
    template = spec.use_val if "val" in splits and spec.use_val else spec.use
    template = spec.use_packed if job.row_tokens and spec.use_packed else template
    number = "*"
    if (
        job.mask and spec.use_mask
    ):  # the pattern of the tokens does not match the masks, where a word follows the number
        template, number = spec.use_mask, "*[0-9]"
    return template.format(
        mask=folder.path(_glob(masks, number)),
        directory=folder.root,
        train_folder=folder.path(split_folder(job, "train") or "."),
        row_tokens=job.row_tokens,
        token_bytes=np.dtype(job.dtype).itemsize,
        **{split: folder.path(_glob(names, number)) for split, names in files.items()},
        **{f"{split}_prefix": " ".join(stems) for split, stems in prefixes.items()},
        **{f"{split}_prefixes": json.dumps(stems) for split, stems in prefixes.items()},
    )


def _glob(files: Sequence[str], number: str) -> str:
    """Return the only file of a split, or a pattern for several: their names differ in the last number."""
    return files[0] if len(files) == 1 else re.sub(r"\d+(?=\D*$)", number, files[0])
