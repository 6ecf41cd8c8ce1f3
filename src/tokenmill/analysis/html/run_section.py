"""The sections about how a store was made: the course of the run, its resources, the job and its checksums."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

from tokenmill.analysis.history import MAX_LISTED, History
from tokenmill.analysis.html.markup import (
    card,
    card_list,
    definitions,
    escape,
    lead,
    section,
    short_number,
    table,
)
from tokenmill.analysis.html.plots import Series, Tick, plot
from tokenmill.analysis.statistics import Statistics
from tokenmill.humanize import count, duration, number, size

TIME_TICKS = 6


def run(stats: Statistics) -> str:
    """The section about the course of the run."""
    history = stats.history
    if stats.stores is not None:
        return section("run", "The runs", lead("Each store has a run of its own; its own report shows it."))
    if history is None:
        return section("run", "The run", lead("The store has no log of its run."))
    parts = [lead(_sentence(history)), card_list(_cards(history))]
    if any(history.tokens_per_second):
        parts.append(f"<h3>Tokens per second</h3>{_speed_plot(history)}")
    if history.troubles:
        first = f", the first {MAX_LISTED}" if len(history.troubles) == MAX_LISTED else ""
        parts.append(f"<h3>Deaths, failures, notices{first}</h3>{_troubles(history)}")
    return section("run", "The run", *parts)


def _sentence(history: History) -> str:
    sentence = f"Begun {_date(history.started)}, ended {_date(history.ended)}."
    if history.pauses:
        pauses = ", ".join(
            f"for {duration(pause.seconds)} after {duration(pause.after_seconds)}" for pause in history.pauses[:5]
        )
        sentence += f" No process was running {pauses}{' and so on' * (len(history.pauses) > 5)} (dashed lines)."
    if history.is_cut:
        sentence += " The log is longer than what is read of it."
    if history.lines_not_understood:
        sentence += f" {count(history.lines_not_understood, 'line')} of the log made no sense."
    return sentence


def _date(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _cards(history: History) -> Iterator[str]:
    yield card("At work", duration(history.working_seconds), count(history.sessions, "session"))
    if history.working_seconds:
        yield card("Tokens/s", number(history.tokens / history.working_seconds), count(history.workers, "worker"))
    yield card("Units done", f"{history.units:,}", f"{history.units_tried_again:,} tried again")
    causes = ", ".join(f"{n:,} {cause or 'unknown'}" for cause, n in history.deaths.items())
    yield card("Deaths", f"{sum(history.deaths.values()):,}", causes)
    kinds = ", ".join(f"{n:,} {kind or 'unknown'}" for kind, n in history.failures.items())
    yield card("Failures", f"{sum(history.failures.values()):,}", kinds)
    if history.peak_bytes:
        yield card("Largest worker", size(history.peak_bytes), "at its peak")


def _speed_plot(history: History) -> str:
    rates, width = zip(history.tokens_per_second, history.bytes_per_second, strict=True), history.bin_seconds
    titles = [
        f"{duration(i * width)} to {duration((i + 1) * width)}: {number(tokens)} tokens/s, {size(text_bytes)}/s"
        for i, (tokens, text_bytes) in enumerate(rates)
    ]
    pauses = [pause.after_seconds / history.working_seconds for pause in history.pauses if history.working_seconds]
    series = Series("tokens per second", history.tokens_per_second, titles, "area")
    return plot("Tokens per second over the run", [series], _ticks(history), short_number, pauses)


def _ticks(history: History) -> list[Tick]:
    """Round times below the axis."""
    total = history.working_seconds
    steps = [round(factor * 10.0**power, 3) for power in range(-3, 2) for factor in (1, 2, 5)]
    steps += [120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 43200, 86400]
    step = next((step for step in steps if total / step <= TIME_TICKS), 86400.0 * -(-total // (86400 * TIME_TICKS)))
    return [Tick(i * step / total, _tick_time(i * step, step)) for i in range(int(total / step) + 1)]


def _tick_time(seconds: float, step: float) -> str:
    """A time in the unit that fits the step between ticks."""
    for unit_seconds, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if step >= unit_seconds:
            return f"{seconds / unit_seconds:g} {unit}"
    return f"{round(seconds, 3):g} s"


def _troubles(history: History) -> str:
    rows = (
        [
            _date(trouble.time),
            escape(trouble.event),
            "\u2013" if trouble.unit is None else f"{trouble.unit:,}",
            escape(trouble.what),
        ]
        for trouble in history.troubles
    )
    return table(["when", "what", "unit", "message"], rows, 4)


def origin(stats: Statistics) -> str:
    """The section about the job, versions and checksums."""
    checksums = ((name, f"<code>{escape(digest)}</code>") for name, digest in stats.origin.checksums.items())
    facts = definitions(_job_facts(stats))
    return section("origin", "How it was made", facts, "<h3>Checksums</h3>", definitions(checksums))


def _job_facts(stats: Statistics) -> Iterator[tuple[str, str]]:
    made, run = stats.origin, stats.origin.run
    job, spec = run.job, run.job.tokenizer
    yield "tokenizer", f"{escape(spec.name)}, {spec.vocabulary_size:,} ids, {escape(spec.dtype)}"
    yield "begin token", "none" if job.begin is None else str(job.begin)
    yield "end token", "none" if job.end is None else str(job.end)
    yield "column", f"<code>{escape(job.column)}</code>"
    if job.separator is not None:
        yield "separator", f"<code>{escape(repr(job.separator))}</code>"
    yield "sources", f"{count(made.sources, 'file')}, {size(made.source_bytes)}"
    yield "units", f"{made.units:,} of about {size(job.unit_bytes)}"
    if run.trial is not None:
        yield "trial", run.trial
    yield "engine", escape(run.engine)
    yield "versions", escape(", ".join(f"{name} {version}" for name, version in run.versions.items()))
