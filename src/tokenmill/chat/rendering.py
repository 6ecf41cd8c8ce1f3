"""Renders the JSON text of conversations. A process keeps one renderer for each template."""

from __future__ import annotations

import functools
from collections.abc import Callable

import msgspec

from tokenmill.chat.renderer import NOT_FOUND, CannotRender, Rendered, Renderer
from tokenmill.chat.spec import Chat


def text_renderer(chat: Chat) -> Callable[[str], list[Rendered]]:
    """The function that renders the JSON text of a conversation. It raises CannotRender."""
    return functools.partial(_render, _renderer(msgspec.json.encode(chat)))


def _render(renderer: Renderer, text: str) -> list[Rendered]:
    documents = renderer.render(msgspec.json.decode(text))
    if not documents:
        raise CannotRender(NOT_FOUND, "no turn of it is trained on")
    return documents


@functools.lru_cache(maxsize=2)
def _renderer(chat: bytes) -> Renderer:
    return Renderer(msgspec.json.decode(chat, type=Chat))
