"""Read and check `run.json`, and the vocabulary that it names."""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Any

import msgspec

from tokenmill.errors import USAGE, StoreError, UsageError
from tokenmill.sources.text_columns import parse_template
from tokenmill.sources.where import parse_where
from tokenmill.storage import read_existing
from tokenmill.storage.digest import digest_of
from tokenmill.storage.local.near_names import did_you_mean
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import tables
from tokenmill.store.job import LATEST_STORE_FORMAT, OLDEST_STORE_FORMAT, PARSE, REFUSE, TEXT, Job, Run
from tokenmill.store.layout import MAX_JSON_BYTES, REQUEST_NAME, RUN, TOKENIZER, damaged, lost

if TYPE_CHECKING:
    from tokenmill.storage import Folder
    from tokenmill.tokenizers.spec import TokenizerSpec

_SHA256 = re.compile("[0-9a-f]{64}")
_EXTENSIONS = {"tiktoken": "tiktoken", "huggingface": "json"}
"""The file extension of the vocabulary, by the kind of the tokenizer."""


class _Format(msgspec.Struct):
    """The one field of `run.json` that every version has."""

    format: int = 1


def run_record(run: Run) -> dict[str, Any]:
    """The content of `run.json`: the run, and the checksum of it."""
    record: dict[str, Any] = msgspec.to_builtins(run)
    return {**record, "checksum": digest_of(record)}


def read_run(folder: Folder, *, with_tables: bool = True) -> Run | None:
    """Read and check the frozen run of a directory; None if the directory has no run.

    Args:
        folder: The directory.
        with_tables: Whether to check that the plan and the sources exist and have as many rows as the run states.
    """
    data = read_existing(folder, RUN, MAX_JSON_BYTES)
    if data is None:
        return None
    try:
        _check_checksum(data)
        written = decode(data, _Format).format
        if not OLDEST_STORE_FORMAT <= written <= LATEST_STORE_FORMAT:
            readable = f"formats {OLDEST_STORE_FORMAT} to {LATEST_STORE_FORMAT}"
            raise StoreError(f"{folder.root} was written in format {written}; this tokenmill reads {readable}")
        run = decode(data, Run)
        _check_counts(run)
        _check_tokenizer(run.job)
        _check_options(run.job)
        _check_files(run)
    except MalformedDataError as damage:
        raise damaged(folder, RUN, str(damage)) from damage
    if with_tables:
        tables.check_tables(folder, run)
    return run


def require_run(folder: Folder) -> Run:
    """Read the frozen run of a directory. Raises StoreError if the directory has no run."""
    run = read_run(folder)
    if run is None:
        raise _no_store(folder)
    return run


def _no_store(folder: Folder) -> StoreError:
    if not folder.is_remote and not os.path.lexists(folder.root):
        return StoreError(f"no such store: {folder.root}", *did_you_mean(folder.root), exit_code=USAGE)
    return StoreError(
        f"{folder.root} is not a tokenmill store",
        f"There is no {RUN} in it. `tokenmill prepare SOURCE --tokenizer T --out DIR` makes one.",
        exit_code=USAGE,
    )


def read_vocabulary(folder: Folder, tokenizer: TokenizerSpec) -> bytes:
    """Read the vocabulary of a run and compare it with its SHA-256."""
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


def _check_checksum(data: bytes) -> None:
    """Compare the content of `run.json` with its checksum. Those of earlier versions have none."""
    content = decode(data, dict[str, Any])
    checksum = content.pop("checksum", None)
    if checksum is not None and checksum != digest_of(content):
        raise MalformedDataError("it is not as it was written")


def _check_counts(run: Run) -> None:
    job = run.job
    counts = [run.units, run.sources, run.source_bytes, run.text_bytes, job.unit_bytes]
    counts += [job.limit_units or 0, job.document_bytes or 0]
    counts += [limit for limit in (job.min_tokens, job.max_tokens) if not isinstance(limit, msgspec.UnsetType)]
    counts += [count for change in run.history for count in (change.documents, change.tokens)]
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
    if not _SHA256.fullmatch(tokenizer.sha256) or tokenizer.file != expected:
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
    """Refuse a hash or a request that cannot be part of the name of a file."""
    lists = [sha256 for sha256 in (run.job.deny, run.job.dedup) if not isinstance(sha256, msgspec.UnsetType)]
    tables_of_changes = [change.sha256 for change in run.history if change.sha256]
    for sha256 in (run.plan_sha256, run.sources_sha256, *lists, *tables_of_changes):
        if not _SHA256.fullmatch(sha256):
            raise MalformedDataError(f"a file has the hash {sha256[:100]!r}")
    for change in run.history:
        if change.request and not REQUEST_NAME.fullmatch(change.request):
            raise MalformedDataError(f"an erasure has the name {change.request[:100]!r}")
