"""What the recorded rounds say: best speeds and how tokenmill compares. Table and chart are made from this."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

MILL = "tokenmill"


@dataclass(frozen=True)
class Line:
    """One row of the results, judged."""

    row: dict[str, Any]
    speeds: tuple[float, ...]

    @property
    def name(self) -> str:
        """Which pipeline."""
        return str(self.row["name"])

    @property
    def title(self) -> str:
        """What people call it."""
        return str(self.row["title"])

    @property
    def ours(self) -> bool:
        """Whether it is tokenmill."""
        return self.name.startswith(MILL)

    @property
    def beside(self) -> str:
        """The pipeline of tokenmill that it is compared with."""
        return str(self.row.get("beside", MILL))

    @property
    def best(self) -> float | None:
        """MB of text a second in the best round; None if it did not run."""
        return max(self.speeds) if self.speeds and not self.row["failure"] else None

    @property
    def tokens_are(self) -> str:
        """What was found of its tokens: equal, or every way in which they were not."""
        told = {each["tokens_are"] for each in self.row["rounds"]} - {"not written"}
        return "; ".join(sorted(told - {"equal"}) or sorted(told))


@dataclass(frozen=True)
class Comparison:
    """All lines, the fastest first, those that did not run last."""

    lines: tuple[Line, ...]

    @property
    def mill(self) -> Line:
        """The pipeline of tokenmill on the most text: what others are compared with."""
        return self._mill(MILL) or max((line for line in self.lines if line.ours), key=_text_bytes)

    def _mill(self, name: str) -> Line | None:
        return max((line for line in self.lines if line.name == name), key=_text_bytes, default=None)

    def slower(self, line: Line) -> float | None:
        """How many times as fast as a line tokenmill is."""
        return _ratio((self._mill(line.beside) or self.mill).best, line.best)

    def slower_on_same_work(self, line: Line) -> float | None:
        """The same, where tokenmill did no more than the line's own work."""
        mills = (each for each in self.lines if each.name == line.beside and _text_bytes(each) == _text_bytes(line))
        return _ratio(next((each.best for each in mills), None), line.best)

    @property
    def fastest_peer(self) -> Line | None:
        """The fastest pipeline of others that writes its tokens."""
        peers = (line for line in self.lines if not line.ours and not line.row["bare"] and line.best)
        return next(peers, None)

    def named(self, name: str) -> Line | None:
        """The line of a pipeline, if it ran."""
        return next((line for line in self.lines if line.name == name and line.best), None)


def _text_bytes(line: Line) -> int:
    return int(line.row["text_bytes"])


def _ratio(fast: float | None, slow: float | None) -> float | None:
    return fast / slow if fast and slow else None


def compare(results: dict[str, Any]) -> Comparison:
    """Judge what was recorded."""
    lines = [
        Line(row, tuple(told["megabytes_per_second"] for told in row["rounds"] if told["round"]))
        for row in results["rows"]
    ]
    return Comparison(tuple(sorted(lines, key=lambda line: -(line.best or 0))))


def figure(value: float) -> str:
    """A number with as many digits as it deserves."""
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.1f}"
