"""Write the table and the curves of docs/scale.md: `python -m scripts.write_scale [--check]`.

The speed of a core and the points that were measured are those of benchmarks/growth.json; the rest is computed as
`tokenmill plan --nodes` does. With --check nothing is written, and the exit code is 1 if the page is out of date.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from tokenmill.humanize import duration, number, size
from tokenmill.pipeline.planning.cluster import READ_DOLLARS, WRITE_DOLLARS, ClusterEstimate, Workload
from tokenmill.pipeline.planning.estimate import Estimate
from tokenmill.pipeline.unit.plan import default_unit_bytes

ROOT = Path(__file__).parent.parent
PAGE, PICTURE = ROOT / "docs" / "scale.md", ROOT / "docs" / "scale.svg"
GROWTH = json.loads((ROOT / "benchmarks" / "growth.json").read_text())
BEGIN, END = "<!-- written by scripts/write_scale.py -->\n", "<!-- end -->\n"

# FineWeb's own figures: 71 TB of text, 44 TB of Parquet in 20,500 files, and a store of 30 TB.
TEXT, SOURCES, FILES, STORE = 71e12, 44e12, 20_500, 30e12
NODES, CORES = (1, 16, 256), 16
# Dollars of a core-hour, assumed; the CPU time that a network adds, measured by `benchmarks.network`.
CORE_DOLLARS, NETWORK = 0.045, 1.1
# The memory that a driver has for each unit, measured by `benchmarks.million_units`.
DRIVER_UNIT_BYTES = 685


def core_rate() -> float:
    """The text that a core of the measured machine does in a second, on the largest corpus."""
    largest = GROWTH["sizes"][-1]
    return float(largest["text_bytes"] / largest["seconds"] / GROWTH["cores"])


def work(text: float, network: float = NETWORK) -> Workload:
    """A corpus that is built as FineWeb is, of so much text."""
    share = text / TEXT
    seconds = network * text / core_rate()
    units = max(1, round(text / default_unit_bytes(int(text))))
    files = max(1, round(FILES * share))
    return Workload(files, units, round(SOURCES * share), STORE * share, Estimate(seconds, seconds))


def table() -> str:
    """FineWeb on some clusters."""
    columns = [work(TEXT).on(nodes, CORES) for nodes in NODES]
    rows: dict[str, Callable[[ClusterEstimate], str]] = {
        "time": lambda each: duration(each.seconds.low),
        "limited by": lambda each: each.limit,
        "core-hours": lambda each: f"{each.core_hours.low:,.0f}",
        "dollars for cores": lambda each: f"{each.core_hours.low * CORE_DOLLARS:,.0f}",
        "requests: reads": lambda each: number(each.reads),
        "requests: writes": lambda each: number(each.writes),
        "requests: listings": lambda each: number(each.listings),
        "dollars for requests": lambda each: f"{each.dollars:,.0f}",
        "network into a node": lambda each: f"{number(each.read_bits)}bit/s",
        "network out of a node": lambda each: f"{number(each.written_bits)}bit/s",
    }
    head = " | ".join(f"{nodes} node{'s' * (nodes > 1)}" for nodes in NODES)
    lines = [f"| | {head} |", f"| --- |{' ---: |' * len(NODES)}"]
    lines += [f"| {name} | {' | '.join(map(row, columns))} |" for name, row in rows.items()]
    return "\n".join(lines) + "\n"


class Line(NamedTuple):
    """A computed curve, or measured points."""

    name: str
    points: list[tuple[float, float]]
    is_measured: bool = False


class Panel(NamedTuple):
    """A plot whose axes are both logarithmic."""

    title: str
    label: Callable[[float], str]
    lines: list[Line]
    ticks: Sequence[float] = ()


def panels() -> Iterator[Panel]:
    """The four plots."""
    texts = [10 ** (9 + (math.log10(TEXT) - 9) * step / 40) for step in range(41)]

    def curve(name: str, value: Callable[[float], float]) -> Line:
        return Line(name, [(text, value(text)) for text in texts])

    def measured(value: Callable[[dict[str, Any]], float]) -> Line:
        return Line("measured", [(each["text_bytes"], value(each)) for each in GROWTH["sizes"] if value(each)], True)

    def on(text: float, nodes: int) -> ClusterEstimate:
        return work(text).on(nodes, CORES)

    cores = GROWTH["cores"]
    tree = max(each["tree_bytes"] for each in GROWTH["sizes"])
    yield Panel(
        "Time",
        duration,
        [
            measured(lambda each: each["seconds"]),
            curve(f"{cores} cores", lambda text: work(text, 1.0).on(1, cores).seconds.low),
            *(curve(f"{nodes} x {CORES}", lambda text, nodes=nodes: on(text, nodes).seconds.low) for nodes in NODES),  # type: ignore[misc]
        ],
        (1, 60, 3600, 86400, 10 * 86400),
    )
    memory = curve(f"{cores} workers", lambda text: tree + DRIVER_UNIT_BYTES * work(text).units)
    yield Panel("Memory", size, [measured(lambda each: each["tree_bytes"]), memory])
    requests = curve("1 node", lambda text: on(text, 1).reads + on(text, 1).writes + on(text, 1).listings)
    yield Panel("Requests", number, [measured(lambda each: sum(each["requests"].values())), requests])
    hours = curve("cores", lambda text: on(text, 1).core_hours.low * CORE_DOLLARS)
    yield Panel("Dollars", lambda each: f"{each:g}", [hours, curve("requests", lambda text: dollars(on(text, 1)))])


def dollars(cluster: ClusterEstimate) -> float:
    """The price of the requests, not rounded."""
    return cluster.reads * READ_DOLLARS + (cluster.writes + cluster.listings) * WRITE_DOLLARS


WIDTH, HEIGHT = 350, 240
LEFT, RIGHT, TOP, BOTTOM = 66, 78, 34, 34
STYLE = """
  text { font: 11px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #59636e; }
  .title { font-size: 14px; font-weight: 600; fill: #1f2328; }
  .page { fill: #ffffff; stroke: #d1d9e0; }
  .grid { stroke: #d1d9e0; }
  .line { fill: none; stroke: #0b66c3; stroke-width: 1.5; }
  .point { fill: #bc4c00; }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1; }
    .title { fill: #f0f6fc; }
    .page { fill: #0d1117; stroke: #3d444d; }
    .grid { stroke: #3d444d; }
    .line { stroke: #4493f8; }
    .point { fill: #f0883e; }
  }
"""


def picture() -> str:
    """All plots as one SVG, on its own background, for light and dark pages."""
    title = "How time, memory, requests and dollars grow with the text"
    drawn = [_panel(panel, WIDTH * (place % 2), HEIGHT * (place // 2)) for place, panel in enumerate(panels())]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {2 * HEIGHT}" role="img">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" x="0.5" y="0.5" width="{2 * WIDTH - 1}" height="{2 * HEIGHT - 1}" rx="6"/>',
            *drawn,
            "</svg>\n",
        ]
    )


def _panel(panel: Panel, left: int, top: int) -> str:
    """One plot: labels at powers of a thousand of text, and at some powers of ten of the other axis."""
    points = [point for line in panel.lines for point in line.points]
    first, last = min(x for x, _ in points), TEXT
    low = 10.0 ** math.floor(math.log10(min(y for _, y in points)))
    high = 10.0 ** math.ceil(math.log10(max(y for _, y in points)))

    def x(text: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(text / first) / math.log(last / first)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * math.log(value / low) / math.log(high / low)

    powers = round(math.log10(high / low))
    rows = panel.ticks or [low * 10**power for power in range(0, powers + 1, max(1, math.ceil(powers / 5)))]
    parts = [f'<g transform="translate({left} {top})">', _text(16, 22, panel.title, "title")]
    for row in rows:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(row):.1f}" y2="{y(row):.1f}"/>')
        parts.append(_text(LEFT - 6, y(row) + 4, panel.label(row), anchor="end"))
    parts += [_text(x(text), HEIGHT - BOTTOM + 18, size(text), anchor="middle") for text in (1e9, 1e12, TEXT)]
    for line in panel.lines:
        places = [(x(text), y(value)) for text, value in line.points]
        if line.is_measured:
            parts += [f'<circle class="point" cx="{across:.1f}" cy="{up:.1f}" r="3"/>' for across, up in places]
        else:
            path = " ".join(f"{across:.1f},{up:.1f}" for across, up in places)
            parts.append(f'<polyline class="line" points="{path}"/>')
            parts.append(_text(places[-1][0] + 6, places[-1][1] + 4, line.name))
    return "\n".join([*parts, "</g>"])


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare the page and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    check = parser.parse_args(arguments).check
    before, _, rest = PAGE.read_text().partition(BEGIN)
    texts = {PAGE: f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}", PICTURE: picture()}
    stale = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            print(f"{path.relative_to(ROOT)} is out of date: run python -m scripts.write_scale", file=sys.stderr)
        else:
            path.write_text(texts[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
