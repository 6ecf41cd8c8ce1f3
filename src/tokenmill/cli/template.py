"""The command `template`: how loss masks are made for a chat template, and a conversation with its mask."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output

if TYPE_CHECKING:
    from tokenmill.results import TemplateInfo

MASKS = {
    "tags": "by the template's own {% generation %} tags",
    "marks": "the turns of the assistant are found in the text, compared with the generation prompt",
    "all": "everything is trained on",
}


@options.command(
    "Show the loss mask of a chat template.",
    "tokenmill template Qwen/Qwen3-8B chats.parquet --row 7",
    common=options.GENERAL,
    record="TemplateOptions",
    declared=None,
)
@click.argument("model", metavar="MODEL")
@click.argument("source", required=False, metavar="[FILE]")
def template(model: str, source: str | None, as_json: bool, **arguments: Any) -> None:
    """Show how loss masks are made for the chat template of MODEL, and a conversation token by token.

    The conversation is a row of FILE, or a short one of ours. `prepare --messages` makes the same masks.
    """
    info = tokenmill.template(model, source, **arguments)
    output.show(info, as_json, _lines)
    if as_json:
        return
    for document in info.documents:
        output.print_tokens(document.tokens, [text.encode() for text in document.texts], document.trained)


def _lines(info: TemplateInfo) -> Iterable[output.Line]:
    yield "tokenizer", info.tokenizer
    yield "masks", MASKS[info.masks]
    yield "prompt", f"{json.dumps(info.prompt, ensure_ascii=False)} (not trained on)" if info.prompt else "none"
    yield "stop", f"{', '.join(info.stops)} (trained on)" if info.stops else "no token ends a turn"
    yield (
        "prefixes",
        "stable" if info.is_stable else "not stable: earlier turns change when others follow (--turns each)",
    )
    if info.asks_for_date:
        yield "date", f"{info.constants['date']} (--chat-set date)" if "date" in info.constants else "asked for"
    if info.refused:
        yield "row", info.refused
    for document in info.documents:
        trained = sum(end - begin for begin, end in document.trained)
        yield from output.trained_lines(trained, len(document.tokens))
