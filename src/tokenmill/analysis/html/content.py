"""The sections that tell what a store holds: tokens by source and value, lengths, vocabulary, duplicates, gaps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tokenmill.analysis.html.markup import (
    BarRow,
    bars,
    beginning,
    code,
    folded,
    lead,
    section,
    share,
    short,
    shortened,
    table,
    text,
)
from tokenmill.analysis.html.plots import Series, Tick, plot
from tokenmill.analysis.statistics import (
    Breakdown,
    Duplicates,
    LengthBin,
    Lengths,
    SkippedRows,
    Statistics,
    TokenCount,
    TokenShare,
)
from tokenmill.analysis.visible_text import named
from tokenmill.humanize import count, size
from tokenmill.store.part import NULL

SHOWN_TOKENS = 20
RATIO_STEP = 0.1
NAME_CHARACTERS = 34
"""What of a source's name is sure to be seen beside its bar: the end, which tells it from others."""

REASONS = {NULL: "without text"}
"""How reasons are told that are one word in the store."""


def breakdowns(found: Statistics) -> Iterator[str]:
    """A section for the sources and for each column."""
    yield _breakdown("sources", "Tokens by source", found.sources, found.tokens, _common_folder(found.sources))
    for place, each in enumerate(found.columns):
        yield _breakdown(f"by-{place}", f"Tokens by {each.by}", each, found.tokens, "")


def _breakdown(anchor: str, title: str, found: Breakdown, tokens: int, folder: str) -> str:
    what = "source" if found.by == "source" and anchor == "sources" else "value"
    sentence = f"{count(found.count, what)}" + (f" in {folder}" if folder else "") + "."
    if found.folded:
        sentence = "There were too many values to count each: those that are named have at least what is told of them."
    shown = [*found.largest, *([found.others] if found.others else [])]
    with_bytes = any(each.bytes is not None for each in shown)
    heads = ["tokens", "share", "documents", *(["bytes/token"] if with_bytes else [])]
    lines = [_share_bar(each, tokens, folder, with_bytes, each is found.others) for each in shown]
    return section(anchor, title, lead(sentence), bars(found.by, heads, lines) if lines else "")


def _share_bar(each: TokenShare, tokens: int, folder: str, with_bytes: bool, is_rest: bool) -> BarRow:
    figures = [f"{each.tokens:,}", share(each.tokens, tokens), f"{each.documents:,}"]
    if with_bytes:
        figures.append(f"{each.bytes / each.tokens:.2f}" if each.bytes is not None and each.tokens else "\u2013")
    name = each.name if is_rest or not folder else shortened(each.name.removeprefix(folder), NAME_CHARACTERS)
    return BarRow(f"<bdi>{text(named(name))}</bdi>", each.name, each.tokens, tuple(figures), is_rest)


def _common_folder(found: Breakdown) -> str:
    """The directory that all sources are in that are shown."""
    folders = [each.name.rpartition("/")[0].split("/") for each in found.largest]
    levels = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    return "".join(f"{level[0]}/" for level in levels)


def lengths(found: Statistics) -> str:
    """How long documents are."""
    known = found.lengths
    if not found.documents:
        return section("lengths", "Document lengths", lead("There is no document in this store."))
    sentence = (
        f"In tokens, begin and end tokens included. The mean is {known.mean:,.1f}, the shortest document has"
        f" {known.shortest:,}, the longest {known.longest:,}."
    )
    names = ["1 %", "5 %", "25 %", "median", "75 %", "95 %", "99 %"]
    quantiles = table(["of documents have at most", "tokens"], zip(names, _numbers(known), strict=True))
    shorter = table(
        ["shorter than", "documents", "tokens"],
        (
            [f"{length:,}", share(documents, 1), share(tokens, 1)]
            for length, (documents, tokens) in known.shorter_than.items()
        ),
    )
    tables = f'<div class="two"><div><h3>Quantiles</h3>{quantiles}</div><div><h3>What fits</h3>{shorter}</div></div>'
    return section("lengths", "Document lengths", lead(sentence), _length_plot(found), tables, _length_table(known))


def _numbers(known: Lengths) -> list[str]:
    return [f"{length:,}" for length in known.quantiles.values()]


def _length_plot(found: Statistics) -> str:
    bins = found.lengths.bins
    titles = [_length_title(each, found) for each in bins]
    documents = [100 * each.documents / found.documents for each in bins]
    tokens = [100 * each.tokens / max(found.tokens, 1) for each in bins]
    ticks = [
        Tick(place / len(bins), _binary(each.first))
        for place, each in enumerate(bins)
        if not each.first & (each.first - 1) and (len(bins) <= 24 or each.first.bit_length() % 2)
    ] or [Tick(0.0, _binary(bins[0].first))]  # one bin may have no power of two
    series = [Series("documents", documents, titles), Series("their tokens", tokens, titles, "line")]
    return (
        plot("Documents by length", series, ticks, lambda at: f"{at:g} %") + '<p class="axis">tokens in a document</p>'
    )


def _binary(length: int) -> str:
    """A length as people write it, if it is a power of two or half as much again: 512, 1k, 1.5k, 64k."""
    if length < 1024:
        return f"{length}"
    return f"{length / 1024:g}k" if length < 1 << 20 else f"{length / (1 << 20):g}M"


def _length_title(each: LengthBin, found: Statistics) -> str:
    documents, tokens = share(each.documents, found.documents), share(each.tokens, found.tokens)
    span = f"{each.first:,}" if each.first == each.last else f"{each.first:,} to {each.last:,}"
    return f"{span} tokens: {count(each.documents, 'document')} ({documents}), {each.tokens:,} tokens ({tokens})"


