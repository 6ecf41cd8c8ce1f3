"""`--like`: take tokenizer, begin and end token, column and limits from an existing store, for other sources."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tokenmill.errors import UsageError
from tokenmill.pipeline.request import ColumnOptions
from tokenmill.storage import folder_at
from tokenmill.store.deny import deny_name, read_content, read_rules
from tokenmill.store.erasures import DENY_FILE, erasure_file
from tokenmill.store.run import read_vocabulary, require_run
from tokenmill.tokenizers.resolve import Vocabulary

if TYPE_CHECKING:
    from tokenmill.storage import Folder
    from tokenmill.store.job import Job, Run
    from tokenmill.tokenizers.objects import TokenizerObject

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TextOptions:
    """How text becomes tokens, as the user asked for it or as a store has it. None means not given.

    `vocabulary` is set if the options are those of a store. `notes` are for the user.
    """

    tokenizer: str | TokenizerObject
    column: str | None = None
    separator: str | None = None
    eot: str | int | None = None
    bos: str | int | None = None
    max_document_bytes: str | int | None = None
    columns: ColumnOptions = field(default_factory=ColumnOptions)
    vocabulary: Vocabulary | None = None
    notes: tuple[str, ...] = ()


def text_options(  # noqa: PLR0913 - the options, by their names
    tokenizer: str | os.PathLike[str] | TokenizerObject | None,
    like: str | None,
    *,
    column: str | None = None,
    separator: str | None = None,
    eot: str | int | None = None,
    bos: str | int | None = None,
    max_document_bytes: str | int | None = None,
    keep: tuple[str, ...] | None = None,
    deny: bytes | None = None,
    where: str | None = None,
    join: str | None = None,
    template: str | None = None,
    null: str | None = None,
    dedup: str | None = None,
    min_tokens: int | None = None,
    max_tokens: int | None = None,
) -> TextOptions:
    """The options of a call; with `like`, those of that store in place of the ones that are not given.

    A given column stands in place of that store's template, too. Tokenizer, begin and end token cannot be given with
    `like`: stores that differ in them cannot be read together.
    """
    if column is not None and template is not None:
        raise UsageError("--column cannot be used with --template", "The template names the columns.")
    tokenizer = os.fspath(tokenizer) if isinstance(tokenizer, os.PathLike) else tokenizer
    if like is None:
        if tokenizer is None:
            raise UsageError("no tokenizer is given", "Give --tokenizer T, or --like DIR to take that of a store.")
        columns = ColumnOptions(
            keep or (), deny or b"", where or "", join, template, null, dedup, min_tokens, max_tokens
        )
        return TextOptions(tokenizer, column, separator, eot, bos, max_document_bytes, columns)
    for option, value in (("--tokenizer", tokenizer), ("--eot", eot), ("--bos", bos)):
        if value is not None:
            raise UsageError(f"{option} cannot be used with --like", f"The new store takes it from {like}.")
    folder = folder_at(like)
    run = require_run(folder)
    job = run.job
    return TextOptions(
        tokenizer=job.tokenizer.name,
        column=column if column is not None else job.column,
        separator=separator if separator is not None else job.separator,
        eot="none" if job.end is None else job.end,
        bos="none" if job.begin is None else job.begin,
        max_document_bytes=max_document_bytes if max_document_bytes is not None else job.document_bytes,
        columns=ColumnOptions(
            keep=keep if keep is not None else job.kept_columns,
            deny=deny if deny is not None else _deny_list(folder, job),
            where=where if where is not None else job.filter_text,
            join=join if join is not None or isinstance(job.join, msgspec.UnsetType) else job.join,
            template=template if template is not None or column is not None else job.template or None,
            null=null if null is not None or template is not None or column is not None else _given(job.null),
            dedup=dedup if dedup is not None or isinstance(job.dedup, msgspec.UnsetType) else "exact",
            min_tokens=min_tokens if min_tokens is not None else _given(job.min_tokens),
            max_tokens=max_tokens if max_tokens is not None else _given(job.max_tokens),
        ),
        vocabulary=Vocabulary(job.tokenizer, read_vocabulary(folder, job.tokenizer)),
        notes=_erased_notes(folder, run, deny),
    )


def _erased_notes(folder: Folder, run: Run, deny: bytes | None) -> tuple[str, ...]:
    """A note if the new sources may have documents again that were erased in that store."""
    given = set((deny or b"").splitlines())
    requests = [change.request for change in run.history if change.documents]
    names = [erasure_file(request, DENY_FILE) for request in requests]
    missing = [name for name in names if folder.exists(name) and not set(folder.read(name).splitlines()) <= given]
    if not missing:
        return ()
    lists = [] if isinstance(run.job.deny, msgspec.UnsetType) else [deny_name(run.job.deny)]
    files = " ".join(folder.path(name) for name in (*lists, *missing))
    note = f"documents that were erased in {folder.root} may be in the new store"
    return (f"{note}. Join these lists into one file for --deny: {files}",)


def _given(option: T | msgspec.UnsetType) -> T | None:
    return None if isinstance(option, msgspec.UnsetType) else option


def _deny_list(folder: Folder, job: Job) -> bytes:
    if isinstance(job.deny, msgspec.UnsetType):
        return b""
    read_rules(folder, job.deny)  # before the list becomes part of a request
    return read_content(folder, job.deny)
