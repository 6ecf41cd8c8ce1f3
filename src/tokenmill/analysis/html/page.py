"""The whole page: key figures first, then one section after another. Equal statistics give equal bytes."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill.analysis.html import content, run_section
from tokenmill.analysis.html.markup import card, card_list, escape, page, percent
from tokenmill.analysis.statistics import Statistics
from tokenmill.humanize import number, size


def render(stats: Statistics) -> str:
    """The report as one HTML file."""
    directories = [stats.directory] if stats.stores is None else [store.name for store in stats.stores.largest]
    name = ", ".join(path.rstrip("/").rpartition("/")[2] or path for path in directories)
    notices = "".join(f'<p class="notice">{escape(notice)}</p>' for notice in stats.notices)
    sections = [
        *content.breakdowns(stats),
        content.lengths(stats),
        content.bytes_per_token(stats),
        content.vocabulary(stats),
        content.duplicates(stats),
        content.skipped_rows(stats),
        run_section.run(stats),
        run_section.origin(stats),
    ]
    body = "\n".join([notices + card_list(_cards(stats)), _navigation(stats), *sections])
    return page(name, "report", stats.directory, body)


def _cards(stats: Statistics) -> Iterator[str]:
    ratio = f"{stats.bytes_per_token:.2f}" if stats.bytes_per_token is not None else "\u2013"
    used, ids, sources = stats.vocabulary.used, stats.vocabulary.size, stats.sources.count
    yield card("Tokens", number(stats.tokens), f"{stats.tokens:,}" if stats.tokens >= 1000 else "")
    yield card("Documents", number(stats.documents), f"{stats.documents:,}" if stats.documents >= 1000 else "")
    yield card("Text", size(stats.text_bytes), f"{sources:,} sources" if sources != 1 else "1 source")
    yield card("Bytes per token", ratio, stats.origin.tokenizer)
    median = f"{stats.lengths.quantiles['50%']:,}" if stats.documents else "\u2013"
    yield card("Median length", median, "tokens in a document")
    if stats.duplicates is not None:
        tokens = percent(stats.duplicates.tokens, stats.tokens)
        yield card("Duplicate documents", percent(stats.duplicates.documents, stats.documents), f"{tokens} of tokens")
    yield card("Vocabulary used", percent(used, ids), f"{used:,} of {ids:,} ids")
    yield card("Skipped rows", f"{stats.skipped.rows:,}", f"{stats.skipped.quarantined:,} in quarantine")


def _navigation(stats: Statistics) -> str:
    links = [
        *([("stores", "Stores")] if stats.stores is not None else []),
        ("sources", "Sources"),
        *((f"by-{i}", f"By {column.by}") for i, column in enumerate(stats.columns)),
        ("lengths", "Lengths"),
        ("bytes", "Bytes per token"),
        ("vocabulary", "Vocabulary"),
        ("duplicates", "Duplicates"),
        ("left-out", "Skipped rows"),
        ("run", "Run"),
        ("origin", "Origin"),
    ]
    return f"<nav>{''.join(f'<a href=#{anchor}>{escape(label)}</a>' for anchor, label in links)}</nav>"
