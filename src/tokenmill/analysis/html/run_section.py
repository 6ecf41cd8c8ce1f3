"""The sections that tell how a store came about: the course of the run, what it cost, the job and its checksums."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from tokenmill.analysis.history import History
from tokenmill.analysis.html.markup import BarRow, bars, card, cards, facts, folded, lead, section, short, table, text
from tokenmill.analysis.html.plots import Series, Tick, plot
from tokenmill.analysis.read_log import NAMED
from tokenmill.analysis.statistics import Statistics
from tokenmill.humanize import count, duration, number, size

TIME_TICKS = 6


def course(found: Statistics) -> str:
    """How the run went."""
    known = found.history
    if known is None:
        return section("run", "The run", lead("There is no log that tells of it."))
    parts = [lead(_sentence(known)), cards(_cards(known))]
    if any(known.tokens_per_second):
        parts.append(f'<div class="two"><div><h3>Tokens per second</h3>{_speed(known)}</div>')
        parts.append(f"<div><h3>Most memory of a worker so far</h3>{_memory_course(known)}</div></div>")
        parts.append(folded("Figures of the run", _figures(known)))
    if known.memory:
        parts.append(f"<h3>Peak memory by worker</h3>{_memory(known)}")
    if known.troubles:
        first = f", the first {NAMED}" if len(known.troubles) == NAMED else ""
        parts.append(f"<h3>Deaths, failures, notices{first}</h3>{_troubles(known)}")
    return section("run", "The run", *parts)


def _sentence(known: History) -> str:
    sentence = f"Begun {_moment(known.started)}, ended {_moment(known.ended)}."
    if known.pauses:
        stood = ", ".join(
            f"for {duration(pause.seconds)} after {duration(pause.after_seconds)}" for pause in known.pauses[:5]
        )
        sentence += f" Nobody was at work {stood}{' and so on' * (len(known.pauses) > 5)} (dashed lines)."
    if known.is_cut:
        sentence += " The log is longer than what is read of it."
    if known.lines_not_understood:
        sentence += f" {count(known.lines_not_understood, 'line')} of the log made no sense."
    return sentence


def _moment(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _cards(known: History) -> Iterator[str]:
    yield card("At work", duration(known.working_seconds), count(known.sessions, "session"))
    if known.working_seconds:
        yield card("Tokens/s", number(known.tokens / known.working_seconds), count(known.workers, "worker"))
    yield card("Units done", f"{known.units:,}", f"{known.units_tried_again:,} tried again")
    causes = ", ".join(f"{n:,} {cause or 'unknown'}" for cause, n in known.deaths.items())
    yield card("Deaths", f"{sum(known.deaths.values()):,}", causes)
    kinds = ", ".join(f"{n:,} {kind or 'unknown'}" for kind, n in known.failures.items())
    yield card("Failures", f"{sum(known.failures.values()):,}", kinds)
    if known.memory:
        yield card("Largest worker", size(known.memory[0].peak_bytes), "at its peak")


def _speed(known: History) -> str:
    titles = [
        f"{_span(place, known)}: {number(tokens)} tokens/s, {size(text_bytes)}/s"
        for place, (tokens, text_bytes) in enumerate(zip(known.tokens_per_second, known.bytes_per_second, strict=True))
    ]
    series = Series("tokens per second", known.tokens_per_second, titles, "area")
    return plot("Tokens per second over the run", [series], _ticks(known), short, _marks(known))


def _memory_course(known: History) -> str:
    titles = [f"{_span(place, known)}: {size(peak)}" for place, peak in enumerate(known.peak_bytes)]
    series = Series("memory", known.peak_bytes, titles, "area")
    return plot("Peak memory of the largest worker over the run", [series], _ticks(known), _round_size, _marks(known))


def _figures(known: History) -> str:
    columns = zip(known.tokens_per_second, known.bytes_per_second, known.peak_bytes, strict=True)
    rows = (
        [_span(place, known), f"{tokens:,.0f}", size(text_bytes), size(peak)]
        for place, (tokens, text_bytes, peak) in enumerate(columns)
    )
    return table(["time at work", "tokens/s", "text/s", "most memory"], rows)


def _round_size(value: float) -> str:
    """A size as an axis has it: 50 MB, 1.5 GB."""
    amount, _, unit = size(value).partition(" ")
    return f"{float(amount):g} {unit}"


def _span(place: int, known: History) -> str:
    return f"{duration(place * known.bin_seconds)} to {duration((place + 1) * known.bin_seconds)}"


def _ticks(known: History) -> list[Tick]:
    """Round times below the axis."""
    total = known.working_seconds
    steps = [round(factor * 10.0**power, 3) for power in range(-3, 2) for factor in (1, 2, 5)]
    steps += [120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400]
    step = next((each for each in steps if total / each <= TIME_TICKS), 86400.0 * -(-total // (86400 * TIME_TICKS)))
    return [Tick(place * step / total, _clock(place * step, step)) for place in range(int(total / step) + 1)]


def _clock(seconds: float, step: float) -> str:
    """A time in the measure that its neighbours have."""
    for least, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if step >= least:
            return f"{seconds / least:g} {unit}"
    return f"{round(seconds, 3):g} s"


def _marks(known: History) -> list[float]:
    return [pause.after_seconds / known.working_seconds for pause in known.pauses if known.working_seconds]


def _memory(known: History) -> str:
    lines = [
        BarRow(text(each.worker), f"worker {each.worker}", each.peak_bytes, (size(each.peak_bytes), f"{each.units:,}"))
        for each in known.memory
    ]
    more = known.workers - len(known.memory)
    rest = f'<p class="small">{text(count(more, "worker"))} more held less.</p>' if more else ""
    return bars("worker", ["peak", "units"], lines) + rest


def _troubles(known: History) -> str:
    rows = (
        [_moment(each.time), text(each.event), "\u2013" if each.unit is None else f"{each.unit:,}", text(each.what)]
        for each in known.troubles
    )
    return table(["when", "what", "unit", "told"], rows, 4)


def origin(found: Statistics) -> str:
    """The job, versions and checksums."""
    return section("origin", "How it was made", facts(_facts(found)), "<h3>Checksums</h3>", facts(_checksums(found)))


def _facts(found: Statistics) -> Iterator[tuple[str, str]]:
    known = found.origin
    yield "tokenizer", f"{text(known.tokenizer)}, {known.vocabulary_size:,} ids, {text(known.dtype)}"
    yield "begin token", _token(known.begin)
    yield "end token", _token(known.end)
    yield "column", f"<code>{text(known.column)}</code>"
    if known.separator is not None:
        yield "separator", f"<code>{text(repr(known.separator))}</code>"
    yield "sources", f"{count(known.sources, 'file')}, {size(known.source_bytes)}"
    yield "units", f"{known.units:,} of about {size(known.unit_bytes)}"
    if known.limit_units is not None:
        yield "limited", f"to the first {known.limit_units:,} units"
    yield "engine", text(known.engine)
    yield "versions", text(", ".join(f"{name} {version}" for name, version in known.versions.items()))


def _checksums(found: Statistics) -> Iterator[tuple[str, str]]:
    for name, digest in found.origin.checksums.items():
        yield name, f"<code>{text(digest)}</code>"


def _token(token: int | None) -> str:
    return "none" if token is None else str(token)
