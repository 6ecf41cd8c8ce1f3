"""The results as an SVG of horizontal bars, on its own background, for light and dark pages."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

from benchmarks.peers.results import MILL, Comparison, Line, compare, figure

WIDTH = 700
LEFT = 262
BAR_MOST = 250
ROW = 28
TOP = 88
BOTTOM = 16
STYLE = """
  text { font: 13px system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328; }
  .title { font-size: 16px; font-weight: 600; }
  .quiet { font-size: 12px; fill: #59636e; }
  .ours { font-weight: 600; }
  .page { fill: #ffffff; stroke: #d1d9e0; }
  .axis { stroke: #8c959f; }
  .bar { fill: #8c959f; }
  .bar-ours { fill: #0b66c3; }
  .bar-bare { fill: #e6eaef; stroke: #8c959f; }
  @media (prefers-color-scheme: dark) {
    text { fill: #f0f6fc; }
    .quiet { fill: #9198a1; }
    .page { fill: #0d1117; stroke: #3d444d; }
    .axis { stroke: #7d8590; }
    .bar { fill: #7d8590; }
    .bar-ours { fill: #4493f8; }
    .bar-bare { fill: #262c36; stroke: #7d8590; }
  }
"""


def render(results: dict[str, Any]) -> str:
    """The picture."""
    comparison = compare(results)
    most = max((line.best or 0 for line in comparison.lines), default=0) or 1.0
    height = TOP + ROW * len(comparison.lines) + BOTTOM
    title = "Text to tokens: MB of text a second"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        _text(20, 30, title, "title"),
        _text(20, 50, f"Whole commands, best of {results['rounds']}, gpt2, {results['workers']} workers.", "quiet"),
        _text(20, 67, _sizes(comparison), "quiet"),
        f'<line class="axis" x1="{LEFT}" y1="{TOP - 4}" x2="{LEFT}" y2="{height - BOTTOM}"/>',
        *(part for number, line in enumerate(comparison.lines) for part in _bar(comparison, line, number, most)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _sizes(comparison: Comparison) -> str:
    """How much text each had."""
    others = sorted({line.row["text_bytes"] for line in comparison.lines if not line.ours and not line.row["bare"]})
    said = [f"{size / 1e6:,.0f} MB" for size in others]
    peers = f", other pipelines {' or '.join(said)}" if said else ""
    return f"Text: tokenmill {comparison.mill.row['work']}{peers}."


def _bar(comparison: Comparison, line: Line, number: int, most: float) -> list[str]:
    """One pipeline: its name, its bar, and what is to be said beside it."""
    y = TOP + ROW * number
    weight = "ours" if line.ours else ""
    several = line.name == MILL and line.row["text_bytes"] != comparison.mill.row["text_bytes"]
    name = f"tokenmill, on {line.row['work']} only" if several else line.title
    parts = [_text(LEFT - 10, y + 17, name, weight, "end")]
    kind = "bar-ours" if line.ours else "bar-bare" if line.row["bare"] else "bar"
    width = max(BAR_MOST * (line.best or 0) / most, 1)
    if line.best:
        parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y + 4}" width="{width:.1f}" height="{ROW - 9}" rx="2"/>')
    return [*parts, _text(LEFT + width + 8, y + 17, _beside(comparison, line), weight)]


def _beside(comparison: Comparison, line: Line) -> str:
    """The speed, and for others how tokenmill compares."""
    if line.best is None:
        return "did not run"
    said = f"{figure(line.best)}"
    if line.row["bare"]:
        said += ", nothing written"
    elif not line.ours and (times := comparison.slower(line)):
        said += f", {times:.0f} times slower" if times >= 1.5 else ""
    return said + ("" if line.tokens_are == "equal" else ", other tokens")


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'
