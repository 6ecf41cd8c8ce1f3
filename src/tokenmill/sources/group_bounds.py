"""Whether rows of a Parquet row group can satisfy a filter, by the statistics of its column chunks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.sources.plain_values import as_plain
from tokenmill.sources.where import Comparison, Group, Value, kind_name, type_name


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the statistics say about a column in a row group. None stands for what they do not say."""

    low: Value | None = None
    high: Value | None = None
    has_nulls: bool | None = None
    has_values: bool = True


BoundsOf = Callable[[str], Bounds]


def chunk_bounds(chunk: pq.ColumnChunkMetaData, kind: pa.DataType) -> Bounds:
    """The bounds of a column chunk. Only text, numbers and booleans are compared in the order of the statistics.

    Other types are read as text. The statistics of some of them, such as durations, are numbers.
    """
    found = chunk.statistics
    if found is None:
        return Bounds()
    nulls = found.null_count if found.has_null_count else None
    has_values = nulls is None or nulls < chunk.num_values
    has_nulls = None if nulls is None else nulls > 0
    low, high = (found.min, found.max) if found.has_min_max else (None, None)
    if not isinstance(low, str | int | float) or not isinstance(high, str | int | float):
        return Bounds(None, None, has_nulls, has_values)
    if type_name(low) != kind_name(as_plain(pa.nulls(0, kind)).type):
        return Bounds(None, None, has_nulls, has_values)
    return Bounds(low, high, has_nulls, has_values)


def may_match(node: Comparison | Group, bounds_of: BoundsOf) -> bool:
    """Whether a row within these bounds can satisfy the expression. Never false if one does."""
    if isinstance(node, Group):
        parts = (may_match(part, bounds_of) for part in node.parts)
        return all(parts) if node.operator == "and" else any(parts)
    bounds = bounds_of(node.column)
    if node.operator == "is null":
        return bounds.has_nulls is not False
    if node.operator == "is not null" or not bounds.has_values:
        return bounds.has_values
    if not _is_comparable(bounds, node.values):
        return True
    return any(_may_be(node.operator, bounds, value) for value in node.values)


def _is_comparable(bounds: Bounds, values: tuple[Value, ...]) -> bool:
    """Whether the bounds are of the type of the values. NaN cannot be a bound."""
    return all(
        bound is not None and bound == bound and type_name(bound) == type_name(value)  # noqa: PLR0124
        for bound in (bounds.low, bounds.high)
        for value in values
    )


def _may_be(operator: str, bounds: Bounds, value: Value) -> bool:
    low, high = bounds.low, bounds.high
    if operator in {"=", "in"}:
        return bool(low <= value <= high)  # type: ignore[operator] # comparable, as checked
    if operator in {"<", "<="}:
        return bool(low < value or (operator == "<=" and low == value))  # type: ignore[operator]
    if operator in {">", ">="}:
        return bool(high > value or (operator == ">=" and high == value))  # type: ignore[operator]
    # != and not in: only a constant column is excluded. NaN, which is unequal to everything, is not in the bounds.
    return isinstance(low, float) or not low == value == high
