"""The stores of further tokenizers that a run makes beside its own (see unit/companions.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.pipeline.unit.companions import CompanionTarget
from tokenmill.store.mismatch import read_mismatch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenmill.pipeline.driving.context import RunContext


@dataclass(frozen=True, slots=True)
class Companion:
    """A store that is made beside another one, and the engine of its tokenizer."""

    context: RunContext
    engine: str

    def target(self) -> CompanionTarget:
        """What a worker needs."""
        folder, frozen = self.context.folder, self.context.frozen
        return CompanionTarget(folder.root, frozen.run.job, self.engine, self.context.limits, frozen.reference_version)


def make_companions(first: RunContext, runs: Iterable[tuple[RunContext, str]]) -> list[Companion]:
    """The companions of the first run, with these runs and engines.

    A store whose fast engine has failed an audit is not one, nor is a store that was started with other units, or one
    from which documents were erased: its parts are not made again.
    """
    return [
        Companion(context, engine)
        for context, engine in runs
        if not context.frozen.head.number
        and read_mismatch(context.folder) is None
        and context.frozen.plan.equals(first.frozen.plan)
    ]
