"""A picture of a recipe: one HTML file without scripts. The width of a bar is the share of a source."""

from __future__ import annotations

from tokenmill.humanize import count, escape_html, number
from tokenmill.loader.overview import MixResult, MixStage

# A browser may fetch and run nothing for this page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; } td, th { padding: .2rem .7rem; text-align: right; } td:first-child, th:first-child
{ text-align: left; } svg { width: 100%; height: auto; } text { font: 13px system-ui, sans-serif; fill: #fff; }
"""

# Colors that people with color blindness can tell apart (Okabe and Ito), darkened so that white text is readable.
COLORS = ("#0072b2", "#b34700", "#007a5a", "#8a4b7a", "#6b6b00", "#35607f", "#7a3030", "#444c5c")

WIDTH = 1000
MIN_HEIGHT, MAX_HEIGHT = 34, 200

# Narrower bars have no text.
MIN_TEXT_WIDTH = 60


def render_mix(result: MixResult) -> str:
    """The page of a recipe."""
    title = escape_html(result.recipe)
    colors = {source.source: COLORS[index % len(COLORS)] for index, source in enumerate(result.sources)}
    largest = max(stage.tokens for stage in result.stages)
    stages = "".join(_stage(index, stage, colors, largest) for index, stage in enumerate(result.stages, 1))
    rows = "".join(
        f"<tr><td>{escape_html(one.source)}</td><td>{one.tokens:,}</td><td>{one.epoch_tokens:,}</td>"
        f"<td>{one.epochs:.2f}</td><td>{one.left_tokens:,}</td></tr>"
        for one in result.sources
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{STYLE}</style></head>\n<body><h1>{title}</h1>"
        f"<p>{count(result.steps, 'step')}, {count(result.tokens, 'token')}, seed {result.seed}</p>{stages}"
        "<h2>Sources</h2><table><tr><th>source</th><th>tokens read</th><th>tokens of an epoch</th><th>epochs</th>"
        f"<th>left over</th></tr>{rows}</table></body></html>\n"
    )


def _stage(index: int, stage: MixStage, colors: dict[str, str], largest: int) -> str:
    height = max(MIN_HEIGHT, round(MAX_HEIGHT * stage.tokens / largest))
    bars, left = [], 0.0
    for one in stage.sources:
        width = WIDTH * one.share
        name = escape_html(one.source)
        label = f"{name}: {one.tokens:,} tokens, {one.share:.2%}, {one.epochs:.2f} epochs"
        bars.append(
            f'<g><title>{label}</title><rect x="{left:.2f}" width="{width:.2f}" height="{height}" '
            f'fill="{colors[one.source]}" stroke="#fff"/>'
        )
        if width >= MIN_TEXT_WIDTH:
            bars.append(f'<text x="{left + 8:.2f}" y="21">{name} {number(one.tokens)}</text>')
        bars.append("</g>")
        left += width
    last = stage.first_step + stage.steps - 1
    shape = f"{stage.batch_sequences:,} x {stage.sequence_tokens:,} tokens"
    return (
        f"<h2>Stage {index}</h2><p>steps {stage.first_step:,} to {last:,}, {shape}, {count(stage.tokens, 'token')}</p>"
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="shares of stage {index}">{"".join(bars)}</svg>\n'
    )
