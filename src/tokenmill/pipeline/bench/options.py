"""The options of `bench`, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenmill.tokenizers.objects import TokenizerObject


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure. Without `sources`, the text is made up; without `worker_counts`, defaults are used."""

    sources: str | Sequence[str]
    tokenizer: str | TokenizerObject
    version: str | None
    column: str | None
    separator: str | None
    worker_counts: list[int]
    max_bytes: int | None
    seconds: float
    price: float | None
    out: str | None

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise UsageError(
                f"--seconds {self.seconds:g} is not a time", "Give the seconds that measuring may take: 30."
            )
        if self.price is not None and not 0 <= self.price < math.inf:
            raise UsageError(
                f"--price-per-core-hour {self.price:g} is not a price", "Give what an hour of one core costs: 0.04."
            )


def parse_worker_counts(workers: str | int | Sequence[int] | None) -> list[int]:
    """The distinct numbers of workers, ascending. Empty for None."""
    if workers is None:
        return []
    parts = workers.split(",") if isinstance(workers, str) else [workers] if isinstance(workers, int) else workers
    try:
        counts = sorted({int(part) for part in parts})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise UsageError(f"--workers {workers} is not a list of worker counts", "Give one, or several: 1,2,4.")
    return counts


def default_worker_counts(default: int) -> list[int]:
    """1, 2, 4, ... up to the default number of workers of a run, and that number."""
    doubled = [1 << power for power in range(default.bit_length())]
    return sorted({*doubled, default})
