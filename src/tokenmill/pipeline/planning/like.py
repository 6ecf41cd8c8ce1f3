"""`--like`: take tokenizer, begin and end token, column and limits from an existing store, for other sources."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from tokenmill.errors import UsageError
from tokenmill.pipeline.planning.request import ColumnOptions
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

# The value that switches an option off.
OFF = "none"

# Of a number that is given as text.
MAX_DIGITS = 18


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
    special: str | None = None,
    template_special: str | None = None,
    dedup: str | None = None,
    min_tokens: int | str | None = None,
    max_tokens: int | str | None = None,
) -> TextOptions:
    """The options of a call; with `like`, those of that store in place of the ones that are not given.

    The value `none` switches an option off, also one of that store. A given column stands in place of that store's
    template, too. Tokenizer, begin and end token cannot be given with `like`: stores that differ in them cannot be read
    together.
    """
    if column is not None and template not in (None, OFF):
        raise UsageError("--column cannot be used with --template", "The template names the columns.")
    tokenizer = os.fspath(tokenizer) if isinstance(tokenizer, os.PathLike) else tokenizer
    if like is None:
        if tokenizer is None:
            raise UsageError("no tokenizer is given", "Give --tokenizer T, or --like DIR to take that of a store.")
        columns = ColumnOptions(
            keep=_chosen(keep, None) or (),
            deny=deny or b"",
            where=_chosen(where, None) or "",
            join=_chosen(join, None),
            template=_chosen(template, None),
            null=null,
            special=special,
            template_special=template_special,
            dedup=_chosen(dedup, None),
            min_tokens=_limit("--min-tokens", min_tokens, None),
            max_tokens=_limit("--max-tokens", max_tokens, None),
        )
        return TextOptions(tokenizer, column, _chosen(separator, None), eot, bos, max_document_bytes, columns)
    for option, value in (("--tokenizer", tokenizer), ("--eot", eot), ("--bos", bos)):
        if value is not None:
            raise UsageError(f"{option} cannot be used with --like", f"The new store takes it from {like}.")
    folder = folder_at(like)
    run = require_run(folder)
    job = run.job
    takes_no_template = template is not None or column is not None
    return TextOptions(
        tokenizer=job.tokenizer.name,
        column=column if column is not None else job.column,
        separator=_chosen(separator, job.separator),
        eot="none" if job.end is None else job.end,
        bos="none" if job.begin is None else job.begin,
        max_document_bytes=max_document_bytes if max_document_bytes is not None else job.document_bytes,
        columns=ColumnOptions(
            keep=_chosen(keep, job.kept_columns) or (),
            deny=deny if deny is not None else _deny_list(folder, job),
            where=_chosen(where, job.filter_text) or "",
            join=_chosen(join, _set(job.join)),
            template=_chosen(template, _set(job.template) if column is None else None),
            null=null if null is not None or takes_no_template else _set(job.null),
            special=_set(job.special) if special is None else special,
            template_special=template_special
            if template_special is not None or takes_no_template
            else _set(job.template_special),
            dedup=_chosen(dedup, None if isinstance(job.dedup, msgspec.UnsetType) else "exact"),
            min_tokens=_limit("--min-tokens", min_tokens, _set(job.min_tokens)),
            max_tokens=_limit("--max-tokens", max_tokens, _set(job.max_tokens)),
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


def _chosen(given: T | None, taken: T | None) -> T | None:
    """The given value; None if it is `none`; the one of a store if none is given."""
    if given is None:
        return taken
    return None if given in (OFF, (OFF,)) else given


def _limit(option: str, given: int | str | None, taken: int | None) -> int | None:
    """A number of tokens, which may be given as text."""
    if given is None or given == OFF:
        return taken if given is None else None
    if isinstance(given, str) and not (given.isdecimal() and len(given) <= MAX_DIGITS):
        raise UsageError(f"{option} {given} is not a number of tokens", f"Give a whole number, or {OFF}.")
    return int(given)


def _set(value: T | msgspec.UnsetType) -> T | None:
    return None if isinstance(value, msgspec.UnsetType) else value


def _deny_list(folder: Folder, job: Job) -> bytes:
    if isinstance(job.deny, msgspec.UnsetType):
        return b""
    read_rules(folder, job.deny)  # before the list becomes part of a request
    return read_content(folder, job.deny)
