"""The page of a run that goes on: how far it is, as a bar and as lines. The browser loads it again by itself."""

from __future__ import annotations

from collections.abc import Iterable

from tokenmill.analysis.html.markup import definitions, escape, page, section

REFRESH_SECONDS = 5


def render_status(directory: str, state: str, fraction: float, lines: Iterable[tuple[str, str]]) -> str:
    """The page of a run in this state. Only the page of a running run is loaded again."""
    name = directory.rstrip("/").rpartition("/")[2] or directory
    bar = f'<progress max="1" value="{fraction:.4f}"></progress>'
    facts = definitions((label, escape(value)) for label, value in lines)
    body = section("run", f"{state}, {fraction:.1%}", bar, facts)
    return page(f"{fraction:.0%} {name}", "status", directory, body, REFRESH_SECONDS if state == "running" else None)
