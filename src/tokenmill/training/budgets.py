"""From a recipe to a plan in whole sequences: weights and budgets become counts once, here.

Weights become the counts of a round, whatever the length of the stage is: a stage that is made longer keeps its
beginning. Budgets become sequences of each source; if these do not fill whole batches, less than a batch is left out,
from all sources in proportion. A recipe that reads a source more often than `repeat` allows is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from tokenmill.errors import UsageError
from tokenmill.humanize import count, parse_size
from tokenmill.training.cursors import SourceCursor
from tokenmill.training.recipe import Recipe, RecipeStage
from tokenmill.training.stages import StagePlan, advanced

# A round of weights has at most so many sequences; weights with more digits are rounded to it.
MAX_WEIGHT_ROUND = 1 << 32

ALL = "all"

_TIMES = re.compile(r"(\d+(?:\.\d+)?)x")
_BYTES = re.compile(r"[kmgtb]i?b\s*$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ResolvedStage:
    """A stage of a plan, what the recipe asked of each source in tokens, and the cursors where the stage ends."""

    plan: StagePlan
    first_step: int
    asked: dict[str, int]
    given: dict[str, int]
    cursors: dict[str, SourceCursor]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a stage begins: its number from 1, its first step, and the cursors of the sources."""

    number: int
    first_step: int
    cursors: dict[str, SourceCursor]


def resolve(recipe: Recipe, epochs: Mapping[str, int]) -> list[ResolvedStage]:
    """Turn the stages of a recipe into whole sequences. `epochs` has the tokens of an epoch of each source."""
    resolved: list[ResolvedStage] = []
    place = _Place(1, 0, dict.fromkeys(recipe.sources, SourceCursor()))
    for stage in recipe.stages:
        _check_lengths(recipe, stage, place.number)
        counts, sequences, asked = _counts(recipe, stage, place, epochs)
        sequences = _stopped(stage, sequences, place)
        skip = _skips(stage, place, sequences)
        plan = StagePlan(stage.sequence_tokens, stage.batch_sequences, sequences, counts, skip)
        cursors = advanced(place.cursors, plan, sequences)
        given = {name: taken * stage.sequence_tokens for name, taken in plan.used(sequences).items()}
        resolved.append(ResolvedStage(plan, place.first_step, asked, given, cursors))
        _check_repeats(recipe, resolved, epochs)
        place = _Place(place.number + 1, place.first_step + plan.steps, cursors)
    return resolved


def _check_lengths(recipe: Recipe, stage: RecipeStage, number: int) -> None:
    first = recipe.stages[0].sequence_tokens
    if recipe.packing != "concat" and stage.sequence_tokens != first:
        raise UsageError(
            f"stage {number}: with packing {recipe.packing}, all stages need the same sequence_tokens",
            f"stage 1      {first:,}",
            f"stage {number:<6} {stage.sequence_tokens:,}",
            "Rows of another length are packed in another way, so tokens would be lost or repeated. Use concat.",
        )
    if recipe.grain % stage.sequence_tokens:
        raise UsageError(
            f"stage {number}: sequences of {stage.sequence_tokens:,} tokens do not divide a grain of {recipe.grain:,}",
            "Give a grain that is a multiple of every sequence_tokens. It cannot change during a training.",
        )


