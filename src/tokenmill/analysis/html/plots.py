"""Histograms and lines over an axis: shapes are SVG that stretches, words are HTML that stays readable at any width."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tokenmill.analysis.html.markup import text

TICKS = 4
NARROW_TICKS = 5
"""About as many words as fit below a picture on a telephone."""

Words = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Tick:
    """A word below the axis, at a share of its width."""

    at: float
    word: str


@dataclass(frozen=True, slots=True)
class Series:
    """Values from left to right, of equal width, with what is told of each; drawn as bars, as a line or as an area."""

    name: str
    values: Sequence[float]
    titles: Sequence[str]
    shape: str = "bars"


def plot(title: str, series: Sequence[Series], ticks: Sequence[Tick], words: Words, marks: Sequence[float] = ()) -> str:
    """A picture of one or more series on one scale, with marks at shares of its width."""
    most = max((max(each.values, default=0.0) for each in series), default=0.0)
    scale = _scale(most, whole=all(float(value).is_integer() for each in series for value in each.values))
    grid = "".join(f'<line class="grid" x1="0" x2="100" y1="{_y(at, scale)}" y2="{_y(at, scale)}"/>' for at in scale)
    shapes = "".join(_SHAPES[each.shape](each, scale[-1], place) for place, each in enumerate(series))
    lines = "".join(f'<line class="mark" x1="{100 * at:.2f}" x2="{100 * at:.2f}" y1="0" y2="100"/>' for at in marks)
    drawing = (
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{text(title)}">'
        f"<title>{text(title)}</title>{grid}{shapes}{lines}</svg>"
    )
    heights = "".join(f'<span style="bottom:{100 * at / scale[-1]:.2f}%">{text(words(at))}</span>' for at in scale)
    widest = max(len(words(at)) for at in scale)
    return (
        f'<figure class="plot">{_legend(series)}<div class="frame" style="--y:{widest}ch">'
        f'<div class="y" aria-hidden="true">{heights}</div><div class="area">{drawing}</div>'
        f'<div class="x" aria-hidden="true">{_below(ticks)}</div></div></figure>'
    )


def _legend(series: Sequence[Series]) -> str:
    if len(series) < 2:
        return ""
    names = "".join(f'<li class="s{place}">{text(each.name)}</li>' for place, each in enumerate(series))
    return f'<ul class="legend">{names}</ul>'


def _below(ticks: Sequence[Tick]) -> str:
    """The words of the axis; on a narrow page only some of them are shown."""
    step = max(math.ceil(len(ticks) / NARROW_TICKS), 1)
    return "".join(
        f'<span{"" if place % step == 0 else " class=minor"} style="left:{100 * tick.at:.2f}%">{text(tick.word)}</span>'
        for place, tick in enumerate(ticks)
    )


def _scale(most: float, *, whole: bool) -> list[float]:
    """Round numbers from nothing to at least the largest value; whole ones, where things are counted."""
    if most <= 0 or not math.isfinite(most):
        return [0.0, 1.0]
    rough = max(most / TICKS, 1.0 if whole else 0.0)
    power = 10.0 ** math.floor(math.log10(rough))
    factors = (1, 2, 5, 10) if whole and power < 10 else (1, 2, 2.5, 5, 10)
    step = next(factor * power for factor in factors if factor * power >= rough * 0.999)
    return [step * place for place in range(math.ceil(most / step * 0.999) + 1)]


def _y(value: float, scale: Sequence[float]) -> str:
    return f"{100 - 100 * value / scale[-1]:.2f}"


def _bars(series: Series, top: float, place: int) -> str:
    width = 100 / max(len(series.values), 1)
    shapes = []
    for number, (value, title) in enumerate(zip(series.values, series.titles, strict=True)):
        height = 100 * value / top
        left = number * width
        shapes.append(
            f'<g><rect class="s{place}" x="{left + 0.06 * width:.3f}" y="{100 - height:.3f}" width="{0.88 * width:.3f}"'
            f' height="{height:.3f}"/>{_spot(left, width, title)}</g>'
        )
    return "".join(shapes)


def _line(series: Series, top: float, place: int) -> str:
    width = 100 / max(len(series.values), 1)
    points = " ".join(
        f"{(number + 0.5) * width:.3f},{100 - 100 * value / top:.3f}" for number, value in enumerate(series.values)
    )
    if len(series.values) == 1:  # a line without length is a dot, if its ends are round
        return f'<polyline class="line dot s{place}" points="{points} {points}"/>'
    return f'<polyline class="line s{place}" points="{points}"/>'


def _area(series: Series, top: float, place: int) -> str:
    """Steps, filled below."""
    width = 100 / max(len(series.values), 1)
    steps = " ".join(
        f"{number * width:.3f},{100 - 100 * value / top:.3f} {(number + 1) * width:.3f},{100 - 100 * value / top:.3f}"
        for number, value in enumerate(series.values)
    )
    spots = "".join(_spot(number * width, width, title) for number, title in enumerate(series.titles))
    fill, edge = f'class="fill s{place}" points="0,100 {steps} 100,100"', f'class="line s{place}" points="{steps}"'
    return f"<polygon {fill}/><polyline {edge}/>{spots}"


def _spot(left: float, width: float, title: str) -> str:
    """The whole height of a bin, so that who points at it is told its figures."""
    spot = f'<rect class="spot" x="{left:.3f}" y="0" width="{width:.3f}" height="100">'
    return f"{spot}<title>{text(title)}</title></rect>"


_SHAPES = {"bars": _bars, "line": _line, "area": _area}
