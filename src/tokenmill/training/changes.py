"""What differs between two plans, and from which step on.

The past of a training is what decided the tokens of the steps before its cursor. It may not change. A later stage, the
end of the current one, and skips after the cursor may.
"""

from __future__ import annotations

import msgspec

from tokenmill.errors import UsageError
from tokenmill.humanize import Readable, count
from tokenmill.training.stages import RecipePlan, StagePlan, Timeline
from tokenmill.training.state import list_others


class RecipeChange(Readable, msgspec.Struct, frozen=True):
    """One difference between two recipes: what, the values, and the first step whose tokens it changes."""

    what: str
    before: str
    now: str
    step: int


def find_changes(before: RecipePlan, now: RecipePlan) -> list[RecipeChange]:
    """The differences of two plans, the earliest first."""
    changes = [
        RecipeChange(name, str(was), str(value), 0)
        for name in ("seed", "grain", "val", "shuffle", "packing")
        for was, value in [(getattr(before, name), getattr(now, name))]
        if was != value
    ]
    timelines = [Timeline(before), Timeline(now)]
    for number in range(max(len(before.stages), len(now.stages))):
        lines = [line for line in timelines if number < len(line.plan.stages)]
        first, end = (min(line.first_steps[edge] for line in lines) for edge in (number, number + 1))
        changes += _stage_changes(before, now, number, first, end)
    return sorted(changes, key=lambda change: change.step)


def _stage_changes(before: RecipePlan, now: RecipePlan, number: int, first: int, end: int) -> list[RecipeChange]:
    """The differences in one stage, which begins with step `first` and ends with step `end` at the earliest."""
    if number >= len(now.stages):
        return [RecipeChange(f"stage {number + 1}", _describe(before.stages[number]), "none", first)]
    if number >= len(before.stages):
        return [RecipeChange(f"stage {number + 1}", "none", _describe(now.stages[number]), first)]
    was, is_now = before.stages[number], now.stages[number]
    changes = [
        RecipeChange(f"{name} of stage {number + 1}", f"{getattr(was, name):,}", f"{getattr(is_now, name):,}", first)
        for name in ("sequence_tokens", "batch_sequences")
        if getattr(was, name) != getattr(is_now, name)
    ]
    if was.counts != is_now.counts:
        changes.append(RecipeChange(f"mixture of stage {number + 1}", mixed(was), mixed(is_now), first))
    changes += [
        RecipeChange(f"store of {name} in stage {number + 1}", before.sources[name], now.sources[name], first)
        for name in sorted(was.counts.keys() & is_now.counts.keys())
        if before.sources[name] != now.sources[name]
    ]
    if was.skip != is_now.skip:
        changes.append(
            RecipeChange(f"skip of stage {number + 1}", _ranges(was), _ranges(is_now), _first_skip(was, is_now))
        )
    if was.sequences != is_now.sequences:
        changes.append(RecipeChange(f"steps of stage {number + 1}", f"{was.steps:,}", f"{is_now.steps:,}", end))
    return changes


def check_past(before: RecipePlan, now: RecipePlan, sequences: int) -> None:
    """Raise UsageError if the plans give different tokens to a step before the cursor. `sequences` counts up to it."""
    old, new = Timeline(before), Timeline(now)
    old.check_sequence(sequences)
    step = old.step_of(sequences)
    past = [change for change in find_changes(before, now) if change.step < step]
    if not past:
        new.check_sequence(sequences)
        return
    others = list_others(change.what for change in past)
    raise UsageError(
        f"the recipe differs before step {step:,}, where the state was taken: {others}",
        *(f"{change.what}, from step {change.step:,} on: was {change.before}, is now {change.now}" for change in past),
        _advice(past, step, old),
    )


def _advice(past: list[RecipeChange], step: int, old: Timeline) -> str:
    """What to do so that the change is in the future."""
    if any("stage" not in change.what for change in past):
        return "The steps that were trained depend on it: take the former value, or begin a new training."
    stage = old.stage_of(max(old.sequence_of(step) - 1, 0)) + 1
    return (
        f"Keep the stages until stage {stage} as they were, end that one with `stop_step = {step}`, "
        "and write the change as a stage after it."
    )


def mixed(stage: StagePlan) -> str:
    """The counts of a round: `web 4 : code 1`."""
    return " : ".join(f"{name} {value:,}" for name, value in stage.counts.items())


def _describe(stage: StagePlan) -> str:
    shape = f"{count(stage.steps, 'step')} of {stage.batch_sequences:,} x {stage.sequence_tokens:,} tokens"
    return f"{shape}, {mixed(stage)}"


def _ranges(stage: StagePlan) -> str:
    return ", ".join(f"[{first:,}, {last:,}]" for first, last in stage.skip) or "none"


def _first_skip(was: StagePlan, now: StagePlan) -> int:
    """The first step that is skipped in one of the stages and not in the other."""
    ranges = [(first, last, side) for side, stage in enumerate((was, now)) for first, last in stage.skip]
    edges = sorted({edge for first, last, _ in ranges for edge in (first, last + 1)})
    for edge in edges:
        sides = {side for first, last, side in ranges if first <= edge <= last}
        if len(sides) == 1:
            return edge
    return edges[0]
