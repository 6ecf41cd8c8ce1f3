"""What a soak has done and found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Finding:
    """Something that must not be: its verdict, the run that showed it, and what was seen."""

    verdict: str
    run: str
    told: str


@dataclass
class Tally:
    """Counts by group and name, and the findings."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)

    def add(self, group: str, name: str, number: int = 1) -> None:
        """Count something."""
        self.counts.setdefault(group, Counter())[name] += number

    def find(self, verdict: str, run: str, told: str) -> None:
        """Take note of something that must not be."""
        self.findings.append(Finding(verdict, run, told))

    def total(self, group: str) -> int:
        """All of a group."""
        return sum(self.counts.get(group, Counter()).values())

    def table(self) -> str:
        """Everything, for people."""
        lines = []
        for group, counts in self.counts.items():
            lines.append(f"{group:<24} {sum(counts.values()):>8,}")
            lines += [f"  {name:<40} {count:>8,}" for name, count in sorted(counts.items())]
        lines += [f"skipped                  {what}" for what in sorted(self.skipped)]
        verdicts = Counter(finding.verdict for finding in self.findings)
        lines.append(f"{'findings':<24} {len(self.findings):>8,}")
        lines += [f"  {verdict:<40} {count:>8,}" for verdict, count in sorted(verdicts.items())]
        return "\n".join(lines)
