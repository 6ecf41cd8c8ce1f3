"""`tokenmill template`: how loss masks are made for a chat template, and a conversation with its mask."""

from __future__ import annotations

import itertools
import os
from contextlib import suppress
from dataclasses import fields
from typing import Any, Literal

import msgspec

from tokenmill.chat.renderer import REFUSED, CannotRender, Rendered, Renderer
from tokenmill.chat.rendering import as_arrays, text_renderer
from tokenmill.chat.spec import ALL, ASSISTANT
from tokenmill.chat.turns import PROBES
from tokenmill.errors import SourceError, UsageError
from tokenmill.humanize import Readable
from tokenmill.options import ChatOptions, JobOptions, TemplateOptions
from tokenmill.pipeline.planning.request import NO_SOURCES, find_sources, make_request
from tokenmill.sources import Discovery, file_at, read_documents
from tokenmill.store.job import Job
from tokenmill.store.member import whole_file
from tokenmill.system.arguments import takes
from tokenmill.tokenization.resolve import Vocabulary, resolve
from tokenmill.tokenization.token_bytes import token_bytes_lookup
from tokenmill.tokenization.tokenizer import Tokenizer

Masks = Literal["tags", "marks", "all"]


class TemplateDocument(Readable, msgspec.Struct, frozen=True):
    """A document that a template makes of a conversation: its tokens, with the text of each.

    `trained` are the ranges of its tokens that are trained on.
    """

    text: str
    tokens: list[int]
    texts: list[str]
    trained: list[tuple[int, int]]


class TemplateInfo(Readable, msgspec.Struct, frozen=True, kw_only=True):
    """How masks are made for a chat template.

    Attributes:
        tokenizer: The tokenizer.
        masks: `tags`: by `{% generation %}`. `marks`: the turns are found in the text. `all`: everything is trained on.
        prompt: What a turn of the assistant begins with, which inference supplies and no model learns.
        stops: The tokens that end a turn, and are trained on.
        is_stable: Whether the text of the first messages stays as it is when others follow. Else `turns="each"` gives
            each turn the text that a model meets.
        asks_for_date: Whether the template has a place for the date.
        constants: The variables of the template.
        refused: Why the conversation is not a document; empty if it is one.
        documents: What the template makes of the conversation: of a row of the file, or of a short one of ours.
    """

    tokenizer: str
    masks: Masks
    prompt: str
    stops: list[str]
    is_stable: bool
    asks_for_date: bool
    constants: dict[str, Any]
    refused: str
    documents: list[TemplateDocument]


@takes(TemplateOptions)
def template(options: TemplateOptions) -> TemplateInfo:
    """How loss masks are made for the chat template of a model, with a conversation as an example."""
    chosen = {each.name: getattr(options, each.name) for each in fields(ChatOptions)}
    job_options = JobOptions([], tokenizer=options.model, **{**chosen, "messages": options.messages or "messages"})
    source, row = options.source, options.row
    vocabulary = resolve(options.model)
    discovery = NO_SOURCES if source is None else find_sources([os.fspath(source)])
    job = make_request(job_options, discovery, vocabulary).job
    if job.chat is None:
        raise UsageError("no column of messages is given", "Name it: --messages NAME.")
    renderer = Renderer(job.chat)
    renderer.require_turns()
    refused, documents = "", list[Rendered]()
    try:
        documents = _example(renderer) if source is None else text_renderer(job.chat)(_read_row(job, discovery, row))
    except CannotRender as error:
        refused = f"{error.reason}: {error.detail}"
    has_tags = renderer.template.has_tags and job.chat.train == (ASSISTANT,)
    return TemplateInfo(
        tokenizer=vocabulary.spec.name,
        masks="all" if ALL in job.chat.train else "tags" if has_tags else "marks",
        prompt=renderer.turns.header,
        stops=list(renderer.turns.stops),
        is_stable=renderer.turns.is_stable,
        asks_for_date=renderer.template.needs_date,
        constants=job.chat.constants,
        refused=refused,
        documents=_encode(job, vocabulary, documents),
    )


def _example(renderer: Renderer) -> list[Rendered]:
    """What the template makes of the first of our conversations that it renders."""
    for messages, tools in PROBES:
        with suppress(CannotRender):
            return renderer.render({"messages": messages, "tools": tools})
    raise CannotRender(REFUSED, "it renders none of the conversations that it was tried with")


def _read_row(job: Job, discovery: Discovery, row: int) -> str:
    """The conversation of a row of the first source."""
    options, file = job.read_options(on_bad="fail"), file_at(discovery.table, 0)
    file_slice, before = whole_file(file, options), 0
    for documents in read_documents(file, file_slice, options) if file_slice is not None else ():
        if row - before < len(documents.rows):
            text = documents.text[row - before].as_py()
            if text is None:
                raise SourceError(f"row {row:,} has no conversation: it is null", f"file         {file.path}")
            return str(text)
        before += len(documents.rows)
    raise SourceError(f"there is no row {row:,}", f"file         {file.path}", f"rows         {before:,}")


def _encode(job: Job, vocabulary: Vocabulary, documents: list[Rendered]) -> list[TemplateDocument]:
    """The tokens of the documents, by the reference."""
    lookup = token_bytes_lookup(vocabulary.spec, vocabulary.content)
    encoded = Tokenizer(job.encoder, vocabulary.content, "reference").encode_pieces(*as_arrays(documents))
    made = []
    for number, document in enumerate(documents):
        tokens = encoded.document(number).tolist()
        edges = [] if encoded.train is None else encoded.train.document(number).tolist()
        trained = list(itertools.pairwise(edges))[::2]
        texts = [lookup(token).decode(errors="backslashreplace") for token in tokens]
        made.append(TemplateDocument(document.text, tokens, texts, trained))
    return made
