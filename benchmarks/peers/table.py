"""The results as a Markdown table, losses included."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.results import Comparison, Line, compare, figure

HEADINGS = (
    "pipeline",
    "text",
    "MB/s, best",
    "MB/s, each round",
    "tokens",
    "times slower than tokenmill",
    "on the same work",
)
ALIGNMENTS = ("---", "---:", "---:", "---", "---", "---:", "---:")
METHOD = """\
Whole commands from process start to exit, {workers} workers, gpt2, interleaved, best of {rounds}; {cores} cores of
{processor}, {memory:.0f} GB, Python {python}, tokenmill at {commit}.
MB are 10^6 bytes of text; the corpus has {corpus:.0f} MB, and is repeated where more is read, which flatters engines
that cache words (gigatoken, tokenmill). "Tokens" compares every document with tiktoken's. "Times slower" is best
against best, less than 1 is faster: the pipeline on its work against tokenmill on {large}, then against tokenmill on
just that work.
"""


def render(results: dict[str, Any]) -> str:
    """A page: what it comes to, how it was measured, the table."""
    comparison = compare(results)
    machine = results["machine"]
    method = METHOD.format(
        workers=results["workers"],
        rounds=results["rounds"],
        cores=machine["cores"],
        processor=machine["processor"],
        memory=machine["memory_bytes"] / 1e9,
        python=machine["python"],
        commit=results["commit"],
        corpus=results["corpus"]["text_bytes"] / 1e6,
        large=comparison.mill.row["work"],
    )
    rows = [HEADINGS, ALIGNMENTS, *(cells(comparison, line) for line in comparison.lines)]
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*summary(comparison), "", method, *lines, "", *notes(comparison), ""])


def summary(comparison: Comparison) -> list[str]:
    """The sentences that people look for."""
    if comparison.mill.best is None:
        return ["tokenmill did not run."]
    against = (
        ("the fastest peer pipeline", comparison.fastest_peer),
        ("`datasets.map`", comparison.named("nanogpt")),
        ("the bare engine", comparison.named("gigatoken")),
    )
    said = [f"tokenmill: {figure(comparison.mill.best)} MB/s."]
    for what, line in against:
        if line and (times := comparison.slower(line)):
            same = comparison.slower_on_same_work(line)
            beside = f" ({same:.2g} times on the same {line.row['work']})" if same and same != times else ""
            said.append(f"**{times:.3g} times** {what}, {line.title}{beside}.")
    return said


def cells(comparison: Comparison, line: Line) -> tuple[str, ...]:
    """One row."""
    row, title = line.row, f"**{line.title}**" if line.ours else line.title
    if line.best is None:
        return (title, row["work"], "did not run", *[""] * (len(HEADINGS) - 3))
    return (
        title,
        row["work"],
        figure(line.best),
        ", ".join(figure(speed) for speed in line.speeds),
        line.tokens_are,
        *(times(line, value) for value in (comparison.slower(line), comparison.slower_on_same_work(line))),
    )


def notes(comparison: Comparison) -> list[str]:
    """What is to be known of each pipeline, once."""
    said = {}
    for line in comparison.lines:
        row = line.row
        versions = f" ({row['versions']})" if row["versions"] else ""
        why = f" Did not run: {row['failure']}" if row["failure"] else ""
        said[line.title] = f"- {line.title}{versions}: {row['note']}.{why}"
    return list(said.values())


def times(line: Line, value: float | None) -> str:
    """A ratio; tokenmill has none to itself."""
    return "" if line.ours or value is None else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"
