"""Histograms and lines over an axis: shapes are SVG that stretches, labels are HTML of constant size."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenmill.analysis.html.markup import escape

TICKS = 4
# About as many labels as fit below a plot on a phone.
NARROW_TICKS = 5


@dataclass(frozen=True, slots=True)
class Tick:
    """A label below the axis, at a fraction of its width."""

    at: float
    label: str


@dataclass(frozen=True, slots=True)
class Series:
    """Values of bins of equal width, with a tooltip each. `shape` is "bars", "line" or "area"."""

    name: str
    values: Sequence[float]
    titles: Sequence[str]
    shape: str = "bars"


def plot(
    title: str,
    series: Sequence[Series],
    ticks: Sequence[Tick],
    label: Callable[[float], str],
    marks: Sequence[float] = (),
) -> str:
    """A plot of one or more series on one scale.

    Args:
        title: The plot's accessible name.
        series: What is drawn, back to front.
        ticks: The labels below.
        label: Formats a value for the scale on the left.
        marks: Fractions of the width at which a vertical line is drawn.
    """
    highest = max((max(line.values, default=0.0) for line in series), default=0.0)
    scale = _scale(highest, whole=all(float(value).is_integer() for line in series for value in line.values))
    grid = "".join(f'<line class="grid" x1="0" x2="100" y1="{_y(at, scale)}" y2="{_y(at, scale)}"/>' for at in scale)
    shapes = "".join(_SHAPES[line.shape](line, scale[-1], number) for number, line in enumerate(series))
    lines = "".join(f'<line class="mark" x1="{100 * at:.2f}" x2="{100 * at:.2f}" y1="0" y2="100"/>' for at in marks)
    drawing = (
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{grid}{shapes}{lines}</svg>"
    )
    labels = "".join(f'<span style="bottom:{100 * at / scale[-1]:.2f}%">{escape(label(at))}</span>' for at in scale)
    widest = max(len(label(at)) for at in scale)
    return (
        f'<figure class="plot">{_legend(series)}<div class="frame" style="--y:{widest}ch">'
        f'<div class="y" aria-hidden="true">{labels}</div><div class="area">{drawing}</div>'
        f'<div class="x" aria-hidden="true">{_tick_labels(ticks)}</div></div></figure>'
    )


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    names = "".join(f'<li class="s{number}">{escape(line.name)}</li>' for number, line in enumerate(series))
    return f'<ul class="legend">{names}</ul>'


def _tick_labels(ticks: Sequence[Tick]) -> str:
    """The labels of the axis. A narrow page shows only every n-th of them."""
    step = max(math.ceil(len(ticks) / NARROW_TICKS), 1)
    return "".join(
        f'<span{"" if i % step == 0 else " class=minor"} style="left:{100 * tick.at:.2f}%">{escape(tick.label)}</span>'
        for i, tick in enumerate(ticks)
    )


def _scale(highest: float, *, whole: bool) -> list[float]:
    """Round numbers from 0 to at least the highest value. With `whole`, only integers."""
    if highest <= 0 or not math.isfinite(highest):
        return [0.0, 1.0]
    rough = max(highest / TICKS, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if whole and power < 10 else (1, 2, 2.5, 5, 10)
    step = next(factor * power for factor in factors if factor * power >= rough * 0.999)
    return [step * i for i in range(math.ceil(highest / step * 0.999) + 1)]


def _y(value: float, scale: Sequence[float]) -> str:
    return f"{100 - 100 * value / scale[-1]:.2f}"


def _bars(series: Series, top: float, number: int) -> str:
    width = 100 / max(len(series.values), 1)
    shapes = []
    for i, (value, title) in enumerate(zip(series.values, series.titles, strict=True)):
        height = 100 * value / top
        left = i * width
        shapes.append(
            f'<g><rect class="s{number}" x="{left + 0.06 * width:.3f}" y="{100 - height:.3f}"'
            f' width="{0.88 * width:.3f}" height="{height:.3f}"/>{_hover_area(left, width, title)}</g>'
        )
    return "".join(shapes)


def _line(series: Series, top: float, number: int) -> str:
    width = 100 / max(len(series.values), 1)
    points = " ".join(f"{(i + 0.5) * width:.3f},{100 - 100 * value / top:.3f}" for i, value in enumerate(series.values))
    if len(series.values) == 1:  # a line of length 0 with round ends is a dot
        return f'<polyline class="line dot s{number}" points="{points} {points}"/>'
    return f'<polyline class="line s{number}" points="{points}"/>'


def _area(series: Series, top: float, number: int) -> str:
    """Steps, filled below."""
    width = 100 / max(len(series.values), 1)
    steps = " ".join(
        f"{i * width:.3f},{100 - 100 * value / top:.3f} {(i + 1) * width:.3f},{100 - 100 * value / top:.3f}"
        for i, value in enumerate(series.values)
    )
    hover = "".join(_hover_area(i * width, width, title) for i, title in enumerate(series.titles))
    fill, edge = f'class="fill s{number}" points="0,100 {steps} 100,100"', f'class="line s{number}" points="{steps}"'
    return f"<polygon {fill}/><polyline {edge}/>{hover}"


def _hover_area(left: float, width: float, title: str) -> str:
    """An invisible rectangle over the whole height of a bin, which shows the tooltip."""
    area = f'<rect class="spot" x="{left:.3f}" y="0" width="{width:.3f}" height="100">'
    return f"{area}<title>{escape(title)}</title></rect>"


_SHAPES = {"bars": _bars, "line": _line, "area": _area}
