"""Renders the JSON text of conversations. A process keeps one renderer for each template."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.chat.renderer import NOT_FOUND, CannotRender, Rendered, Renderer
from tokenmill.chat.spec import Chat
from tokenmill.spans import Spans


def text_renderer(chat: Chat) -> Callable[[str], list[Rendered]]:
    """The function that renders the JSON text of a conversation. It raises CannotRender."""
    return functools.partial(_render, _renderer(msgspec.json.encode(chat)))


def _render(renderer: Renderer, text: str) -> list[Rendered]:
    documents = renderer.render(msgspec.json.decode(text))
    if not documents:
        raise CannotRender(NOT_FOUND, "no turn of it is trained on")
    return documents


def as_arrays(documents: Sequence[Rendered | None]) -> tuple[pa.LargeStringArray, Spans]:
    """The texts of some documents, and the bytes that are trained on. None is a null without any."""
    spans = [[] if document is None else document.spans for document in documents]
    values = [edge for each in spans for span in each for edge in span]
    texts = [None if document is None else document.text for document in documents]
    offsets = np.cumsum([0, *(2 * len(each) for each in spans)])
    return pa.array(texts, pa.large_string()), Spans(np.array(values, np.uint32), offsets)


@functools.lru_cache(maxsize=2)
def _renderer(chat: bytes) -> Renderer:
    return Renderer(msgspec.json.decode(chat, type=Chat))
