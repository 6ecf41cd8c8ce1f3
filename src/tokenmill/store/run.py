"""Read and check `run.json`, and the vocabulary that it names."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Any

import msgspec

from tokenmill.errors import USAGE, StoreError, UsageError
from tokenmill.sources.text_columns import parse_template
from tokenmill.sources.where import parse_where
from tokenmill.storage import Folder, read_existing
from tokenmill.storage.digest import digest_of
from tokenmill.storage.local.listing import did_you_mean
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store.job import PARSE, REFUSE, STORE_FORMAT, TEXT, Job, Run
from tokenmill.store.layout import MAX_JSON_BYTES, RUN, TOKENIZER, damaged, lost, refuse_other_format
from tokenmill.tokenizers.spec import TokenizerSpec

_HASH = re.compile("[0-9a-f]{64}")
_EXTENSIONS = {"tiktoken": "tiktoken", "huggingface": "json"}
"""The file extension of the vocabulary, by the kind of the tokenizer."""


def run_record(run: Run) -> dict[str, Any]:
    """The content of `run.json`: the run, and the checksum of it."""
    record: dict[str, Any] = msgspec.to_builtins(run)
    return {**record, "checksum": digest_of(record)}


def read_run(folder: Folder) -> Run | None:
    """Read and check the frozen run of a directory; None if the directory has no run. The tables are not read."""
    data = read_existing(folder, RUN, MAX_JSON_BYTES)
    if data is None:
        return None
    try:
        refuse_other_format(folder, data, STORE_FORMAT, "Prepare it again.")
        content = _check_checksum(data)
        _refuse_unknown_options(folder, content.get("job"))
        run = decode(data, Run)
        _check_counts(run)
        _check_tokenizer(run.job)
        _check_options(run.job)
        _check_files(run)
    except MalformedDataError as damage:
        raise damaged(folder, RUN, str(damage)) from damage
    return run


def require_run(folder: Folder) -> Run:
    """Read the frozen run of a directory. Raises StoreError if the directory has no run."""
    run = read_run(folder)
    if run is None:
        raise no_store(folder)
    return run


def no_store(folder: Folder) -> StoreError:
    """The error for a directory without a run."""
    if not folder.is_remote and not os.path.lexists(folder.root):
        return StoreError(f"no such store: {folder.root}", *did_you_mean(folder.root), exit_code=USAGE)
    return StoreError(
        f"{folder.root} is not a tokenmill store",
        f"There is no {RUN} in it. `tokenmill prepare SOURCE --tokenizer T --out DIR` makes one.",
        exit_code=USAGE,
    )


def read_vocabulary(folder: Folder, tokenizer: TokenizerSpec) -> bytes:
    """Read the vocabulary of a run and compare it with its BLAKE3."""
    name = f"{TOKENIZER}/{tokenizer.file}"
    try:
        content = folder.read(name)
    except StoreError:
        if folder.exists(name):
            raise
        raise lost(folder, name) from None
    if hashlib.sha256(content).hexdigest() != tokenizer.sha256:
        raise damaged(folder, name, f"it is not the vocabulary that {RUN} names")
    return content


def _check_checksum(data: bytes) -> dict[str, Any]:
    """Compare the content of `run.json` with its checksum, and return it."""
    content = decode(data, dict[str, Any])
    if content.pop("checksum", None) != digest_of(content):
        raise MalformedDataError("it is not as it was written")
    return content


def _refuse_unknown_options(folder: Folder, job: Any) -> None:
    """Refuse a job with options that came after this version: their documents would be read as if they had none."""
    unknown = sorted(job.keys() - set(Job.__struct_fields__)) if isinstance(job, dict) else []
    if unknown:
        raise StoreError(
            f"{folder.root} was made by a newer tokenmill, with options that this one does not know",
            f"options      {', '.join(unknown)[:200]}",
        )


def _check_counts(run: Run) -> None:
    job = run.job
    counts = [run.units, run.planned_units - run.units, run.planned_units, run.sources, run.source_bytes]
    counts += [run.text_bytes, job.unit_bytes, job.document_bytes]
    counts += [limit for limit in (job.min_tokens, job.max_tokens) if not isinstance(limit, msgspec.UnsetType)]
    if not 0 <= min(counts) <= max(counts) < 1 << 62:
        raise MalformedDataError("it has negative or impossible counts")


def _check_tokenizer(job: Job) -> None:
    """Refuse an unknown kind, an impossible size, a file not named by its hash, or a token outside the vocabulary."""
    tokenizer = job.tokenizer
    if tokenizer.kind not in _EXTENSIONS or not 0 < tokenizer.vocabulary_size <= 1 << 32:
        raise MalformedDataError(
            f"there is no vocabulary of {tokenizer.vocabulary_size} ids and of kind {tokenizer.kind[:20]!r}"
        )
    expected = f"{tokenizer.sha256}.{_EXTENSIONS[tokenizer.kind]}"
    if not _HASH.fullmatch(tokenizer.sha256) or tokenizer.file != expected:
        raise MalformedDataError(f"the vocabulary has the name {tokenizer.file[:100]!r}")
    if not re.fullmatch("([0-9a-f]{40})?", tokenizer.commit or "") or not (tokenizer.source or "").isprintable():
        raise MalformedDataError(f"the commit of the tokenizer is {str(tokenizer.commit)[:40]!r}")
    tokens = [*tokenizer.added_tokens.values(), tokenizer.end_of_text, job.begin, job.end]
    if any(token is not None and not 0 <= token < tokenizer.vocabulary_size for token in tokens):
        raise MalformedDataError(f"a token is not among the {tokenizer.vocabulary_size} ids")


def _check_options(job: Job) -> None:
    """Refuse a filter or a template that cannot be parsed, and names of kept columns that are not valid."""
    try:
        if job.filter_text:
            parse_where(job.filter_text)
        if not isinstance(job.template, msgspec.UnsetType):
            parse_template(job.template)
        _ = job.encoder
    except UsageError as error:
        raise MalformedDataError(error.headline) from error
    if (job.special or PARSE) not in (PARSE, REFUSE) or (job.template_special or TEXT) not in (TEXT, PARSE):
        raise MalformedDataError("its special or template_special is unknown")
    if len(set(job.kept_columns)) < len(job.kept_columns) or not all(job.kept_columns):
        raise MalformedDataError("a kept column has no name, or is listed twice")


def _check_files(run: Run) -> None:
    """Refuse a hash that cannot be part of the name of a file."""
    lists = [blake3 for blake3 in (run.job.deny, run.job.dedup) if not isinstance(blake3, msgspec.UnsetType)]
    for blake3 in (run.plan_blake3, run.sources_blake3, *lists):
        if not _HASH.fullmatch(blake3):
            raise MalformedDataError(f"a file has the hash {blake3[:100]!r}")