def _length_table(known: Lengths) -> str:
    rows = ([f"{each.first:,}", f"{each.last:,}", f"{each.documents:,}", f"{each.tokens:,}"] for each in known.bins)
    return folded("Figures of the histogram", table(["from", "to", "documents", "tokens"], rows, 0))


def ratios(found: Statistics) -> str:
    """How much text a token stands for."""
    bins = found.bytes_per_token_bins
    if found.bytes_per_token is None:
        return section("bytes", "Bytes per token", lead("There is no token in this store."))
    sentence = f"{size(found.text_bytes)} of text are {found.tokens:,} tokens: {found.bytes_per_token:.2f} bytes each."
    if bins is None or not any(bins):
        return section(
            "bytes", "Bytes per token", lead(f"{sentence} For each document it cannot be told: {_UNFAITHFUL}")
        )
    used = [place for place, documents in enumerate(bins) if documents]
    first, last = min(used), max(max(used) + 1, min(used) + 5)
    shown = [*bins, *[0] * 10][first:last]
    titles = [
        f"{_ratio(place)} to {_ratio(place + 1)} bytes per token: {count(documents, 'document')}"
        for place, documents in enumerate(shown, first)
    ]
    step = 1 if len(shown) <= 8 else 5 if len(shown) <= 50 else 10
    ticks = [Tick((place - first) / len(shown), _ratio(place)) for place in range(first, last + 1) if place % step == 0]
    picture = plot("Documents by bytes per token", [Series("documents", shown, titles)], ticks, short)
    sentence += " More is better compressed; little text per token is another script, code or noise."
    rows = ([_ratio(place), _ratio(place + 1), f"{documents:,}"] for place, documents in enumerate(shown, first))
    figures = folded("Figures of the histogram", table(["from", "to less than", "documents"], rows, 0))
    axis = '<p class="axis">bytes per token of a document</p>'
    return section("bytes", "Bytes per token", lead(sentence), picture, axis, figures)


_UNFAITHFUL = "the tokenizer changes the text, so tokens do not stand for its very bytes."


def _ratio(place: int) -> str:
    return f"{place * RATIO_STEP:.1f}"


def vocabulary(found: Statistics) -> str:
    """Which tokens are used, and which are not."""
    known = found.vocabulary
    unused = known.size - known.used
    sentence = f"{known.used:,} of {known.size:,} ids are used; {unused:,} ({share(unused, known.size)}) are not."
    if known.covering:
        half, most, nearly = known.covering.values()
        sentence += (
            f" The {half:,} most frequent make up half of all tokens, {most:,} make up 90 %, and {nearly:,} 99 %."
        )
    lines = [_token_bar(each, found.tokens) for each in known.most_frequent]
    heads = ["count", "share", "id"]
    top = bars("token", heads, lines[:SHOWN_TOKENS]) if lines else ""
    more = folded("More tokens", bars("token", heads, lines[SHOWN_TOKENS:])) if lines[SHOWN_TOKENS:] else ""
    chips = "".join(f'<li title="id {each.id}">{code(each.piece)}</li>' for each in known.first_unused)
    rest = f'<h3>Unused, in the order of ids, single bytes left out</h3><ul class="chips">{chips}</ul>' if chips else ""
    return section("vocabulary", "Vocabulary", lead(sentence), top, more, rest)


def _token_bar(each: TokenCount, tokens: int) -> BarRow:
    figures = (f"{each.count:,}", share(each.count, tokens), f"{each.id}")
    return BarRow(code(each.piece), repr(each.piece), each.count, figures)


def duplicates(found: Statistics) -> str:
    """Documents that are there more than once."""
    known = found.duplicates
    if known is None:
        return section("duplicates", "Duplicates", lead("They were not looked for; see the note at the top."))
    if not known.documents:
        return section("duplicates", "Duplicates", lead("No two documents have the same tokens."))
    copies = f"{known.documents:,} {'copy' if known.documents == 1 else 'copies'} of {count(known.groups, 'document')}"
    sentence = (
        f"{share(known.documents, found.documents)} of the documents, with {share(known.tokens, found.tokens)} of the"
        f" tokens, are copies of another one, token by token: {copies}, {known.tokens:,} tokens."
    )
    return section(
        "duplicates", "Duplicates", lead(sentence), "<h3>Where most tokens would be saved</h3>", _groups(known)
    )


def _groups(known: Duplicates) -> str:
    rows = (
        [_place(each.source, each.row), f"{each.copies:,}", f"{each.tokens:,}", f"{each.tokens * (each.copies - 1):,}"]
        for each in known.largest
    )
    return table(["first found at", "copies", "tokens each", "tokens saved"], rows)


def _place(file: str, row: int) -> str:
    return f'<span title="{text(file)}"><bdi>{text(shortened(file))}</bdi></span>, row {row:,}'


def left_out(found: Statistics) -> str:
    """Rows that are no documents of the store."""
    known = found.skipped
    title = "Rows left out"
    if not known.rows:
        return section("left-out", title, lead("Every row of the sources is a document of the store."))
    sentence = f"{count(known.rows, 'row')} did not become documents; {known.quarantined:,} are in quarantine."
    lines = [
        BarRow(text(beginning(REASONS.get(reason, reason))), beginning(reason), rows, (f"{rows:,}",))
        for reason, rows in known.reasons.items()
    ]
    return section("left-out", title, lead(sentence), bars("reason", ["rows"], lines), _bad_rows(known))


def _bad_rows(known: SkippedRows) -> str:
    if not known.first:
        return ""
    rows = (
        [_place(each.file, each.row), text(beginning(each.reason)), text(beginning(each.detail))]
        for each in known.first
    )
    title = "In quarantine" + (f": the first {len(known.first)}" if known.quarantined > len(known.first) else "")
    return f"<h3>{title}</h3>" + table(["where", "reason", "detail"], rows, 3)