def _counts(
    recipe: Recipe, stage: RecipeStage, place: _Place, epochs: Mapping[str, int]
) -> tuple[dict[str, int], int, dict[str, int]]:
    """The counts of a round, the sequences of the stage, and the tokens that each source is asked for."""
    length, batch = stage.sequence_tokens, stage.batch_sequences
    if isinstance(stage.tokens, dict) or _is_relative(stage.tokens):
        wanted = stage.tokens if isinstance(stage.tokens, dict) else dict.fromkeys(recipe.sources, stage.tokens)
        if stage.weights is not None:
            budget = f'tokens = "{stage.tokens}"' if isinstance(stage.tokens, str) else "tokens of each source"
            raise UsageError(
                f"stage {place.number} has weights and {budget}, which contradict each other",
                'With `weights`, `tokens` is one number. Without, `tokens` may be "all", or a number for each source.',
            )
        asked = {name: _asked(amount, place, name, epochs[name], length) for name, amount in sorted(wanted.items())}
        sequences = {name: tokens // length for name, tokens in asked.items()}
        total = _whole_batches(sum(sequences.values()), batch, place.number)
        counts = {name: value for name, value in apportion(sequences, total).items() if value}
    else:
        weights = stage.weights
        if weights is None and len(recipe.sources) > 1:
            raise UsageError(
                f"stage {place.number} has no weights",
                f"Give the share of each source ({', '.join(recipe.sources)}), or `tokens` of each.",
            )
        counts = weight_counts(weights or dict.fromkeys(recipe.sources, 1.0), place.number)
        tokens = _tokens(stage.tokens, place.number)
        total = _whole_batches(tokens // length, batch, place.number)
        asked = apportion(counts, tokens)
    divisor = math.gcd(*counts.values())
    return {name: value // divisor for name, value in sorted(counts.items())}, total, asked


def weight_counts(weights: Mapping[str, float], number: int) -> dict[str, int]:
    """The sequences of each source in a round, in the exact proportion of the decimal numbers as they are written."""
    exact = {name: Fraction(repr(weight)) for name, weight in sorted(weights.items()) if weight}
    if not exact:
        raise UsageError(f"stage {number}: all weights are 0", "Give at least one source a weight.")
    denominator = math.lcm(*(weight.denominator for weight in exact.values()))
    counts = {name: int(weight * denominator) for name, weight in exact.items()}
    if sum(counts.values()) // math.gcd(*counts.values()) > MAX_WEIGHT_ROUND:
        counts = apportion(counts, MAX_WEIGHT_ROUND)
        small = [name for name, value in counts.items() if not value]
        if small:
            raise UsageError(f"stage {number}: the weight of {small[0]} is too small", "The least share is 2^-32.")
    return counts


def apportion(parts: Mapping[str, int], total: int) -> dict[str, int]:
    """Divide a whole number in proportion to the parts, each rounded down, and the rest to the largest remainders."""
    whole = sum(parts.values())
    shares = {name: divmod(part * total, whole) for name, part in parts.items()}
    rest = total - sum(quotient for quotient, _ in shares.values())
    first = sorted(shares, key=lambda name: (-shares[name][1], name))[:rest]
    return {name: quotient + (name in first) for name, (quotient, _) in shares.items()}


def _is_relative(amount: int | str) -> bool:
    return isinstance(amount, str) and (amount == ALL or _TIMES.fullmatch(amount) is not None)


def _asked(amount: int | str, place: _Place, name: str, epoch: int, length: int) -> int:
    """The tokens that a budget asks of a source."""
    if amount == ALL:
        cursor = place.cursors[name]
        end = max(1, -(-cursor.position // epoch)) * epoch  # of the epoch that was begun, or of the first one
        rest = cursor.available(end, length) * length
        if not rest:
            raise UsageError(
                f'stage {place.number}: tokens = "all" is the rest of an epoch, and nothing of {name} is left',
                f"an epoch     {count(epoch, 'token')}",
                f"read before  {count(cursor.used, 'token')}, {float(Fraction(cursor.used, epoch)):g} epochs",
                f'Leave {name} out of stage {place.number}, or give a number of tokens or "1x", and `repeat`.',
            )
        return rest
    times = _TIMES.fullmatch(amount) if isinstance(amount, str) else None
    return int(Fraction(times[1]) * epoch) if times else _tokens(amount, place.number)


def _tokens(amount: int | str, number: int) -> int:
    """A number of tokens as users write it."""
    if isinstance(amount, str) and _BYTES.search(amount):
        raise UsageError(f"stage {number}: {amount} is a size in bytes", "Write tokens as 40B, 900M or 1_000_000.")
    try:
        tokens = parse_size(amount)
    except UsageError as error:
        raise UsageError(
            f"stage {number}: {amount!r} is not a number of tokens", 'Write 1000000, "40B", "all" or "2x".'
        ) from error
    if tokens < 1:
        raise UsageError(f"stage {number}: tokens is {amount}", "Give a number from 1 on.")
    return tokens


def _whole_batches(sequences: int, batch: int, number: int) -> int:
    if sequences < batch:
        raise UsageError(
            f"stage {number} has less than one batch",
            f"sequences    {sequences:,}",
            f"batch        {batch:,}",
            "Give more tokens, or a smaller batch_sequences.",
        )
    return sequences - sequences % batch


def _stopped(stage: RecipeStage, sequences: int, place: _Place) -> int:
    """The sequences of a stage before its `stop_step`."""
    if stage.stop_step is None:
        return sequences
    last = place.first_step + sequences // stage.batch_sequences
    if not place.first_step < stage.stop_step <= last:
        raise UsageError(
            f"stage {place.number}: stop_step {stage.stop_step:,} is not in the stage",
            f"steps        {place.first_step:,} to {last:,}",
            "Steps are counted from the start of the recipe.",
        )
    return (stage.stop_step - place.first_step) * stage.batch_sequences


def _skips(stage: RecipeStage, place: _Place, sequences: int) -> tuple[tuple[int, int], ...]:
    """The skips of a stage in order. Raises UsageError if they overlap, or are not in the stage."""
    first_step, stop = place.first_step, place.first_step + sequences // stage.batch_sequences
    end = first_step
    for first, last in sorted(stage.skip):
        if not end <= first <= last < stop:
            raise UsageError(
                f"stage {place.number}: skip [{first:,}, {last:,}] is not a range of its steps, or it overlaps another",
                f"steps        {first_step:,} to {stop - 1:,}",
                "Give the first and the last step, counted from the start of the recipe.",
            )
        end = last + 1
    return tuple(sorted(stage.skip))


def _check_repeats(recipe: Recipe, resolved: list[ResolvedStage], epochs: Mapping[str, int]) -> None:
    """Raise UsageError if the stages until now read a source more often than the recipe allows."""
    for name, cursor in resolved[-1].cursors.items():
        repeat = Fraction(repr(recipe.source(name).repeat))
        allowed = int(repeat * epochs[name])
        if cursor.used <= allowed:
            continue
        stages = [(number, stage.given.get(name, 0)) for number, stage in enumerate(resolved, 1)]
        needed = math.ceil(Fraction(100 * cursor.used, epochs[name])) / 100
        raise UsageError(
            f"stage {len(resolved)} needs more of {name} than there is",
            f"{name:<12} {count(epochs[name], 'token')} x repeat {float(repeat):g} = {count(allowed, 'token')}",
            *(f"stage {number:<6} {count(tokens, 'token')}" for number, tokens in stages if tokens),
            f"missing      {cursor.used:,} - {allowed:,} = {count(cursor.used - allowed, 'token')}",
            f"Give {name} less of stage {len(resolved)}, or repeat = {needed:g}.",
        )
