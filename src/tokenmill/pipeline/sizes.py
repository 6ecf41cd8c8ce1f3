"""Sizes and fractions as users write them: 100M, 8GB, 64MiB, 0.01, 1%."""

from __future__ import annotations

from decimal import Decimal

from tokenmill.errors import UsageError

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "b": 10**9}


def parse_size(text: str | int) -> int:
    """A number with an optional suffix: `100M`, `8GB`, `64MiB`, `10B` (billion), `1.5k`."""
    if isinstance(text, int):
        return text
    number = text.strip().lower()
    binary = number.endswith("ib")
    if binary:
        number = number[:-2]
    elif len(number) > 1 and number.endswith("b") and number[-2] in _SUFFIXES:
        number = number[:-1]
    scale = 1
    if number and number[-1] in _SUFFIXES:
        scale = 1 << {"k": 10, "m": 20, "g": 30, "t": 40}.get(number[-1], 0) if binary else _SUFFIXES[number[-1]]
        number = number[:-1]
    try:
        value = float(number) * scale
    except ValueError:
        raise UsageError(f"{text!r} is not a size", "Write a number, or one with k, M, G, T or B: 100M, 8GB.") from None
    if not 0 <= value < float("inf"):
        raise UsageError(f"{text!r} is not a size", "A size is a finite number that is not negative.")
    return round(value)


def parse_fraction(text: str) -> float | None:
    """Parse a number or a percentage; None if it is neither. Decimal arithmetic makes 1% and 0.01 the same number."""
    try:
        return float(Decimal(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1))
    except (ArithmeticError, ValueError):
        return None
