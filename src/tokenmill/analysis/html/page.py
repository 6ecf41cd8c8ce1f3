"""The whole page: key figures first, then one section after another. Equal statistics give equal bytes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tokenmill.analysis.html import run_section
from tokenmill.analysis.html.markup import (
    BarRow,
    bar_table,
    card,
    card_list,
    escape,
    keep_end,
    keep_start,
    lead,
    page,
    percent,
    section,
    short_number,
    table,
    token_code,
)
from tokenmill.analysis.html.plots import Series, Tick, plot
from tokenmill.analysis.statistics import (
    BadRowReason,
    Breakdown,
    Duplicates,
    LengthBin,
    SkippedRows,
    Statistics,
    TokenCount,
    TokenShare,
)
from tokenmill.analysis.visible_text import display_name
from tokenmill.humanize import count, number, size
from tokenmill.sources import kind_of
from tokenmill.sources.line_numbers import place
from tokenmill.store.part import MISSING, NULL

SHOWN_TOKENS = 20
RATIO_STEP = 0.1
# So much of a source's name fits beside its bar. The end is shown, because names differ there.
NAME_CHARACTERS = 34
# The text for skip reasons that are one word in the store.
REASONS = {NULL: "null: without text", MISSING: "missing: without the column"}
NOT_BYTE_EXACT = "the tokenizer changes the text, so tokens do not stand for its very bytes."


def render(stats: Statistics) -> str:
    """The report as one HTML file."""
    directories = [stats.directory] if stats.stores is None else [store.name for store in stats.stores.largest]
    name = ", ".join(path.rstrip("/").rpartition("/")[2] or path for path in directories)
    notices = "".join(f'<p class="notice">{escape(notice)}</p>' for notice in stats.notices)
    sections = [
        *breakdowns(stats),
        lengths(stats),
        bytes_per_token(stats),
        vocabulary(stats),
        duplicates(stats),
        skipped_rows(stats),
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
    yield card("Bytes per token", ratio, stats.origin.run.job.tokenizer.name)
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


def breakdowns(stats: Statistics) -> Iterator[str]:
    """A section for the stores, if there are several, for the sources, and for each column."""
    if stats.stores is not None:
        yield _breakdown("stores", "Tokens by store", stats.stores, stats.tokens, _common_folder(stats.stores))
    yield _breakdown("sources", "Tokens by source", stats.sources, stats.tokens, _common_folder(stats.sources))
    for i, column in enumerate(stats.columns):
        yield _breakdown(f"by-{i}", f"Tokens by {column.by}", column, stats.tokens, "")


def _breakdown(anchor: str, title: str, breakdown: Breakdown, tokens: int, folder: str) -> str:
    what = breakdown.by if anchor in ("sources", "stores") else "value"
    sentence = f"{count(breakdown.count, what)}" + (f" in {folder}" if folder else "") + "."
    if breakdown.folded:
        sentence = "There were too many values to count each: each value that is named has at least the count shown."
    with_bytes = any(share.bytes is not None for share in breakdown.shares)
    headings = ["tokens", "share", "documents", *(["bytes/token"] if with_bytes else [])]
    rows = [_share_bar(share, tokens, folder, with_bytes, share is breakdown.others) for share in breakdown.shares]
    return section(anchor, title, lead(sentence), bar_table(breakdown.by, headings, rows) if rows else "")


def _share_bar(share: TokenShare, tokens: int, folder: str, with_bytes: bool, is_rest: bool) -> BarRow:
    figures = [f"{share.tokens:,}", percent(share.tokens, tokens), f"{share.documents:,}"]
    if with_bytes:
        figures.append(f"{share.bytes / share.tokens:.2f}" if share.bytes is not None and share.tokens else "\u2013")
    name = share.name if is_rest or not folder else keep_end(share.name.removeprefix(folder), NAME_CHARACTERS)
    return BarRow(f"<bdi>{escape(display_name(name))}</bdi>", share.name, share.tokens, tuple(figures), is_rest)


def _common_folder(sources: Breakdown) -> str:
    """The directory that contains all sources that are shown."""
    folders = [share.name.rpartition("/")[0].split("/") for share in sources.largest]
    levels = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    return "".join(f"{level[0]}/" for level in levels)


def lengths(stats: Statistics) -> str:
    """The section about document lengths."""
    known = stats.lengths
    if not stats.documents:
        return section("lengths", "Document lengths", lead("There is no document in this store."))
    sentence = (
        f"In tokens, begin and end tokens included. The mean is {known.mean:,.1f}, the shortest document has"
        f" {known.shortest:,}, the longest {known.longest:,}."
    )
    names = ["1 %", "5 %", "25 %", "median", "75 %", "95 %", "99 %"]
    values = [f"{length:,}" for length in known.quantiles.values()]
    quantiles = table(["of documents have at most", "tokens"], zip(names, values, strict=True))
    shorter = table(
        ["shorter than", "documents", "tokens"],
        (
            [f"{length:,}", percent(documents, 1), percent(tokens, 1)]
            for length, (documents, tokens) in known.shorter_than.items()
        ),
    )
    tables = f'<div class="two"><div><h3>Quantiles</h3>{quantiles}</div><div><h3>What fits</h3>{shorter}</div></div>'
    return section("lengths", "Document lengths", lead(sentence), _length_plot(stats), tables)


def _length_plot(stats: Statistics) -> str:
    bins = stats.lengths.bins
    titles = [_length_title(span, stats) for span in bins]
    documents = [100 * span.documents / stats.documents for span in bins]
    tokens = [100 * span.tokens / max(stats.tokens, 1) for span in bins]
    ticks = [
        Tick(i / len(bins), _binary(span.first))
        for i, span in enumerate(bins)
        if not span.first & (span.first - 1) and (len(bins) <= 24 or span.first.bit_length() % 2)
    ] or [Tick(0.0, _binary(bins[0].first))]  # a single bin may not start at a power of two
    series = [Series("documents", documents, titles), Series("their tokens", tokens, titles, "line")]
    picture = plot("Documents by length", series, ticks, lambda at: f"{at:g} %")
    return picture + '<p class="axis">tokens in a document</p>'


def _binary(length: int) -> str:
    """A bin edge in binary units: 512, 1k, 1.5k, 64k."""
    if length < 1024:
        return f"{length}"
    return f"{length / 1024:g}k" if length < 1 << 20 else f"{length / (1 << 20):g}M"


def _length_title(span: LengthBin, stats: Statistics) -> str:
    documents, tokens = percent(span.documents, stats.documents), percent(span.tokens, stats.tokens)
    edges = f"{span.first:,}" if span.first == span.last else f"{span.first:,} to {span.last:,}"
    return f"{edges} tokens: {count(span.documents, 'document')} ({documents}), {span.tokens:,} tokens ({tokens})"


def bytes_per_token(stats: Statistics) -> str:
    """The section about how much text a token stands for."""
    bins = stats.bytes_per_token_bins
    if stats.bytes_per_token is None:
        return section("bytes", "Bytes per token", lead("There is no token in this store."))
    sentence = f"{size(stats.text_bytes)} of text are {stats.tokens:,} tokens: {stats.bytes_per_token:.2f} bytes each."
    if bins is None or not any(bins):
        sentence = f"{sentence} It is not known for each document: {NOT_BYTE_EXACT}"
        return section("bytes", "Bytes per token", lead(sentence))
    used = [i for i, documents in enumerate(bins) if documents]
    first, last = min(used), max(max(used) + 1, min(used) + 5)
    shown = [*bins, *[0] * 10][first:last]
    titles = [
        f"{_ratio(i)} to {_ratio(i + 1)} bytes per token: {count(documents, 'document')}"
        for i, documents in enumerate(shown, first)
    ]
    step = 1 if len(shown) <= 8 else 5 if len(shown) <= 50 else 10
    ticks = [Tick((i - first) / len(shown), _ratio(i)) for i in range(first, last + 1) if i % step == 0]
    picture = plot("Documents by bytes per token", [Series("documents", shown, titles)], ticks, short_number)
    sentence += " Higher means better compression; low values suggest another script, code or noise."
    axis = '<p class="axis">bytes per token of a document</p>'
    return section("bytes", "Bytes per token", lead(sentence), picture, axis)


def _ratio(index: int) -> str:
    return f"{index * RATIO_STEP:.1f}"


def vocabulary(stats: Statistics) -> str:
    """The section about used and unused tokens."""
    use = stats.vocabulary
    unused = use.size - use.used
    sentence = f"{use.used:,} of {use.size:,} ids are used; {unused:,} ({percent(unused, use.size)}) are not."
    if use.covering:
        half, most, nearly = use.covering.values()
        sentence += (
            f" The {half:,} most frequent make up half of all tokens, {most:,} make up 90 %, and {nearly:,} 99 %."
        )
    rows = [_token_bar(token, stats.tokens) for token in use.most_frequent[:SHOWN_TOKENS]]
    top = bar_table("token", ["count", "share", "id"], rows) if rows else ""
    chips = "".join(f'<li title="id {token.id}">{token_code(token.piece)}</li>' for token in use.first_unused)
    rest = f'<h3>Unused, in the order of ids, without single bytes</h3><ul class="chips">{chips}</ul>' if chips else ""
    return section("vocabulary", "Vocabulary", lead(sentence), top, rest)


def _token_bar(token: TokenCount, tokens: int) -> BarRow:
    figures = (f"{token.count:,}", percent(token.count, tokens), f"{token.id}")
    return BarRow(token_code(token.piece), repr(token.piece), token.count, figures)


def duplicates(stats: Statistics) -> str:
    """The section about duplicate documents."""
    known = stats.duplicates
    if known is None:
        return section("duplicates", "Duplicates", lead("They were not looked for; see the note at the top."))
    if not known.documents:
        return section("duplicates", "Duplicates", lead("No two documents have the same tokens."))
    copies = f"{known.documents:,} {'copy' if known.documents == 1 else 'copies'} of {count(known.groups, 'document')}"
    sentence = (
        f"{percent(known.documents, stats.documents)} of the documents, with {percent(known.tokens, stats.tokens)} of"
        f" the tokens, are copies of another one, token by token: {copies}, {known.tokens:,} tokens."
    )
    heading = "<h3>Where most tokens would be saved</h3>"
    return section("duplicates", "Duplicates", lead(sentence), heading, _duplicate_groups(known))


def _duplicate_groups(known: Duplicates) -> str:
    rows = (
        [
            _location(group.source, place(kind_of(group.source) or "jsonl", group.row)),
            f"{group.copies:,}",
            f"{group.tokens:,}",
            f"{group.tokens * (group.copies - 1):,}",
        ]
        for group in known.largest
    )
    return table(["first found at", "copies", "tokens each", "tokens saved"], rows)


def _location(file: str, position: str) -> str:
    return f'<span title="{escape(file)}"><bdi>{escape(keep_end(file))}</bdi></span>, {position}'


def _position(bad: BadRowReason) -> str:
    return f"row {bad.row:,}" if bad.row is not None else place("jsonl", bad.byte or 0, bad.line or 0)


def skipped_rows(stats: Statistics) -> str:
    """The section about rows that did not become documents."""
    skipped = stats.skipped
    title = "Skipped rows"
    if not skipped.rows:
        return section("left-out", title, lead("Every row of the sources is a document of the store."))
    sentence = f"{count(skipped.rows, 'row')} did not become documents; {skipped.quarantined:,} are in quarantine."
    rows = [
        BarRow(escape(keep_start(REASONS.get(reason, reason))), keep_start(reason), number, (f"{number:,}",))
        for reason, number in skipped.reasons.items()
    ]
    return section("left-out", title, lead(sentence), bar_table("reason", ["rows"], rows), _quarantined(skipped))


def _quarantined(skipped: SkippedRows) -> str:
    if not skipped.first:
        return ""
    rows = (
        [_location(bad.file, _position(bad)), escape(keep_start(bad.reason)), escape(keep_start(bad.detail))]
        for bad in skipped.first
    )
    title = "In quarantine" + (f": the first {len(skipped.first)}" if skipped.quarantined > len(skipped.first) else "")
    return f"<h3>{title}</h3>" + table(["where", "reason", "detail"], rows, 3)
