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
FAILURE_HEADINGS = (
    "pipeline",
    "text",
    "peak memory, MB",
    "a worker killed",
    "the parent killed",
    "the same command again",
)
FAILURE_ALIGNMENTS = ("---", "---:", "---:", "---", "---", "---")
METHOD = """\
Whole commands from process start to exit, {workers} workers, gpt2, interleaved, best of {rounds}; {cores} cores of
{processor}, {memory:.0f} GB, Python {python}, tokenmill at {commit}.
MB are 10^6 bytes of text; the corpus has {corpus:.0f} MB, and is repeated where more is read, which flatters engines
that cache words (gigatoken, tokenmill). "Tokens" compares every document with tiktoken's. "Times slower" is best
against best, less than 1 is faster: the pipeline on its work against tokenmill on {large}, then against tokenmill on
just that work. A pipeline that reads JSON Lines is compared with tokenmill on the same file.
"""

FAILURES = """\
Peak memory is that of the process tree, in a run that is not timed. A worker is the process below the parent that has
used most CPU time; each is killed with SIGKILL after half of the usual time. "Hangs" is no exit, and no CPU for a
minute.
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
    parts = [*summary(comparison), "", method, *_lines(rows), "", *notes(comparison), ""]
    watched = [line for line in comparison.lines if line.row.get("peak_bytes") or line.row.get("kills")]
    if watched:
        rows = [FAILURE_HEADINGS, FAILURE_ALIGNMENTS, *(failure_cells(line) for line in watched)]
        parts += [FAILURES, *_lines(rows), ""]
    return "\n".join(parts)


def _lines(rows: list[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in rows]


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
        tree = f"{row['repository']} at {row['commit']}" if row.get("commit") else ""
        versions = ", ".join(filter(None, [tree, row["versions"]]))
        versions = f" ({versions})" if versions else ""
        why = f" Did not run: {row['failure']}" if row["failure"] else ""
        said[line.title] = f"- {line.title}{versions}: {row['note']}.{why}"
    return list(said.values())


def times(line: Line, value: float | None) -> str:
    """A ratio; tokenmill has none to itself."""
    return "" if line.ours or value is None else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def failure_cells(line: Line) -> tuple[str, ...]:
    """A row of the second table: memory, and what comes of a kill."""
    row, peak = line.row, line.row.get("peak_bytes")
    first = (line.title, row["work"], f"{peak / 1e6:,.0f}" if peak else "")
    if not (kills := row.get("kills")):
        return (*first, "", "", "")
    worker, parent = kills["worker"], kills["parent"]
    killed = end_of(worker) if worker else "there is no other process"
    if "ended_first" in parent:
        return (*first, killed, "ended before", "")
    left = f"{parent['orphans']} processes stay, {parent['orphans_cores']:.1f} cores busy" if parent["orphans"] else ""
    again = f"{end_of(parent['again'])} (usual: {parent['usual_seconds']:.1f} s)"
    return (*first, killed, f"{left or 'no process stays'}; tokens: {parent['tokens_are']}", again)


def end_of(end: dict[str, Any]) -> str:
    """How a watched run ended, and what its files hold."""
    if "ended_first" in end:
        return "ended before"
    if end["exit_code"] is None:
        return f"hangs; tokens: {end['tokens_are']}" if end["silent"] else f"no end in {end['seconds']:.0f} s"
    said = f" ({end['message']})" if end["exit_code"] else ""
    return f"exit {end['exit_code']} after {end['seconds']:.1f} s{said}; tokens: {end['tokens_are']}"
