"""The stages of a recipe in whole sequences, and which step, stage and source a sequence belongs to.

Sequences and steps are counted from 0 through all stages. Everything here follows from the plan by arithmetic, in
O(stages x sources), wherever the cursor is.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right

import msgspec

from tokenmill.errors import UsageError
from tokenmill.humanize import count
from tokenmill.training.cursors import SourceCursor
from tokenmill.training.mixture import MAX_ROUND, Mixture


class StagePlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stage in whole sequences.

    `counts` has the sequences of each source in a round, in the order of the names, without a common divisor. The
    stage ends after `sequences` sequences, which are whole batches. `skip` has steps of the recipe, [first, last].
    """

    sequence_tokens: int
    batch_sequences: int
    sequences: int
    counts: dict[str, int]
    skip: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for counts that no recipe gives: a state is data, and may be damaged."""
        counts = self.counts.values()
        least = min(self.sequence_tokens - 1, self.batch_sequences - 1, self.sequences, *counts)
        if least < 0 or not 0 < sum(counts) <= MAX_ROUND:
            raise ValueError("a stage has impossible counts")

    @property
    def steps(self) -> int:
        """The number of batches."""
        return self.sequences // self.batch_sequences

    @property
    def mixture(self) -> Mixture:
        """The mixture of the sources, in the order of their names."""
        return Mixture(tuple(self.counts.values()))

    def used(self, sequences: int) -> dict[str, int]:
        """How many of the first sequences of the stage come from each source."""
        return dict(zip(self.counts, self.mixture.used(sequences), strict=True))


class RecipePlan(msgspec.Struct, frozen=True):
    """Every choice of a recipe that decides which tokens a step has. `sources` has the digest of each source."""

    seed: int
    grain: int
    val: str | None
    shuffle: str
    packing: str
    sources: dict[str, str]
    stages: tuple[StagePlan, ...]

    def __post_init__(self) -> None:
        """Raise ValueError if a stage names a source that the plan does not have."""
        if any(stage.counts.keys() - self.sources.keys() for stage in self.stages):
            raise ValueError("a stage has a source that the recipe does not have")


class Timeline:
    """The steps and sequences of a plan. `cursors[i]` has the cursor of each source where stage i begins."""

    def __init__(self, plan: RecipePlan) -> None:
        self.plan = plan
        stages = plan.stages
        self.first_sequences = list(itertools.accumulate((stage.sequences for stage in stages), initial=0))
        self.first_steps = list(itertools.accumulate((stage.steps for stage in stages), initial=0))
        self.cursors = [dict.fromkeys(plan.sources, SourceCursor())]
        for stage in stages:
            self.cursors.append(advanced(self.cursors[-1], stage, stage.sequences))
        self._skips = sorted(tuple(skip) for stage in stages for skip in stage.skip)

    @property
    def sequences(self) -> int:
        """The sequences of all stages."""
        return self.first_sequences[-1]

    @property
    def steps(self) -> int:
        """The steps of all stages, with those that are skipped."""
        return self.first_steps[-1]

    @property
    def delivered_steps(self) -> int:
        """The steps of all stages without those that are skipped."""
        return self._delivered_before(self.steps)

    def stage_of(self, sequence: int) -> int:
        """The number of the stage that has a sequence, from 0."""
        return min(bisect_right(self.first_sequences, sequence), len(self.plan.stages)) - 1

    def step_of(self, sequence: int) -> int:
        """The step that has a sequence. Past the end, it is the number of steps."""
        if sequence >= self.sequences:
            return self.steps
        number = self.stage_of(sequence)
        within = sequence - self.first_sequences[number]
        return self.first_steps[number] + within // self.plan.stages[number].batch_sequences

    def sequence_of(self, step: int) -> int:
        """The first sequence of a step. Past the end, it is the number of sequences."""
        if step >= self.steps:
            return self.sequences
        number = bisect_right(self.first_steps, step) - 1
        within = step - self.first_steps[number]
        return self.first_sequences[number] + within * self.plan.stages[number].batch_sequences

    def advance(self, sequence: int, batches: int) -> int:
        """The sequence after so many batches that are not skipped. With 0, the next one that is not skipped."""
        return self.sequence_of(self._delivered(self._delivered_before(self.step_of(sequence)) + batches))

    def check_sequence(self, sequence: int) -> None:
        """Raise UsageError if no step begins with this sequence."""
        if sequence > self.sequences or self.sequence_of(self.step_of(sequence)) != sequence:
            raise UsageError(
                f"no step of the recipe begins after {count(sequence, 'sequence')}",
                f"recipe       {count(self.steps, 'step')}, {count(self.sequences, 'sequence')}",
            )

    def _delivered_before(self, step: int) -> int:
        """The steps before this one that are not skipped."""
        return step - sum(max(min(last + 1, step) - first, 0) for first, last in self._skips)

    def _delivered(self, number: int) -> int:
        """The step that is number `number` of those that are not skipped."""
        for first, last in self._skips:
            if number < first:
                break
            number += last + 1 - first
        return number


def advanced(cursors: dict[str, SourceCursor], stage: StagePlan, sequences: int) -> dict[str, SourceCursor]:
    """The cursors after the first sequences of a stage."""
    used = stage.used(sequences)
    return cursors | {name: cursors[name].after(taken, stage.sequence_tokens) for name, taken in used.items()}
