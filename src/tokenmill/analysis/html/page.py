"""The page: key figures first, then section by section. The same figures give the same bytes."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources

from tokenmill.analysis.html import content, run_section
from tokenmill.analysis.html.markup import card, cards, share, text
from tokenmill.analysis.statistics import Statistics
from tokenmill.humanize import number, size

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
"""What a browser may fetch for the page, and run: nothing."""


def render(found: Statistics) -> str:
    """The report as one file of HTML."""
    name = found.directory.rstrip("/").rpartition("/")[2] or found.directory
    style = resources.files("tokenmill.analysis.html").joinpath("style.css").read_text()
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{text(name)} \u2013 tokenmill report</title>\n<style>\n{style}</style></head>\n"
    )
    header = (
        f'<header><p class="kicker">tokenmill report</p><h1><bdi>{text(name)}</bdi></h1>'
        f'<p class="path"><bdi>{text(found.directory)}</bdi></p></header>\n'
    )
    notices = "".join(f'<p class="notice">{text(notice)}</p>' for notice in found.notices)
    body = "\n".join([header + notices + cards(_cards(found)), _contents(found), *_sections(found)])
    return f"{head}<body><main>{body}\n</main></body></html>\n"


def _cards(found: Statistics) -> Iterator[str]:
    ratio = f"{found.bytes_per_token:.2f}" if found.bytes_per_token is not None else "\u2013"
    used, ids = found.vocabulary.used, found.vocabulary.size
    yield card("Tokens", number(found.tokens), f"{found.tokens:,}" if found.tokens >= 1000 else "")
    yield card("Documents", number(found.documents), f"{found.documents:,}" if found.documents >= 1000 else "")
    yield card(
        "Text", size(found.text_bytes), f"{found.sources.count:,} sources" if found.sources.count != 1 else "1 source"
    )
    yield card("Bytes per token", ratio, found.origin.tokenizer)
    median = f"{found.lengths.quantiles['50%']:,}" if found.documents else "\u2013"
    yield card("Median length", median, "tokens in a document")
    if found.duplicates is not None:
        tokens = share(found.duplicates.tokens, found.tokens)
        yield card("Duplicate documents", share(found.duplicates.documents, found.documents), f"{tokens} of tokens")
    yield card("Vocabulary used", share(used, ids), f"{used:,} of {ids:,} ids")
    yield card("Rows left out", f"{found.skipped.rows:,}", f"{found.skipped.quarantined:,} in quarantine")


def _contents(found: Statistics) -> str:
    columns = [(f"by-{place}", f"By {each.by}") for place, each in enumerate(found.columns)]
    links = [
        ("sources", "Sources"),
        *columns,
        ("lengths", "Lengths"),
        ("bytes", "Bytes per token"),
        ("vocabulary", "Vocabulary"),
        ("duplicates", "Duplicates"),
        ("left-out", "Rows left out"),
        ("run", "Run"),
        ("origin", "Origin"),
    ]
    return f"<nav>{''.join(f'<a href=#{anchor}>{text(word)}</a>' for anchor, word in links)}</nav>"


def _sections(found: Statistics) -> Iterator[str]:
    yield from content.breakdowns(found)
    yield content.lengths(found)
    yield content.ratios(found)
    yield content.vocabulary(found)
    yield content.duplicates(found)
    yield content.left_out(found)
    yield run_section.course(found)
    yield run_section.origin(found)
