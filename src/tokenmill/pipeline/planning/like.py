"""What a call takes from an existing store.

With `--like` that is the tokenizer, begin and end token, column and limits, for other sources. A run that is resumed
takes its tokenizer, so that a moved branch or a missing Hub changes nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from tokenmill.errors import CorruptStore, StoreError, UsageError
from tokenmill.options import JobOptions, PrepareOptions
from tokenmill.pipeline.planning.chat import CHAT_OPTIONS, FormerChat, options_of_chat
from tokenmill.pipeline.planning.pieces import DEPENDENT
from tokenmill.pipeline.planning.store_sources import with_source, without_effect
from tokenmill.pipeline.planning.token_sources import options_of_tokens
from tokenmill.storage import Folder, folder_at
from tokenmill.store.chain import Head, erased_rules
from tokenmill.store.deny import read_content, read_rules
from tokenmill.store.job import Job, read_run, read_vocabulary
from tokenmill.store.source_store import SourceStore
from tokenmill.store.state import Operation, enter
from tokenmill.system.arguments import options_of
from tokenmill.tokenization import hub_models
from tokenmill.tokenization.resolve import Vocabulary

# The value that switches an option off.
OFF = "none"

# What names the text of documents, and what cannot be used with segments or messages.
TEXTS = ("column", "template", "segments", "messages", "tokens_column")
OTHER_TEXT = ("column", "template", "join", "separator")

OPTIONS = options_of(JobOptions)


@dataclass(frozen=True, slots=True)
class StoreText:
    """What a store has beside options: its vocabulary, the list of rows that it leaves out, and notes for the user.

    `source` is the store that is the source of the call.
    """

    vocabulary: Vocabulary | None = None
    deny: bytes = b""
    notes: tuple[str, ...] = ()
    chat: FormerChat | None = None
    source: SourceStore | None = None


NO_STORE = StoreText()


def with_store(
    options: PrepareOptions, deny: bytes | None, source: SourceStore | None = None
) -> tuple[PrepareOptions, StoreText]:
    """The options of a call; with `like`, those of that store in place of the ones that are not given.

    The value `none` switches an option off, also one of that store. A given column stands in place of that store's
    template, too. Tokenizer, begin and end token cannot be given with `like`: stores that differ in them cannot be read
    together. `deny` is the list that is given, `source` the store that is the source.
    """
    _refuse_two_texts(options)
    if options.like is None and source is not None:
        vocabulary = None if options.tokenizer is not None else _vocabulary(source.folder, source.job)
        return _without_off(with_source(options, source)), StoreText(vocabulary, deny or b"", source=source)
    if options.like is None:
        if options.tokenizer is None:
            raise UsageError("no tokenizer is given", "Give --tokenizer T, or --like DIR to take that of a store.")
        return _without_off(options), StoreText(deny=deny or b"")
    for name in ("tokenizer", "eot", "bos"):
        if getattr(options, name) is not None:
            raise UsageError(f"--{name} cannot be used with --like", f"The new store takes it from {options.like}.")
    folder = folder_at(os.fspath(options.like))
    found = enter(folder, Operation.LIKE)
    job = found.run.job
    store = StoreText(
        vocabulary=_vocabulary(folder, job),
        deny=_deny_list(folder, job) if deny is None else deny,
        notes=_erased_notes(folder, found.head, deny),
        chat=None if job.chat is None else FormerChat(job.chat, is_like=True),
        source=source,
    )
    taken = _options_of(job)
    if any(getattr(options, name) is not None for name in TEXTS):
        has_pieces = options.segments is not None or options.messages is not None
        taken |= dict.fromkeys((*OTHER_TEXT, *TEXTS) if has_pieces else TEXTS)
        taken |= {"null": options.null, "template_special": options.template_special}
    if job.chat is not None and not taken["messages"] and options.messages is None:
        taken |= dict.fromkeys((*CHAT_OPTIONS, "special"))
    for name, dependent in DEPENDENT.items():
        taken |= dict.fromkeys(dependent if getattr(options, name) == OFF else ())
    taken = {name: value for name, value in taken.items() if getattr(options, name) is None}
    if source is not None:
        unused = without_effect(source, job.tokenizer)
        taken = {name: value for name, value in taken.items() if name not in unused}
        return _without_off(with_source(replace(options, **taken), source)), store
    return _without_off(replace(options, **taken)), store


def _vocabulary(folder: Folder, job: Job) -> Vocabulary:
    return Vocabulary(job.tokenizer, read_vocabulary(folder, job.tokenizer))


def _refuse_two_texts(options: PrepareOptions) -> None:
    """Raise UsageError for options that name different texts of a document."""
    if options.column is not None and options.template not in {None, OFF}:
        raise UsageError("--column cannot be used with --template", "The template names the columns.")
    for name in OTHER_TEXT if options.segments not in {None, OFF} else ():
        if getattr(options, name) not in {None, OFF}:
            raise UsageError(f"--{name} cannot be used with --segments", "The text of a document is its segments.")
    for name in ("segments", "messages", *OTHER_TEXT) if options.tokens_column not in {None, OFF} else ():
        if getattr(options, name) not in {None, OFF}:
            raise UsageError(f"--{name} cannot be used with --tokens-column", "The documents are token ids already.")
    for name in ("segments", *OTHER_TEXT) if options.messages not in {None, OFF} else ():
        if getattr(options, name) not in {None, OFF}:
            advice = "The text of a document is what the chat template makes of its messages."
            raise UsageError(f"--{name} cannot be used with --messages", advice)


def _options_of(job: Job) -> dict[str, Any]:
    """The options that another store takes from this job."""
    values = {
        "tokenizer": job.tokenizer.name,
        "eot": "none" if job.end is None else job.end,
        "bos": "none" if job.begin is None else job.begin,
        **{name: getattr(job, name, None) for name, about in OPTIONS.items() if about.of_store or about.can_be_off},
        "max_document_bytes": job.document_bytes,
        **options_of_chat(job.chat),
        **options_of_tokens(job.tokens),
        "dedup": None if job.dedup is None else "exact",
        "deny": None,
    }
    defaults = {field.name: field.default for field in msgspec.structs.fields(Job)}
    return {name: value for name, value in values.items() if value != defaults.get(name, msgspec.NODEFAULT)}


def _without_off(options: PrepareOptions) -> PrepareOptions:
    """The options without those that are `none`."""
    names = [name for name, about in OPTIONS.items() if about.can_be_off]
    off: dict[str, Any] = {name: None for name in names if getattr(options, name) in (OFF, (OFF,), [OFF])}
    return replace(options, **off)


def _erased_notes(folder: Folder, head: Head, deny: bytes | None) -> tuple[str, ...]:
    """A note if the new sources may have documents again that were erased in that store."""
    rules = erased_rules(folder, head)
    if set(rules.splitlines()) <= set((deny or b"").splitlines()):
        return ()
    note = f"documents that were erased in {folder.root} may be in the new store"
    return (f"{note}; this leaves them out: --deny {folder.root}",)


def stored_rules(folder: Folder) -> bytes:
    """The rows that were erased in a store, and those that it was made without, as a list for --deny."""
    found = enter(folder, Operation.LIKE)
    return _deny_list(folder, found.run.job) + erased_rules(folder, found.head)


def _deny_list(folder: Folder, job: Job) -> bytes:
    if not job.deny:
        return b""
    read_rules(folder, job.deny)  # before the list becomes part of a request
    return read_content(folder, job.deny)


def stored_chat(folder: Folder) -> FormerChat | None:
    """The chat of the run in a directory."""
    try:
        run = read_run(folder)
    except StoreError:  # as below
        return None
    return None if run is None or run.job.chat is None else FormerChat(run.job.chat, is_like=False)


def stored_vocabulary(folder: Folder, tokenizer: Any) -> Vocabulary | None:
    """The tokenizer of the run in a directory, if it was resolved from the same name of a model on the Hub.

    A vocabulary that the store has lost is fetched again, at the commit of the run.
    """
    if not isinstance(tokenizer, str) or hub_models.is_local(tokenizer):
        return None
    model = hub_models.parse(tokenizer)
    if model is None:
        return None
    try:
        run = read_run(folder)
    except StoreError:  # it is read again, and the error is raised, when the run is opened
        return None
    if run is None or not model.is_origin_of(run.job.tokenizer):
        return None
    spec = run.job.tokenizer
    try:
        return Vocabulary(spec, read_vocabulary(folder, spec))
    except CorruptStore:
        return hub_models.from_hub(model.at(str(spec.commit)))
